"""What can be measured on a model's outputs: metrics by name, and a user's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import CalibrationDataError
from calibrators.feeds import FeedDict
from trtint8.detection import Detections, MeanAveragePrecision, Truth
from trtint8.fidelity import OUTPUT_METRICS
from trtint8.significance import Comparison, Share, compare_hits, compare_values

__all__ = ["DataSetMetric", "Detections", "MeanAveragePrecision", "Metric", "Truth"]

#: Output name to array.
Outputs = Mapping[str, NDArray[Any]]


@runtime_checkable
class DataSetMetric(Protocol):
    """A metric whose value on the data set is not the mean of its values on the batches.

    Attributes:
        name: What it is called in results.
    """

    name: str

    def fresh(self) -> DataSetMetric:
        """The same metric without data: each model gets one of its own."""
        ...

    def update(self, feeds: FeedDict, outputs: Outputs, labels: NDArray[np.int64] | None) -> None:
        """Takes one batch, with its labels where the data has some."""
        ...

    def value(self) -> float:
        """The value on all batches taken."""
        ...


#: A name; a function of a batch's feeds and outputs that returns one value, or one a sample; or a metric over
#: the data set.
Metric = str | Callable[[FeedDict, Outputs], Any] | DataSetMetric


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch that went through a model.

    Attributes:
        feeds: What it was fed.
        outputs: What came out.
        reference: What the reference gave for it.
        labels: Class indices, shape (rows,), or None.
        rows: How many samples it has.
    """

    feeds: FeedDict
    outputs: Outputs
    reference: Outputs
    labels: NDArray[np.int64] | None
    rows: int


class Meter(Protocol):
    """One metric on one model, a batch at a time."""

    def add(self, batch: Batch) -> None:
        """Takes a batch."""
        ...

    def value(self) -> Share | float:
        """The metric over all batches."""
        ...

    def against(self, other: Any, name: str) -> Comparison | None:
        """Compares with the same metric on another model; None where samples have no values of their own."""
        ...


@dataclass(frozen=True)
class Measurand:
    """A metric that was asked for.

    Attributes:
        name: What it is called in results.
        relative: Whether it is about the likeness with the reference, which then has no value of its own.
        start: Makes the meter for one model.
    """

    name: str
    relative: bool
    start: Callable[[], Meter]


class HitMeter:
    """Right or wrong, a sample: keeps one byte of each."""

    def __init__(self, hits: Callable[[Batch], NDArray[np.bool_]]) -> None:
        self._hits = hits
        self._parts: list[NDArray[np.bool_]] = []

    def add(self, batch: Batch) -> None:
        """Takes a batch."""
        self._parts.append(self._hits(batch))

    def value(self) -> Share:
        """The share that is right."""
        return Share(sum(int(part.sum()) for part in self._parts), sum(map(len, self._parts)))

    def against(self, other: HitMeter, name: str) -> Comparison:
        """McNemar's test."""
        return compare_hits(np.concatenate(self._parts), np.concatenate(other._parts), name)


class ValueMeter:
    """A user's function: keeps its value of each batch, or of each sample where it returns so many."""

    def __init__(self, name: str, function: Callable[[FeedDict, Outputs], Any]) -> None:
        self._name, self._function = name, function
        self._values: list[NDArray[np.float64]] = []
        self._weights: list[NDArray[np.float64]] = []

    def add(self, batch: Batch) -> None:
        """Takes a batch."""
        result = self._function(batch.feeds, batch.outputs)
        try:
            values = np.array(result, np.float64)  # a copy: a view would keep the batch's outputs alive
        except (TypeError, ValueError):
            values = np.empty((0, 0))
        if values.shape not in ((), (batch.rows,)):
            raise CalibrationDataError(
                f"metric '{self._name}' returned {_described(result)} for a batch of {batch.rows} samples; "
                "return one number, or one a sample"
            )
        self._values.append(np.atleast_1d(values))
        self._weights.append(np.full(values.size, batch.rows / values.size))

    def value(self) -> float:
        """The mean over samples: a batch's value counts as often as it has samples."""
        return float(np.average(np.concatenate(self._values), weights=np.concatenate(self._weights)))

    def against(self, other: ValueMeter, name: str) -> Comparison | None:
        """A paired bootstrap over samples, or over batches where these have one value."""
        weights = np.concatenate(self._weights)
        unit = "samples" if (weights == 1).all() else "batches"
        return compare_values(
            np.concatenate(self._values), np.concatenate(other._values), weights, name, unit
        )


class DataSetMeter:
    """A metric over the data set."""

    def __init__(self, metric: DataSetMetric) -> None:
        self._metric = metric.fresh()

    def add(self, batch: Batch) -> None:
        """Takes a batch."""
        self._metric.update(batch.feeds, batch.outputs, batch.labels)

    def value(self) -> float:
        """The metric's own."""
        return float(self._metric.value())

    def against(self, other: DataSetMeter, name: str) -> None:
        """Nothing: it has no value a sample."""


