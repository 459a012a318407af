"""Metrics that users write: functions of a batch, and metrics over the data set."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from calibrators.data.feeds import Array, FeedDict, Indices, NamedArrays
from calibrators.errors import CalibrationDataError, UnsupportedError, counted, failures_named
from trtint8.validation.batch import Batch, copied
from trtint8.validation.meters import Measurand, SumsMeter, mean


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

    def update(self, feeds: FeedDict, outputs: NamedArrays, labels: Array | None) -> None:
        """Adds one batch. The arrays are copies, which the metric may change and keep.

        Args:
            feeds: The model's inputs, by name; samples lie along axis 0.
            outputs: The model's outputs, by name.
            labels: One label per sample along axis 0: class indices, int64 of shape (samples,), or arrays;
                None where the data has no labels.
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


class ComparingMetric(Protocol):
    """A metric over the data set that compares with the reference; it may have ``merge`` too.

    Attributes:
        name: The metric's name in results.
    """

    name: str

    def fresh(self) -> ComparingMetric:
        """Makes the same metric without data; it is called once per model."""
        ...

    def update(
        self,
        feeds: FeedDict,
        outputs: NamedArrays,
        labels: Array | None,
        reference_outputs: NamedArrays,
    ) -> None:
        """Adds one batch; see :class:`DataSetMetric`.

        Args:
            feeds: The model's inputs, by name.
            outputs: The model's outputs, by name.
            labels: One label per sample along axis 0, or None.
            reference_outputs: The reference's outputs, by name.
        """
        ...

    def value(self) -> float:
        """The value on all batches that were added."""
        ...


#: What a function of a batch returns: one number per batch, or one per sample.
Values: TypeAlias = float | Sequence[float] | Array

#: A function of a batch's feeds and outputs, and of the reference's outputs where it takes them. The arrays
#: are copies, which it may change.
MetricFunction: TypeAlias = (
    Callable[[FeedDict, NamedArrays], Values] | Callable[[FeedDict, NamedArrays, NamedArrays], Values]
)

#: Names of a parameter that takes the reference's outputs though it has a default value.
_REFERENCE_NAMES = ("reference_outputs", "reference")


class UserMeter:
    """The meter of a metric over the data set; one that does not merge is given the batches themselves."""

    def __init__(self, metric: DataSetMetric, *, compares: bool) -> None:
        self._metric, self._compares = _fresh(metric), compares

    def merge(self, other: Batch | MergeableMetric) -> None:
        """Adds a batch, or a metric that was measured on one."""
        if isinstance(other, Batch):
            _update(self._metric, other, compares=self._compares)
            return
        with failures_named(f"the method merge of metric '{self._metric.name}' failed"):
            self._metric.merge(other)

    def value(self) -> float:
        """The metric's own."""
        return _value_of(self._metric)

    def against(self, other: object, name: str, groups: Indices | None = None) -> None:
        """None, because the metric has no value per sample."""

    def interval(self, groups: Indices | None = None) -> None:
        """None, because the metric has no value per sample."""


def user_measurand(metric: object) -> Measurand:
    """A function, or a metric over the data set, ready to be measured.

    Args:
        metric: What the user gave.

    Returns:
        The measurand; it is relative where the metric takes the reference's outputs.

    Raises:
        CalibrationDataError: It is no metric, or takes another number of parameters.
    """
    if isinstance(metric, type):
        name = metric.__name__
        raise CalibrationDataError(
            f"{name} is a class; give an object of it as metric, as {name}(...) makes it"
        )
    if isinstance(metric, DataSetMetric):
        compares = takes_reference(
            metric.update, 3, f"the method update of metric '{metric.name}'", "feeds, outputs, labels"
        )
        measure = partial(_fresh_on, metric, compares) if isinstance(metric, MergeableMetric) else _unchanged
        return Measurand(metric.name, compares, partial(UserMeter, metric, compares=compares), measure)
    if callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__)
        compares = takes_reference(metric, 2, f"metric '{name}'", "feeds, outputs")
        return Measurand(name, compares, partial(SumsMeter, mean), partial(_values, name, metric, compares))
    raise CalibrationDataError(
        f"{metric!r} is not a metric; give a name, a function of feeds and outputs, or an object with name, "
        "fresh, update and value"
    )


