"""Meters: what one metric measured on one model so far. Meters of single batches merge exactly.

A :class:`Measurand` is a metric that is ready to be measured on batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from calibrators.checks import warn_user
from calibrators.data.feeds import Flags, Floats, Indices
from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.significance import (
    Comparison,
    Interval,
    SameAnswer,
    Share,
    by_group,
    compare_hits,
    compare_totals,
    independent_samples,
    share_interval,
    totals_interval,
)


class Meter(Protocol):
    """One metric on one model. It holds no function of a user, so that it can be sent to other processes."""

    def merge(self, other: Any) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        ...

    def value(self) -> Share | float:
        """The metric over all batches."""
        ...

    def against(self, other: Any, name: str, groups: Indices | None = None) -> Comparison | None:
        """Compares the metric with its value on another model.

        Args:
            other: The meter of the same metric on the other model, for the same samples.
            name: The other model's name.
            groups: The number of each sample's group; None where each sample stands alone.

        Returns:
            The comparison; None where samples have no values of their own.
        """
        ...

    def interval(self, groups: Indices | None = None) -> Interval | None:
        """The ends of the 95 % interval of the metric.

        Args:
            groups: The number of each sample's group; None where each sample stands alone.

        Returns:
            The ends; None where the samples do not tell.
        """
        ...


@dataclass(frozen=True)
class Answers:
    """The right answers of samples: what they say of a network that gives every sample the same one.

    Attributes:
        of: What is kept of the right answers of a batch of the reference. It is sent to other processes as a
            meter is.
        same_for_all: How well a network does that gives every sample the same answer: by what was kept of all
            batches, the metric of FP32, and the indices of samples of which no two are the same.
    """

    of: Callable[[Batch], Any]
    same_for_all: Callable[[Sequence[Any], float, Indices], SameAnswer]


#: The answers of a metric that a network has nothing of where it finds nothing; FP32 has to be above.
NOTHING_FOUND = Answers(lambda _batch: None, lambda _parts, own, _different: SameAnswer(0.0, own > 0))

PartT = TypeVar("PartT")


class PartsMeter(Generic[PartT]):
    """What was measured on each batch, kept apart so that the value is the same however meters are merged.

    Args:
        parts: What was measured on each batch, in the order of the data.
    """

    def __init__(self, parts: Sequence[PartT] = ()) -> None:
        self._parts = list(parts)

    def merge(self, other: PartsMeter[PartT]) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        self._parts += other._parts

    def empty(self) -> PartsMeter[PartT]:
        """The same meter, which has measured nothing."""
        other = copy(self)
        other._parts = []
        return other

    def against(self, other: Any, name: str, groups: Indices | None = None) -> Comparison | None:  # noqa: ARG002  # named as in the protocol
        """None, where samples have no values of their own."""
        return None

    def interval(self, groups: Indices | None = None) -> Interval | None:  # noqa: ARG002
        """None, where samples have no values of their own."""
        return None


class HitMeter(PartsMeter[Flags]):
    """Whether a model is right on each sample, at one byte per sample.

    Args:
        parts: One array per batch: bool, shape (samples,).
    """

    def value(self) -> Share:
        """The share of samples on which the model is right."""
        return Share(sum(int(part.sum()) for part in self._parts), sum(map(len, self._parts)))

    def against(self, other: HitMeter, name: str, groups: Indices | None = None) -> Comparison:
        """Compares with another model's meter by McNemar's test."""
        return compare_hits(np.concatenate(self._parts), np.concatenate(other._parts), name, groups)

    def interval(self, groups: Indices | None = None) -> Interval:
        """The ends of the 95 % interval of the share."""
        hits = np.concatenate(self._parts).astype(np.float64)
        return share_interval(self.value().value, independent_samples(hits, groups))


def mean(totals: Floats) -> Floats:
    """A mean from the sum of weighted values and the sum of their weights, shape (..., 2)."""
    return np.asarray(totals[..., 0] / totals[..., 1])


class SumsMeter(PartsMeter[Floats]):
    """Sums over single samples, and a function of their totals that is the metric's value.

    Args:
        function: The metric's value from totals: float64 of shape (..., sums) to shape (...). It has to be
            defined in a module, so that it can be sent to other processes.
        parts: One array per batch: float64 of shape (samples, sums), or (1, sums) for the batch as a whole.
            Arrays of fewer sums are filled up with zeros.
        rows: Number of samples of the batch that ``parts`` are of; None where there is none.
    """

    def __init__(
        self,
        function: Callable[[Floats], Floats],
        parts: Sequence[Floats] = (),
        rows: int | None = None,
    ) -> None:
        super().__init__(parts)
        self._function = function
        self._by_sample = all(len(part) == rows for part in parts)

    def merge(self, other: PartsMeter[Floats]) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        assert isinstance(other, SumsMeter)
        super().merge(other)
        self._by_sample = self._by_sample and other._by_sample

    def value(self) -> float:
        """The metric over all batches."""
        return float(self._function(self._joined(0).sum(axis=0)))

    def against(self, other: SumsMeter, name: str, groups: Indices | None = None) -> Comparison | None:
        """Compares by a paired bootstrap over samples, or over batches where samples have no sums.

        Groups of samples are drawn as a whole; batches cannot be put together to groups.
        """
        width = max(self._width, other._width)
        unit = "samples" if self._by_sample else "batches"
        if groups is not None:
            if not self._by_sample:
                return None
            unit = "groups"
        own, others = (by_group(one._joined(width), groups) for one in (self, other))
        return compare_totals(own, others, self._function, name, unit)

    def interval(self, groups: Indices | None = None) -> Interval | None:
        """The ends of the 95 % interval by a bootstrap over samples or batches, or over groups of samples."""
        if not self._by_sample and groups is not None:
            return None
        sums = self._joined(0)
        found, value = totals_interval(by_group(sums, groups), self._function), self.value()
        if found is None or math.isinf(value):
            return found
        # What the metric adds to the function is the same for all samples.
        added = value - float(self._function(sums.sum(axis=0)))
        return found[0] + added, found[1] + added

    @property
    def _width(self) -> int:
        return max(int(part.shape[1]) for part in self._parts)

    def _joined(self, width: int) -> Floats:
        width = max(width, self._width)
        return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in self._parts])


class CountedSumsMeter(SumsMeter):
    """Sums whose value means something only where there is something that counts.

    Args:
        function: The metric's value from totals; see :class:`SumsMeter`.
        column: The first of the sums that count things; every second sum from it on counts some.
        nothing: What is wrong where these sums are all 0, as a sentence.
        is_refused: Whether that is an error; else it is a warning, and the value is not a number.
    """

    def __init__(
        self,
        function: Callable[[Floats], Floats],
        column: int,
        nothing: str,
        *,
        is_refused: bool = True,
    ) -> None:
        super().__init__(function)
        self._column, self._nothing, self._is_refused = column, nothing, is_refused

    def value(self) -> float:
        """The metric over all batches; NaN where nothing counts, since that is neither good nor bad.

        Raises:
            CalibrationDataError: Nothing counts, and that is refused.

        Warns:
            UserWarning: Nothing counts.
        """
        if not self._joined(0)[:, self._column :: 2].any():
            if self._is_refused:
                raise CalibrationDataError(self._nothing)
            warn_user(self._nothing)
            return math.nan
        return super().value()


#: The unit of a value in [0, 1] that is shown in per cent.
PERCENT = "%"

#: The unit of levels.
DECIBELS = "dB"


def _take_all(batch: Batch, form: BatchForm) -> None:
    """Takes any labels."""


@dataclass(frozen=True)
class Measurand:
    """A metric that was asked for.

    Attributes:
        name: The metric's name in results.
        relative: Whether it compares with the reference, which then has no value of its own.
        start: Makes the empty meter of one model.
        measure: Measures one batch; what it returns is merged into that meter.
        title: What tables call the metric; the name where it is empty.
        unit: ``%``, ``dB``, or empty where the unit is the metric's own.
        perfect: The value of a model whose outputs are the reference's, for a metric that compares with the
            reference. None where it has to be measured on the reference.
        output: The output that it compares with the reference's element by element; empty where it does not.
        check_labels: Refuses labels that the metric could not be measured with. It takes a batch that was not
            run, without outputs, and the form of one that was: so what would fail at the end of long work is
            known before it.
        answers: The right answers; None for a metric of which nothing tells what the same answer for every
            sample would give.
    """

    name: str
    relative: bool
    start: Callable[[], Meter]
    measure: Callable[[Batch], Any]
    title: str = ""
    unit: str = ""
    perfect: float | None = None
    output: str = ""
    check_labels: Callable[[Batch, BatchForm], None] = _take_all
    answers: Answers | None = None

    @property
    def on_reference(self) -> bool:
        """Whether the metric is measured on the reference too."""
        return self.perfect is None
