"""The metrics of a model's outputs: those with a name, and those that users write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

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
        name: The metric's name in results.
    """

    name: str

    def fresh(self) -> DataSetMetric:
        """Makes the same metric without data; it is called once per model."""
        ...

    def update(self, feeds: FeedDict, outputs: Outputs, labels: NDArray[np.int64] | None) -> None:
        """Adds one batch.

        Args:
            feeds: The model's inputs, by name; samples lie along axis 0.
            outputs: The model's outputs, by name.
            labels: Class indices, int64 of shape (samples,); None where the data has no labels.
        """
        ...

    def value(self) -> float:
        """The value on all batches that were added."""
        ...


@runtime_checkable
class MergeableMetric(DataSetMetric, Protocol):
    """A metric over the data set that several workers can compute together.

    Each batch is added to a fresh metric, and these metrics merge in the order of the data. Over Ray they are
    pickled; ``__getstate__`` should leave out what the merged metric does not need.
    """

    def fresh(self) -> MergeableMetric:
        """Makes the same metric without data."""
        ...

    def merge(self, other: Any) -> None:
        """Adds what another metric of the same kind has measured, on later batches."""
        ...


#: The name of a metric; a function of a batch's feeds and outputs that returns one value per batch or one
#: value per sample; or a metric over the data set.
Metric: TypeAlias = (
    str | Callable[[FeedDict, Outputs], float | Sequence[float] | NDArray[Any]] | DataSetMetric
)


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch with a model's outputs and the reference's.

    Attributes:
        feeds: The model's inputs.
        outputs: The model's outputs.
        reference: The reference's outputs.
        labels: Class indices, int64 of shape (rows,), or None.
        rows: Number of samples in the batch.
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
        name: The metric's name in results.
        relative: Whether it compares with the reference, which then has no value of its own.
        start: Makes the empty meter of one model.
        measure: Measures one batch; what it returns is merged into that meter.
    """

    name: str
    relative: bool
    start: Callable[[], Meter]
    measure: Callable[[Batch], Any]


class MergedMeter:
    """The meter of a metric over the data set that merges."""

    def __init__(self, metric: MergeableMetric) -> None:
        self._metric = metric.fresh()

    def merge(self, other: MergeableMetric) -> None:
        """Adds a metric that was measured on one batch."""
        self._metric.merge(other)

    def value(self) -> float:
        """The metric's own."""
        return float(self._metric.value())

    def against(self, other: object, name: str) -> None:
        """None, because the metric has no value per sample."""


class UpdatedMeter:
    """The meter of a metric over the data set that does not merge: it is given the batches themselves."""

    def __init__(self, metric: DataSetMetric) -> None:
        self._metric = metric.fresh()

    def merge(self, other: Batch) -> None:
        """Adds a batch."""
        self._metric.update(other.feeds, other.outputs, other.labels)

    def value(self) -> float:
        """The metric's own."""
        return float(self._metric.value())

    def against(self, other: object, name: str) -> None:
        """None, because the metric has no value per sample."""


def measurands(metrics: Sequence[Metric]) -> tuple[Measurand, ...]:
    """The metrics that have meters: all except those of single outputs.

    Args:
        metrics: The metrics that were asked for.

    Returns:
        One measurand per metric, in the same order.

    Raises:
        CalibrationDataError: A name is unknown, an object is no metric, or two have the same name.
    """
    found = [_measurand(metric) for metric in metrics if metric not in OUTPUT_METRICS]
    names = [measurand.name for measurand in found]
    if double := [name for name in names if names.count(name) > 1]:
        raise CalibrationDataError(f"two metrics are named '{double[0]}'; give them different names")
    return tuple(found)


def usual_metrics(first_output: NDArray[Any], *, labelled: bool) -> tuple[str, ...]:
    """Names of the metrics that are measured where none are asked for.

    Args:
        first_output: The reference's first output for one batch.
        labelled: Whether the data has labels.

    Returns:
        ``top1`` for a classifier with labels, with ``top5`` where it has more than five classes;
        ``agreement`` for every classifier; and ``sqnr``, ``cosine`` and ``max_error`` for every model.
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
        return Measurand(metric.name, False, partial(MergedMeter, metric), partial(_fresh_on, metric))
    if isinstance(metric, DataSetMetric):
        return Measurand(metric.name, False, partial(UpdatedMeter, metric), _unchanged)
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        return Measurand(name, False, ValueMeter, partial(_values, name, metric))
    raise CalibrationDataError(
        f"{metric!r} is not a metric; give a name, a function of feeds and outputs, or an object with name, "
        "fresh, update and value"
    )


def check_mergeable(metrics: Sequence[Metric]) -> None:
    """Refuses metrics that several workers cannot compute together.

    Args:
        metrics: The metrics that were asked for.

    Raises:
        UnsupportedError: A metric over the data set does not merge.
    """
    for metric in metrics:
        if isinstance(metric, DataSetMetric) and not isinstance(metric, MergeableMetric):
            raise UnsupportedError(
                f"metric '{metric.name}' cannot be computed by several workers; give its class a method "
                "merge(other) that adds what another one has measured on later batches, or validate in one "
                "process"
            )


def _fresh_on(metric: MergeableMetric, batch: Batch) -> DataSetMetric:
    """A fresh metric with this batch alone."""
    own = metric.fresh()
    own.update(batch.feeds, batch.outputs, batch.labels)
    return own


def _unchanged(batch: Batch) -> Batch:
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
            "return one number per batch, or one per sample"
        )
    return ValueMeter([(np.atleast_1d(values), np.full(values.size, batch.rows / values.size))])


def _hits(find: Callable[[Batch], NDArray[np.bool_]], batch: Batch) -> HitMeter:
    return HitMeter([find(batch)])


def _agrees(batch: Batch) -> NDArray[np.bool_]:
    """Whether the model and the reference give the same class, for each sample."""
    wanted = _classes(batch.reference, batch.rows, "agreement")
    return _within(_classes(batch.outputs, batch.rows, "agreement"), wanted.argmax(axis=1), 1)


def _in_top(k: int, batch: Batch) -> NDArray[np.bool_]:
    """Whether the label is among the k largest scores, for each sample."""
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
    """Whether fewer than k classes rank before the given one; of equal scores the lower index ranks first."""
    own = np.take_along_axis(scores, classes[:, None], axis=1)
    earlier = np.arange(scores.shape[1]) < classes[:, None]
    before = (scores > own) | ((scores == own) & earlier)
    hits: NDArray[np.bool_] = (before.sum(axis=1) < k) & (own[:, 0] == own[:, 0])  # a NaN is never right
    return hits


def _classes(outputs: Outputs, rows: int, metric: str) -> NDArray[Any]:
    name, scores = next(iter(outputs.items()))
    if not _is_classes(scores) or len(scores) != rows:
        raise CalibrationDataError(
            f"metric '{metric}' needs one row of class scores per sample as first output, but '{name}' has "
            f"shape {scores.shape} for {rows} samples; leave it out"
        )
    return scores


def _is_classes(output: NDArray[Any]) -> bool:
    return output.ndim == 2 and output.shape[1] > 1


def _described(result: object) -> str:
    return f"an array of shape {result.shape}" if isinstance(result, np.ndarray) else repr(result)