def takes_reference(function: Callable[..., Any], count: int, described: str, parameters: str) -> bool:
    """Whether a function takes the reference's outputs, as its last parameter.

    Args:
        function: The function, or a bound method.
        count: The number of parameters without the reference's outputs.
        described: What the function is, for the message.
        parameters: Names of the parameters without the reference's outputs, for the message.

    Returns:
        True where the function needs one parameter more, or calls it ``reference_outputs`` or ``reference``.

    Raises:
        CalibrationDataError: It can be called with neither number of parameters.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C extensions have none
        return False
    if _can_be_called(signature, count):
        more = [*signature.parameters.values()][count : count + 1]
        return any(parameter.name in _REFERENCE_NAMES for parameter in more) and _can_be_called(
            signature, count + 1
        )
    if _can_be_called(signature, count + 1):
        return True
    advice = "change them"
    if count == 2 and _can_be_called(signature, 1):
        advice = "of a decoder of detections, give DetectionAgreement(...) or MeanAveragePrecision(...)"
    raise CalibrationDataError(
        f"{described} cannot be called with ({parameters}) or ({parameters}, reference_outputs), as its "
        f"parameters are {signature}; {advice}"
    )


def check_mergeable(metrics: Sequence[object]) -> None:
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


def _can_be_called(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _update(metric: Any, batch: Batch, *, compares: bool) -> None:
    labels = None if batch.labels is None else batch.labels.copy()
    reference = (copied(batch.reference),) if compares else ()
    with failures_named(f"the method update of metric '{metric.name}' failed on {_where(batch)}"):
        metric.update(copied(batch.feeds), copied(batch.outputs), labels, *reference)


def _value_of(metric: DataSetMetric) -> float:
    """The value of a metric over the data set.

    Raises:
        CalibrationDataError: It is not a number, or the method fails.
    """
    with failures_named(f"the method value of metric '{metric.name}' failed"):
        result: Any = metric.value()
    try:
        value = float(result)
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value):
        raise CalibrationDataError(
            f"the method value of metric '{metric.name}' returned {_described(result)}; return a number"
        )
    return value


def _fresh(metric: Any) -> Any:
    """The same metric without data.

    Raises:
        CalibrationDataError: It is no metric of the same kind, or the method fails.
    """
    with failures_named(f"the method fresh of metric '{metric.name}' failed"):
        own = metric.fresh()
    kind = MergeableMetric if isinstance(metric, MergeableMetric) else DataSetMetric
    if not isinstance(own, kind):
        raise CalibrationDataError(
            f"the method fresh of metric '{metric.name}' returned {_described(own)}; return the same metric "
            "without data"
        )
    return own


def _fresh_on(metric: MergeableMetric, compares: bool, batch: Batch) -> DataSetMetric:
    """A fresh metric with this batch alone."""
    own: DataSetMetric = _fresh(metric)
    _update(own, batch, compares=compares)
    return own


def _unchanged(batch: Batch) -> Batch:
    return batch


def _values(name: str, function: Callable[..., Any], compares: bool, batch: Batch) -> SumsMeter:
    reference = (copied(batch.reference),) if compares else ()
    with failures_named(f"metric '{name}' failed on {_where(batch)}"):
        result = function(copied(batch.feeds), copied(batch.outputs), *reference)
    try:
        values = np.array(result, np.float64)  # a copy: a view would keep the batch's outputs alive
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if result is None or values.shape not in ((), (batch.rows,)):
        raise CalibrationDataError(
            f"metric '{name}' returned {_described(result)} for a batch of {counted(batch.rows, 'sample')}; "
            "return one number per batch, or one per sample"
        )
    if np.isnan(values).any():
        place = batch.first + int(np.isnan(values).argmax())
        where = batch.name_of(place) if values.ndim else _where(batch)
        raise CalibrationDataError(f"metric '{name}' returned NaN for {where}; return a number, or infinity")
    # A batch's value counts as often as it has samples.
    weights = np.full(values.size, batch.rows / values.size)
    return SumsMeter(mean, [np.stack([weights * values.ravel(), weights], axis=1)], batch.rows)


def _where(batch: Batch) -> str:
    return f"the batch that begins with {batch.name_of(batch.first)}"


def _described(result: object) -> str:
    return f"an array of shape {result.shape}" if isinstance(result, np.ndarray) else repr(result)
