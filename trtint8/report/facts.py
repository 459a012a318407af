"""Gathers everything that a report says, before it is rendered as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calibrators.display.cards import Card
from trtint8.models.model import Model
from trtint8.report.files import ReportFiles, find_origins, load_original, was_not_used
from trtint8.report.graph import NetworkGraph, make_graph
from trtint8.report.headline import Headline
from trtint8.report.layers import (
    AuditSummary,
    Bar,
    Cell,
    KernelTable,
    SpeedRow,
    Tried,
    make_audit_summary,
    make_bars,
    make_cards,
    make_cells,
    make_kernel_table,
    make_speed_rows,
    make_tried,
)
from trtint8.report.provenance import (
    Command,
    commands_for_missing,
    commands_to_rebuild,
    find_mismatches,
    list_provenance,
)
from trtint8.report.worst import Worst


@dataclass(frozen=True)
class Report:
    """What a page shows; empty or None where there is nothing to show.

    Attributes:
        files: The files to report on, with their contents.
        headline: The most important figures.
        cells: The weighted layers, in the order of the graph.
        graph: The operators and the tensors between them; None where no model has them.
        kernels: The kernels of the engine by part; None where they are not listed.
        speed: The measured speed of each engine, beside the audit's figures; empty where none was measured.
        audit: What an audit says of FP32, FP16 and INT8 engines; None without an audit.
        bars: The layers, in descending order of their shares of the noise.
        cards: The tensors that have histograms.
        worst: The samples on which INT8 differs most from FP32.
        tried: What `trtint8 tune` tried; None where it was not tuned.
        mismatches: Sentences that name files which do not belong together.
        missing: What a complete report would also show, with the commands that make it.
        provenance: Names and values that identify what was measured.
        rebuild: Commands that make the files again.
    """

    files: ReportFiles
    headline: Headline
    cells: tuple[Cell, ...]
    graph: NetworkGraph | None
    kernels: KernelTable | None
    speed: tuple[SpeedRow, ...]
    audit: AuditSummary | None
    bars: tuple[Bar, ...]
    cards: tuple[Card, ...]
    worst: Worst | None
    tried: Tried | None
    mismatches: tuple[str, ...]
    missing: tuple[Command, ...]
    provenance: tuple[tuple[str, str], ...]
    rebuild: tuple[Command, ...]

    @property
    def proved(self) -> bool:
        """Whether the precisions of the cells come from the engine's own list of layers."""
        return bool(self.files.engine and self.files.engine.layers)

    @property
    def without_histogram(self) -> int:
        """Number of tensors with a range but no histogram."""
        return len(self.files.table.amax) - len(self.cards) if self.files.table else 0


def gather(files: ReportFiles, *, model: Path | None = None, worst: Worst | None = None) -> Report:
    """Gathers what a report says.

    Args:
        files: The files to report on, with their contents.
        model: Path of the FP32 model, for its size, its fingerprint and the commands; None where not given.
        worst: The samples on which INT8 differs most from FP32; None where they were not looked for.

    Raises:
        ModelError: A model cannot be read, or the one given as FP32 holds Q/DQ pairs.
        EngineError: The engine was built from another Q/DQ model.
    """
    original = load_original(model) if model else None
    loaded = files.qdq_model()
    qdq = loaded.graph_model if loaded else None
    # Without a Q/DQ model only the engine's own list says what the layers of the float model became.
    listed = original.graph_model if original and files.engine and files.engine.layers else None
    path = str(model) if model else None
    return Report(
        files,
        headline=Headline(
            files,
            model_bytes=_bytes_of(model, original) if model and original else None,
            qdq_bytes=_bytes_of(files.paths["qdq"], loaded) if loaded else None,
        ),
        cells=make_cells(qdq, files.engine, files.sensitivity),
        graph=make_graph(qdq or listed, files.engine, files.sensitivity),
        kernels=make_kernel_table(files.engine),
        speed=make_speed_rows(files),
        audit=make_audit_summary(files.audit),
        bars=make_bars(files.sensitivity) if files.sensitivity else (),
        cards=make_cards(files.table) if files.table else (),
        worst=worst,
        tried=make_tried(files.tuning),
        mismatches=find_mismatches(
            files,
            model_fingerprint=original.fingerprint if original else None,
            qdq_fingerprint=loaded.fingerprint if loaded else None,
            origins=find_origins(files, original, loaded),
            table_was_used=not was_not_used(files.table, files.engine, loaded),
        ),
        missing=commands_for_missing(files, model=path, with_worst=worst is not None),
        provenance=list_provenance(files),
        rebuild=commands_to_rebuild(files, model=path),
    )


def _bytes_of(path: Path, model: Model) -> int:
    """The size of a model's file and of the files with its weights, in bytes."""
    return sum(file.stat().st_size for file in (path, *model.data_files))
