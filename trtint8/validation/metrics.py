"""What can be measured on a model's outputs: metrics by name, and a user's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import CalibrationDataError, UnsupportedError
from trtint8.validation.detection import Detections, MeanAveragePrecision, Truth
from trtint8.validation.fidelity import OUTPUT_METRICS
from trtint8.validation.meters import HitMeter, Meter, ValueMeter

__all__ = ["DataSetMetric", "Detections", "MeanAveragePrecision", "MergeableMetric", "Metric", "Truth"]

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


@runtime_checkable
class MergeableMetric(DataSetMetric, Protocol):
    """A metric over the data set that several workers can share.

    Each batch is taken by a metric of its own, and these merge in the order of the data. Over Ray they are
    pickled on their way; what they need not carry, ``__getstate__`` leaves out.
    """

    def fresh(self) -> MergeableMetric:
        """The same metric without data."""
        ...

    def merge(self, other: Any) -> None:
        """Takes what another one has seen, in batches after its own."""
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


@dataclass(frozen=True)
class Measurand:
    """A metric that was asked for.

    Attributes:
        name: What it is called in results.
        relative: Whether it is about the likeness with the reference, which then has no value of its own.
        start: Makes the meter of one model, without data.
        look: What that meter is to merge for a batch, which holds this batch alone.
    """

    name: str
    relative: bool
    start: Callable[[], Meter]
    look: Callable[[Batch], Any]


class MergedMeter:
    """A metric over the data set, one that merges."""

    def __init__(self, metric: MergeableMetric) -> None:
        self._metric = metric.fresh()

    def merge(self, other: MergeableMetric) -> None:
        """Takes a metric that has seen a batch."""
        self._metric.merge(other)

    def value(self) -> float:
        """The metric's own."""
        return float(self._metric.value())

    def against(self, other: object, name: str) -> None:
        """Nothing: it has no value a sample."""


class UpdatedMeter:
    """A metric over the data set that does not merge: it is given the batches themselves."""

    def __init__(self, metric: DataSetMetric) -> None:
        self._metric = metric.fresh()

    def merge(self, other: Batch) -> None:
        """Takes a batch."""
        self._metric.update(other.feeds, other.outputs, other.labels)

    def value(self) -> float:
        """The metric's own."""
        return float(self._metric.value())

    def against(self, other: object, name: str) -> None:
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
            return Measurand(metric, True, HitMeter, partial(_hits, _agrees))
        if match := re.fullmatch(r"top([1-9][0-9]*)", metric):
            return Measurand(metric, False, HitMeter, partial(_hits, partial(_in_top, int(match[1]))))
        raise CalibrationDataError(
            f"there is no metric '{metric}'; there are top1, top5 and so on, agreement, "
            f"{', '.join(OUTPUT_METRICS)}"
        )
    if isinstance(metric, MergeableMetric):
        return Measurand(metric.name, False, partial(MergedMeter, metric), partial(_updated, metric))
    if isinstance(metric, DataSetMetric):
        return Measurand(metric.name, False, partial(UpdatedMeter, metric), _itself)
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        return Measurand(name, False, ValueMeter, partial(_values, name, metric))
    raise CalibrationDataError(
        f"{metric!r} is no metric; give a name, a function of feeds and outputs, or an object with name, "
        "fresh, update and value"
    )


def check_mergeable(metrics: Sequence[Metric]) -> None:
    """Refuses what several workers cannot share.

    Raises:
        UnsupportedError: A metric over the data set does not merge.
    """
    for metric in metrics:
        if isinstance(metric, DataSetMetric) and not isinstance(metric, MergeableMetric):
            raise UnsupportedError(
                f"metric '{metric.name}' cannot be shared by workers; give its class a method merge(other) "
                "that takes what another one has seen in batches after its own, or validate in one process"
            )


def _updated(metric: MergeableMetric, batch: Batch) -> DataSetMetric:
    own = metric.fresh()
    own.update(batch.feeds, batch.outputs, batch.labels)
    return own


def _itself(batch: Batch) -> Batch:
    return batch


def _values(name: str, function: Callable[[FeedDict, Outputs], Any], batch: Batch) -> ValueMeter:
    result = function(batch.feeds, batch.outputs)
    try:
        values = np.array(result, np.float64)  # a copy: a view would keep the batch's outputs alive
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.shape not in ((), (batch.rows,)):
        raise CalibrationDataError(
            f"metric '{name}' returned {_described(result)} for a batch of {batch.rows} samples; "
            "return one number, or one a sample"
        )
    return ValueMeter([(np.atleast_1d(values), np.full(values.size, batch.rows / values.size))])


def _hits(find: Callable[[Batch], NDArray[np.bool_]], batch: Batch) -> HitMeter:
    return HitMeter([find(batch)])


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
