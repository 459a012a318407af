"""What a reader wants to know first: accuracy, size, latency, and how much of it runs in INT8."""

from __future__ import annotations

from dataclasses import dataclass

from trtint8.report.files import Found
from trtint8.report.json_files import Benchmark
from trtint8.validation.accuracy import VALIDATED
from trtint8.validation.significance import Share
from trtint8.validation.wording import accuracy_rows, verdicts


@dataclass(frozen=True)
class Latency:
    """One engine's speed.

    Attributes:
        name: The engine.
        batch_size: Samples an inference.
        median_ms: Of the latency of a batch.
        p99_ms: The same, the slowest hundredth left out.
        samples_per_second: Throughput.
        speedup: Throughput over the slowest engine's; None for a single engine.
    """

    name: str
    batch_size: int
    median_ms: float
    p99_ms: float
    samples_per_second: float
    speedup: float | None


@dataclass(frozen=True)
class Headline:
    """The first lines of a report; None for what is not known.

    Attributes:
        samples: How many held-out samples accuracy was measured on.
        judged: What stood for the INT8 model there.
        reference_top1: FP32's share of right classes.
        top1: INT8's.
        agreement: Share of samples with FP32's class.
        sqnr_db: Of the first output.
        verdicts: A sentence a comparison, the one on top-1 first where there is one.
        columns: Names of the models in ``rows``.
        rows: Every metric, as texts: its name and a value a model.
        in_int8: Weighted layers that run in INT8, and how many were meant to.
        weights_bytes: Size of the engine's weights.
        engine_bytes: Size of the engine file.
        qdq_bytes: Size of the Q/DQ model's file.
        model_bytes: Size of the FP32 model's file.
        gpu: Where latency was measured.
        bench_inputs: On which data.
        latencies: One an engine.
    """

    samples: int | None
    judged: str | None
    reference_top1: Share | None
    top1: Share | None
    agreement: Share | None
    sqnr_db: float | None
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

    @property
    def drop_points(self) -> float | None:
        """INT8's top-1 less FP32's, in percentage points."""
        if self.top1 is None or self.reference_top1 is None:
            return None
        return 100 * (self.top1.value - self.reference_top1.value)


def headline(found: Found, model_bytes: int | None = None) -> Headline:
    """Gathers the first lines.

    Args:
        found: What there is.
        model_bytes: Size of the FP32 model's file, where it is known.
    """
    accuracy, engine, bench = found.accuracy, found.engine, found.bench
    sizes = {kind: path.stat().st_size for kind, path in found.paths.items()}
    return Headline(
        accuracy.samples if accuracy else None,
        accuracy.judged if accuracy else None,
        accuracy.reference_top1 if accuracy else None,
        accuracy.top1 if accuracy else None,
        accuracy.agreement if accuracy else None,
        accuracy.outputs[0].sqnr_db if accuracy and accuracy.outputs else None,
        tuple(verdicts(accuracy, VALIDATED)) if accuracy else (),
        ("FP32", VALIDATED, *(accuracy.also if accuracy else ())),
        tuple(accuracy_rows(accuracy)) if accuracy else (),
        engine.int8_layers if engine else None,
        engine.weights_bytes if engine else None,
        sizes.get("engine"),
        sizes.get("qdq"),
        model_bytes,
        bench.gpu if bench else None,
        bench.inputs if bench else None,
        latencies(bench) if bench else (),
    )


def latencies(bench: Benchmark) -> tuple[Latency, ...]:
    """One an engine, in the order in which they were measured."""
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
