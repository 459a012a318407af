"""Reads back what `trtint8 validate --json` and `trtint8 bench --json` print."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrators.errors import TableError
from trtint8.runtime.bench import BenchReport, Summary
from trtint8.validation.accuracy import Accuracy, Measure
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.significance import Comparison, Share


@dataclass(frozen=True)
class Benchmark:
    """What one run of `trtint8 bench` measured.

    Attributes:
        gpu: Name of the GPU.
        inputs: The data, or ``random``.
        reports: One an engine.
    """

    gpu: str
    inputs: str
    reports: tuple[BenchReport, ...]


def parse_accuracy(document: Mapping[str, Any], source: str) -> Accuracy:
    """Reads the output of `trtint8 validate --json`.

    Args:
        document: The parsed JSON.
        source: What to call it in messages.

    Returns:
        The comparison. JSON has no infinities: an SQNR that is null is infinite where the outputs were
        equal, and NaN where a model gave one.

    Raises:
        TableError: A field is missing or has the wrong type.
    """
    try:
        return _accuracy(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TableError(
            f"'{source}' is no output of 'trtint8 validate --json' ({type(error).__name__}: {error}); "
            "validate again"
        ) from error


def parse_benchmark(document: Mapping[str, Any], source: str) -> Benchmark:
    """Reads the output of `trtint8 bench --json`.

    Args:
        document: The parsed JSON.
        source: What to call it in messages.

    Raises:
        TableError: A field is missing or has the wrong type.
    """
    try:
        reports = tuple(map(_bench_report, document["reports"]))
        return Benchmark(str(document["gpu"]), str(document["inputs"]), reports)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TableError(
            f"'{source}' is no output of 'trtint8 bench --json' ({type(error).__name__}: {error}); "
            "measure again"
        ) from error


def _accuracy(entry: Mapping[str, Any]) -> Accuracy:
    return Accuracy(
        str(entry["judged"]),
        int(entry["samples"]),
        _share(entry["top1"]),
        _share(entry["top5"]),
        _share(entry["reference_top1"]),
        _share(entry["reference_top5"]),
        _share(entry["agreement"]),
        tuple(map(_fidelity, entry["outputs"])),
        tuple(map(_measure, entry["measures"])),
        {name: _accuracy(other) for name, other in entry["also"].items()},
    )


def _share(entry: Mapping[str, Any] | None) -> Share | None:
    return None if entry is None else Share.from_dict(entry)


def _fidelity(entry: Mapping[str, Any]) -> Fidelity:
    largest = _number(entry["max_error"])
    # The sums that gave the null are gone; the largest error tells which case it was.
    sqnr = math.inf if largest == 0 else (math.nan if math.isnan(largest) else -math.inf)
    tokens = entry["token_cosine"]
    return Fidelity(
        str(entry["name"]),
        sqnr if entry["sqnr_db"] is None else float(entry["sqnr_db"]),
        _number(entry["cosine"]),
        largest,
        None if tokens is None else float(tokens),
    )


def _measure(entry: Mapping[str, Any]) -> Measure:
    value = _value(entry["value"])
    compared = tuple(map(Comparison.from_dict, entry["comparisons"]))
    reference = entry["reference"]
    return Measure(
        str(entry["name"]),
        math.nan if value is None else value,
        None if reference is None else _value(reference),
        compared,
    )


def _value(entry: Mapping[str, Any] | float | None) -> Share | float | None:
    return _share(entry) if isinstance(entry, Mapping) else (None if entry is None else float(entry))


def _bench_report(entry: Mapping[str, Any]) -> BenchReport:
    return BenchReport(
        str(entry["name"]),
        int(entry["batch_size"]),
        bool(entry["transfers"]),
        bool(entry["cuda_graph"]),
        int(entry["inferences"]),
        float(entry["seconds"]),
        {phase: Summary(**times) for phase, times in entry["phases"].items()},
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