def measurands(metrics: Sequence[Metric]) -> tuple[Measurand, ...]:
    """What was asked for, but for the metrics of single outputs.

    Args:
        metrics: Names, functions and metrics over the data set.

    Returns:
        One for each.

    Raises:
        CalibrationDataError: A name is unknown, an object is no metric, or two have the same name.
    """
    found = [_measurand(metric) for metric in metrics if metric not in OUTPUT_METRICS]
    names = [measurand.name for measurand in found]
    if double := [name for name in names if names.count(name) > 1]:
        raise CalibrationDataError(f"two metrics are named '{double[0]}'; give them different names")
    return tuple(found)


def usual_metrics(first_output: NDArray[Any], *, labelled: bool) -> tuple[str, ...]:
    """Names of the metrics that a model and its data can have.

    Args:
        first_output: The reference's first output for a batch.
        labelled: Whether the data has labels.

    Returns:
        Top-1 and top-5 for a classifier with labels, the latter with more than five classes; agreement for
        every classifier; and what every output has.
    """
    names = ["sqnr", "cosine", "max_error"]
    if _is_classes(first_output):
        names.insert(0, "agreement")
        if labelled:
            names[:0] = ["top1", "top5"] if first_output.shape[1] > 5 else ["top1"]
    return tuple(names)


def _measurand(metric: Metric) -> Measurand:
    if isinstance(metric, str):
        if metric == "agreement":
            return Measurand(metric, True, partial(HitMeter, _agrees))
        if match := re.fullmatch(r"top([1-9][0-9]*)", metric):
            return Measurand(metric, False, partial(HitMeter, partial(_in_top, int(match[1]))))
        raise CalibrationDataError(
            f"there is no metric '{metric}'; there are top1, top5 and so on, agreement, "
            f"{', '.join(OUTPUT_METRICS)}"
        )
    if isinstance(metric, DataSetMetric):
        return Measurand(metric.name, False, partial(DataSetMeter, metric))
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        return Measurand(name, False, partial(ValueMeter, name, metric))
    raise CalibrationDataError(
        f"{metric!r} is no metric; give a name, a function of feeds and outputs, or an object with name, "
        "fresh, update and value"
    )


def _agrees(batch: Batch) -> NDArray[np.bool_]:
    """Whether the reference's class is the model's."""
    wanted = _classes(batch.reference, batch.rows, "agreement")
    return _within(_classes(batch.outputs, batch.rows, "agreement"), wanted.argmax(axis=1), 1)


def _in_top(k: int, batch: Batch) -> NDArray[np.bool_]:
    """Whether the label is one of the k largest."""
    name = f"top{k}"
    scores = _classes(batch.outputs, batch.rows, name)
    count = scores.shape[1]
    if k >= count:
        raise CalibrationDataError(
            f"metric '{name}' is always right with {count} classes; leave it out or take a smaller number"
        )
    if batch.labels is None:
        raise CalibrationDataError(
            f"metric '{name}' needs labels and the data has none; give them, or leave it out"
        )
    bad = batch.labels[(batch.labels < 0) | (batch.labels >= count)]
    if len(bad):
        raise CalibrationDataError(
            f"label {bad[0]} is not one of the model's {count} classes (0 to {count - 1}); check the labels"
        )
    return _within(scores, batch.labels, k)


def _within(scores: NDArray[Any], classes: NDArray[np.integer[Any]], k: int) -> NDArray[np.bool_]:
    """Whether fewer than k classes come before the given one; of equal scores the lower index comes first."""
    own = np.take_along_axis(scores, classes[:, None], axis=1)
    earlier = np.arange(scores.shape[1]) < classes[:, None]
    before = (scores > own) | ((scores == own) & earlier)
    hits: NDArray[np.bool_] = (before.sum(axis=1) < k) & (own[:, 0] == own[:, 0])  # a NaN is never right
    return hits


def _classes(outputs: Outputs, rows: int, metric: str) -> NDArray[Any]:
    name, scores = next(iter(outputs.items()))
    if not _is_classes(scores) or len(scores) != rows:
        raise CalibrationDataError(
            f"metric '{metric}' needs a row of class scores a sample as first output, but '{name}' has shape "
            f"{scores.shape} for {rows} samples; leave it out"
        )
    return scores


def _is_classes(output: NDArray[Any]) -> bool:
    return output.ndim == 2 and output.shape[1] > 1


def _described(result: object) -> str:
    return f"an array of shape {result.shape}" if isinstance(result, np.ndarray) else repr(result)
