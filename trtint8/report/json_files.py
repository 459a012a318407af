"""Reads back what `trtint8 validate` and `trtint8 bench` print as JSON, and the log of `trtint8 tune`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from calibrators import records
from calibrators.errors import TableError
from calibrators.records import PositiveCount
from trtint8.runtime.benchmark import Benchmarks
from trtint8.tuning.tune import TuningLog
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.judgement import Judgement
from trtint8.validation.measure import Measure
from trtint8.validation.significance import Comparison, Share


@dataclass(frozen=True)
class _FidelityRecord:
    """A :class:`Fidelity` as it is printed: null where a number is not finite."""

    name: str
    sqnr_db: float | None
    cosine: float | None
    max_error: records.NonNegative | None
    token_cosine: float | None

    def value(self) -> Fidelity:
        largest = _or_nan(self.max_error)
        # The number that became null is not in the file; the largest error says which one it was.
        null = math.inf if largest == 0 else (math.nan if math.isnan(largest) else -math.inf)
        sqnr = null if self.sqnr_db is None else self.sqnr_db
        return Fidelity(self.name, sqnr, _or_nan(self.cosine), largest, self.token_cosine)


#: A metric's value as it is printed: null where it is not a number, or where there is none.
_Value: TypeAlias = Share | float | Literal["inf", "-inf"] | None


@dataclass(frozen=True)
class _MeasureRecord:
    """A :class:`Measure` as it is printed."""

    name: str
    value: _Value
    reference: _Value
    comparisons: tuple[Comparison, ...]
    title: str = ""
    unit: str = ""
    perfect: float | None = None

    def measure(self) -> Measure:
        return Measure(
            self.name,
            _or_nan(_number(self.value)),
            _number(self.reference),
            self.comparisons,
            self.title,
            self.unit,
            self.perfect,
        )


@dataclass(frozen=True)
class _AccuracyRecord:
    """An :class:`Accuracy` as it is printed."""

    judged: str
    samples: PositiveCount
    top1: Share | None
    top5: Share | None
    reference_top1: Share | None
    reference_top5: Share | None
    agreement: Share | None
    outputs: tuple[_FidelityRecord, ...]
    measures: tuple[_MeasureRecord, ...]
    also: Mapping[str, _AccuracyRecord]
    chosen: str | None = None
    judgement: Judgement | None = None

    def value(self) -> Accuracy:
        return Accuracy(
            self.judged,
            self.samples,
            self.top1,
            self.top5,
            self.reference_top1,
            self.reference_top5,
            self.agreement,
            tuple(output.value() for output in self.outputs),
            tuple(record.measure() for record in self.measures),
            {name: other.value() for name, other in self.also.items()},
            self.chosen,
            self.judgement,
        )


def parse_accuracy(document: object, source: str) -> Accuracy:
    """Reads the output of `trtint8 validate --json`.

    Args:
        document: The parsed JSON.
        source: What to call it in messages.

    Returns:
        The comparison. JSON has no infinities: an SQNR that is null is infinite where the outputs were
        equal, and NaN where an output of a model had one. Other metrics are null where they are NaN.

    Raises:
        TableError: A field is missing, has the wrong type or exceeds its limits.
    """
    try:
        return records.to_record(document, _AccuracyRecord).value()
    except records.RecordError as error:
        raise TableError(
            f"'{source}' is no output of 'trtint8 validate --json' ({error}); validate again"
        ) from error


def parse_benchmark(document: object, source: str) -> Benchmarks:
    """Reads the output of `trtint8 bench --json`.

    Args:
        document: The parsed JSON.
        source: What to call it in messages.

    Raises:
        TableError: A field is missing, has the wrong type or exceeds its limits.
    """
    try:
        return records.to_record(document, Benchmarks)
    except records.RecordError as error:
        raise TableError(
            f"'{source}' is no output of 'trtint8 bench --json' ({error}); measure again"
        ) from error


def parse_tuning_log(document: object, source: str) -> TuningLog:
    """Reads the file ``*.tuning.json`` that `trtint8 tune` writes.

    Args:
        document: The parsed JSON.
        source: What to call it in messages.

    Raises:
        TableError: A field is missing, has the wrong type or exceeds its limits.
    """
    try:
        return records.to_record(document, TuningLog, numbers_as_text=True)
    except records.RecordError as error:
        raise TableError(f"'{source}' is no log of 'trtint8 tune' ({error}); tune again") from error


def _number(value: _Value) -> Share | float | None:
    return float(value) if isinstance(value, str) else value


_T = TypeVar("_T")


def _or_nan(value: _T | None) -> _T | float:
    return math.nan if value is None else value
