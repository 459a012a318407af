"""The most important figures: accuracy, size, latency, and how many layers run in INT8."""

from __future__ import annotations

from dataclasses import dataclass

from trtint8.report.files import ReportFiles
from trtint8.runtime.benchmark import Benchmarks
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.fidelity import Fidelity, least_faithful
from trtint8.validation.measure import REFERENCE, VALIDATED
from trtint8.validation.significance import Share
from trtint8.validation.wording import accuracy_rows, verdicts


@dataclass(frozen=True)
class Latency:
    """One engine's speed.

    Attributes:
        name: The engine's name.
        batch_size: Samples per inference.
        median_ms: Median latency per inference, in milliseconds.
        p99_ms: 99th percentile of the latency per inference, in milliseconds.
        samples_per_second: Throughput in samples per second.
        speedup: Throughput divided by that of the slowest engine; None for a single engine.
    """

    name: str
    batch_size: int
    median_ms: float
    p99_ms: float
    samples_per_second: float
    speedup: float | None


@dataclass(frozen=True)
class Headline:
    """The most important figures of a report; None for what is not known.

    Attributes:
        samples: Number of held-out samples that accuracy was measured on.
        description: How the INT8 model was run to measure accuracy, in words.
        reference_top1: FP32's share of samples with the right class.
        top1: INT8's share of samples with the right class.
        agreement: Share of samples where INT8 gives FP32's class.
        lowest: The output, or part of one, with the lowest SQNR.
        first_row: The row of the first metric for INT8 where it is not one of a classifier: its title, the
            value for FP32 (empty where it compares with FP32) and the value for INT8; else None.
        chosen: Which metrics were chosen by the shapes of the outputs, and why, in words.
        verdicts: One sentence per comparison, the one on top-1 first where there is one.
        columns: Names of the models in ``rows``.
        rows: One row per metric, as texts: the metric's name and one value per model.
        in_int8: Number of weighted layers that run in INT8, and number of weighted layers.
        weights_bytes: Size of the engine's weights in bytes.
        engine_bytes: Size of the engine file in bytes.
        qdq_bytes: Size of the Q/DQ model in bytes, with its weights in other files.
        model_bytes: Size of the FP32 model in bytes, with its weights in other files.
        gpu: Name of the GPU that latency was measured on.
        bench_inputs: The data that latency was measured with, or ``random``.
        latencies: The speed of each engine.
    """

    samples: int | None
    description: str | None
    reference_top1: Share | None
    top1: Share | None
    agreement: Share | None
    lowest: Fidelity | None
    first_row: tuple[str, str, str] | None
    chosen: str | None
    verdicts: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    in_int8: tuple[int, int] | None
    weights_bytes: int | None
    engine_bytes: int | None
    qdq_bytes: int | None
    model_bytes: int | None
    gpu: str | None
    bench_inputs: str | None
    latencies: tuple[Latency, ...]


def make_headline(
    files: ReportFiles, model_bytes: int | None = None, qdq_bytes: int | None = None
) -> Headline:
    """Gathers the most important figures.

    Args:
        files: The files to report on, with their contents.
        model_bytes: Size of the FP32 model in bytes; None where it is not known.
        qdq_bytes: Size of the Q/DQ model in bytes; None where there is none.
    """
    accuracy, engine, bench = files.accuracy, files.engine, files.bench
    return Headline(
        accuracy.samples if accuracy else None,
        accuracy.judged if accuracy else None,
        accuracy.reference_top1 if accuracy else None,
        accuracy.top1 if accuracy else None,
        accuracy.agreement if accuracy else None,
        least_faithful(accuracy.outputs) if accuracy else None,
        _first_row(accuracy) if accuracy else None,
        accuracy.chosen if accuracy else None,
        tuple(verdicts(accuracy, VALIDATED)) if accuracy else (),
        (REFERENCE, VALIDATED, *(accuracy.also if accuracy else ())),
        tuple(accuracy_rows(accuracy)) if accuracy else (),
        engine.int8_layers if engine else None,
        engine.weights_bytes if engine else None,
        files.paths["engine"].stat().st_size if "engine" in files.paths else None,
        qdq_bytes,
        model_bytes,
        bench.gpu if bench else None,
        bench.inputs if bench else None,
        list_latencies(bench) if bench else (),
    )


def _first_row(accuracy: Accuracy) -> tuple[str, str, str] | None:
    """The first metric of a network that is no classifier."""
    if not accuracy.measures or accuracy.top1 or accuracy.agreement:
        return None
    title, reference, value, *_ = accuracy_rows(accuracy)[0]
    return title, reference, value


def list_latencies(bench: Benchmarks) -> tuple[Latency, ...]:
    """The speed of each engine, in the order in which they were measured."""
    slowest = min((report.samples_per_second for report in bench.reports), default=0.0)
    several = len(bench.reports) > 1
    return tuple(
        Latency(
            report.name,
            report.batch_size,
            report.phases["latency"].median,
            report.phases["latency"].p99,
            report.samples_per_second,
            report.samples_per_second / slowest if several else None,
        )
        for report in bench.reports
    )
