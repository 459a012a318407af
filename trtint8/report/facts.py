"""Gathers everything that a report says, before it is rendered as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtint8.models.model import load_model
from trtint8.report.bars import Bar, make_bars
from trtint8.report.files import Found
from trtint8.report.headline import Headline, make_headline
from trtint8.report.network import Cell, make_cells
from trtint8.report.provenance import (
    Command,
    commands_for_missing,
    commands_to_rebuild,
    find_mismatches,
    list_provenance,
)
from trtint8.report.tensors import Card, make_cards
from trtint8.report.worst import Worst
from trtint8.sensitivity.results import Sensitivity


@dataclass(frozen=True)
class Report:
    """What a page shows; empty or None where there is nothing to show.

    Attributes:
        title: The name of the model's files.
        headline: The most important figures.
        cells: The weighted layers, in the order of the graph.
        proved: Whether the precisions of the cells come from the engine's own list of layers.
        sensitivity: The sensitivity of all layers.
        bars: The layers, in descending order of their shares of the noise.
        method: The calibration method of the table.
        cards: The tensors that have histograms.
        without_histogram: Number of tensors with a range but no histogram.
        worst: The samples on which INT8 differs most from FP32.
        mismatches: Sentences that name files which do not belong together.
        missing: What a complete report would also show, with the commands that make it.
        provenance: Names and values that identify what was measured.
        rebuild: Commands that make the files again.
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
    """Gathers what a report says.

    Args:
        found: The files to report on, with their contents.
        model: Path of the FP32 model, for its size, its fingerprint and the commands; None where not given.
        worst: The samples on which INT8 differs most from FP32; None where they were not looked for.

    Raises:
        ModelError: A model cannot be read.
    """
    fingerprint = load_model(model).fingerprint if model else None
    qdq = load_model(found.paths["qdq"]).graph_model if "qdq" in found.paths else None
    path = str(model) if model else None
    cards = make_cards(found.table) if found.table else ()
    return Report(
        found.stem,
        make_headline(found, model.stat().st_size if model else None),
        make_cells(qdq, found.engine, found.sensitivity),
        bool(found.engine and found.engine.layers),
        found.sensitivity,
        make_bars(found.sensitivity) if found.sensitivity else (),
        found.table.method if found.table else None,
        cards,
        len(found.table.amax) - len(cards) if found.table else 0,
        worst,
        find_mismatches(found, model_fingerprint=fingerprint),
        commands_for_missing(found, model=path, with_worst=worst is not None),
        list_provenance(found),
        commands_to_rebuild(found, model=path),
    )
