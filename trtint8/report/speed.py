"""The measured speed of engines, beside what an audit says of the same precisions."""

from __future__ import annotations

from dataclasses import dataclass

from trtint8.auditing.results import Audit, AuditedEngine
from trtint8.report.files import ReportFiles
from trtint8.runtime.bench import BenchReport


@dataclass(frozen=True)
class SpeedRow:
    """One engine that was measured.

    Attributes:
        measured: Its measured latency and throughput.
        speedup: Throughput divided by that of the slowest engine; None for a single engine.
        moved_bytes: Bytes that an audit says it reads and writes per inference, for the audit's shapes; None
            where no audit has an engine of its precision.
        seconds: The time that the audit estimates per inference, in seconds; None where it has none.
    """

    measured: BenchReport
    speedup: float | None
    moved_bytes: int | None
    seconds: float | None


def make_speed_rows(files: ReportFiles) -> tuple[SpeedRow, ...]:
    """One row per engine that was measured, in the order in which they were measured.

    An audit's engine of the same precision is that of the name, ``FP32`` or ``FP16``; for the engine that the
    report is about it is the audit's INT8 engine.
    """
    if files.bench is None:
        return ()
    own = files.paths["engine"].name if "engine" in files.paths else None
    slowest = min((report.samples_per_second for report in files.bench.reports), default=0.0)
    several = len(files.bench.reports) > 1
    rows = []
    for report in files.bench.reports:
        audited = _audited(files.audit, report.name, is_own=report.name == own)
        traffic = audited.traffic if audited else None
        rows.append(
            SpeedRow(
                report,
                report.samples_per_second / slowest if several else None,
                traffic.total if traffic else None,
                audited.seconds if audited else None,
            )
        )
    return tuple(rows)


def _audited(audit: Audit | None, name: str, *, is_own: bool) -> AuditedEngine | None:
    """The audit's engine that is built like one that was measured."""
    if audit is None:
        return None
    alike = [
        engine
        for engine in audit.engines
        if engine.precision == name or (is_own and engine.precision.startswith("INT8"))
    ]
    return alike[-1] if alike else None
