"""Reads back what `trtint8 validate`, `bench` and `tune` print as JSON, and the log of `trtint8 tune`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from calibrators import records
from calibrators.errors import TableError
from trtint8.runtime.benchmark import Benchmarks
from trtint8.tuning.tune import TuningLog
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.fidelity import Fidelity


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
        return _accuracy_in(document)
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


@dataclass(frozen=True)
class PrintedTuning:
    """What is read of the output of `trtint8 tune --json`.

    Attributes:
        accuracy: The tuned model beside FP32, on samples that nothing was decided on.
        log: What the search tried, as the file ``*.tuning.json`` has it.
    """

    accuracy: Accuracy
    log: TuningLog


def parse_printed_tuning(document: object, source: str) -> PrintedTuning:
    """Reads the output of `trtint8 tune --json`.

    Args:
        document: The parsed JSON.
        source: What to call it in messages.

    Returns:
        What it says. Values of metrics that are null are as :func:`parse_accuracy` reads them.

    Raises:
        TableError: A field is missing, has the wrong type or exceeds its limits.
    """
    fields = document if isinstance(document, dict) else {}
    files = fields.get("files")
    log = {**fields, "command": files.get("command") if isinstance(files, dict) else None}
    try:
        return PrintedTuning(
            _accuracy_in(fields.get("accuracy")),
            records.to_record(log, TuningLog, numbers_as_text=True, null_as_nan=True),
        )
    except records.RecordError as error:
        raise TableError(f"'{source}' is no output of 'trtint8 tune --json' ({error}); tune again") from error


def _accuracy_in(document: object) -> Accuracy:
    return _with_levels(records.to_record(document, Accuracy, numbers_as_text=True, null_as_nan=True))


def _with_levels(accuracy: Accuracy) -> Accuracy:
    """A comparison with infinite SQNRs where null stood for them: the largest error says which it was."""
    return replace(
        accuracy,
        outputs=tuple(map(_with_level, accuracy.outputs)),
        also={name: _with_levels(other) for name, other in accuracy.also.items()},
    )


def _with_level(output: Fidelity) -> Fidelity:
    if not math.isnan(output.sqnr_db) or math.isnan(output.max_error):
        return output
    return replace(output, sqnr_db=-math.inf if output.max_error else math.inf)
