"""Everything that a report says, before it becomes a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtint8.models.model import load_model
from trtint8.report.bars import Bar, bars
from trtint8.report.files import Found
from trtint8.report.headline import Headline, headline
from trtint8.report.network import Cell, cells
from trtint8.report.provenance import Command, facts, mismatches, missing, rebuild
from trtint8.report.tensors import Card, cards
from trtint8.report.worst import Worst
from trtint8.sensitivity.results import Sensitivity


@dataclass(frozen=True)
class Report:
    """What a page shows; empty or None where there is nothing.

    Attributes:
        title: What the model is called.
        headline: The first lines.
        cells: The network as a strip.
        proved: Whether the precisions in the strip are the engine's own.
        sensitivity: Totals of the sensitivity.
        bars: Its layers, the worst first.
        method: How ranges were chosen.
        cards: The tensors.
        without_histogram: Tensors whose range is known and their histogram is not.
        worst: The samples that INT8 hurts most.
        mismatches: What does not belong together.
        missing: What a full report would have too.
        provenance: Names and values.
        rebuild: Commands that make it all again.
    """

    title: str
    headline: Headline
    cells: tuple[Cell, ...]
    proved: bool
    sensitivity: Sensitivity | None
    bars: tuple[Bar, ...]
    method: str | None
    cards: tuple[Card, ...]
    without_histogram: int
    worst: Worst | None
    mismatches: tuple[str, ...]
    missing: tuple[Command, ...]
    provenance: tuple[tuple[str, str], ...]
    rebuild: tuple[Command, ...]


def gather(found: Found, *, model: Path | None = None, worst: Worst | None = None) -> Report:
    """Computes what a report says.

    Args:
        found: The files.
        model: The FP32 model, where it is at hand: for its size, its fingerprint and the commands.
        worst: The samples that INT8 hurts most.

    Raises:
        ModelError: A model cannot be read.
    """
    fingerprint = load_model(model).fingerprint if model else None
    qdq = load_model(found.paths["qdq"]).graph_model if "qdq" in found.paths else None
    path = str(model) if model else None
    shown = cards(found.table) if found.table else ()
    return Report(
        found.stem,
        headline(found, model.stat().st_size if model else None),
        cells(qdq, found.engine, found.sensitivity),
        bool(found.engine and found.engine.layers),
        found.sensitivity,
        bars(found.sensitivity) if found.sensitivity else (),
        found.table.method if found.table else None,
        shown,
        len(found.table.amax) - len(shown) if found.table else 0,
        worst,
        mismatches(found, model_fingerprint=fingerprint),
        missing(found, model=path, with_worst=worst is not None),
        facts(found),
        rebuild(found, model=path),
    )
