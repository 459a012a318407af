"""What the kernels of the engine are for, and what an audit says of INT8 beside FP32 and FP16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrators.data.inputs import shape_text
from trtint8.auditing.results import Audit, AuditedEngine
from trtint8.engine.file import EngineInfo
from trtint8.engine.parts import PARTS
from trtint8.engine.traffic import PartTotal, Traffic, total_traffic
from trtint8.report.text import duration, size

#: What is shown where an engine has no kernels of a part.
_NONE = ""


@dataclass(frozen=True)
class KernelTable:
    """A table of texts.

    Attributes:
        columns: The headings of the columns, without that of the first one.
        rows: The rows: a name and one text per column.
        total: The last row, which sums up the others.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...]


@dataclass(frozen=True)
class AuditSummary:
    """What an audit says.

    Attributes:
        verdict: What INT8 changes beside FP16, in one sentence without a full stop.
        gpu: The name of the GPU that times are estimated for.
        shapes: The shapes of the model's inputs, in words.
        kernels: The number of kernels of each engine by part.
        traffic: What they read and write, by part.
        seconds: The estimated times, by part.
    """

    verdict: str
    gpu: str
    shapes: str
    kernels: KernelTable
    traffic: KernelTable
    seconds: KernelTable


def make_kernel_table(engine: EngineInfo | None) -> KernelTable | None:
    """The kernels of the engine by part, with what they read and write; None where they are not listed."""
    parts = engine.parts if engine else ()
    if not parts:
        return None
    whole = PartTotal("all", sum(part.kernels for part in parts), total_traffic(p.traffic for p in parts))
    rows = tuple(map(_part_row, parts))
    return KernelTable(("kernels", "read", "written"), rows, _part_row(whole))


def make_audit_summary(audit: Audit | None) -> AuditSummary | None:
    """What an audit says; None where there is none."""
    if audit is None:
        return None
    engines = audit.engines
    totals = [engine.seconds for engine in engines]
    columns = tuple(engine.precision for engine in engines)
    parts = [name for name in PARTS if any(engine.part(name).kernels for engine in engines)]
    return AuditSummary(
        audit.verdict,
        audit.gpu.name,
        ", ".join(f"{name} {shape_text(shape, '×')}" for name, shape in audit.shapes.items()),
        KernelTable(
            columns,
            tuple((name, *(str(e.part(name).kernels or _NONE) for e in engines)) for name in parts),
            ("all", *(str(len(engine.kernels)) for engine in engines)),
        ),
        KernelTable(
            columns,
            tuple((name, *_moved_by(engines, name)) for name in parts),
            ("all", *(_moved(engine.traffic) for engine in engines)),
        ),
        KernelTable(
            columns,
            tuple((name, *_taken_by(engines, name, totals)) for name in parts),
            ("all", *(duration(seconds, totals) for seconds in totals)),
        ),
    )


def _part_row(part: PartTotal) -> tuple[str, ...]:
    traffic = part.traffic
    return (
        part.part,
        str(part.kernels),
        size(traffic.read if traffic else None),
        size(traffic.written if traffic else None),
    )


def _moved_by(engines: Sequence[AuditedEngine], name: str) -> list[str]:
    parts = [engine.part(name) for engine in engines]
    return [_moved(part.traffic) if part.kernels else _NONE for part in parts]


def _taken_by(engines: Sequence[AuditedEngine], name: str, totals: Sequence[float | None]) -> list[str]:
    parts = [engine.part(name) for engine in engines]
    return [duration(part.seconds, totals) if part.kernels else _NONE for part in parts]


def _moved(traffic: Traffic | None) -> str:
    return size(traffic.total if traffic else None)
