"""Makes a model with Q/DQ pairs of a float model and the calibration cache of its implicit engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from calibrators.display.counts import counted, enumerated
from calibrators.errors import Argument, TableError
from calibrators.tables.table import CalibrationTable
from trtint8.interop.migration import Migration, plan_migration
from trtint8.models.file_names import check_model_name
from trtint8.models.model import Model
from trtint8.models.serialization import save_model
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph


@dataclass(frozen=True, repr=False)
class Migrated:
    """A model that was made from a calibration cache.

    Attributes:
        graph_model: The model with Q/DQ pairs.
        placement: Where the pairs are.
        plan: How the cache and the graph fit together.
    """

    graph_model: ir.Model
    placement: Placement
    plan: Migration

    def __repr__(self) -> str:
        layers = counted(len(self.placement.quantized_nodes), "node")
        missing = len(self.plan.missing)
        without = f", {counted(missing, 'tensor')} without a range in the cache" if missing else ""
        return f"<Migrated: {layers} in INT8{without}>"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the model atomically.

        Raises:
            OutputError: The file cannot be written, or its name does not end in .onnx.
        """
        return save_model(self.graph_model, check_model_name(path))


def migrate(
    prepared: Model, table: CalibrationTable, *, fill: bool = False, keep_float: Sequence[str] = ()
) -> Migrated:
    """Puts the ranges of a calibration cache where Q/DQ pairs need them.

    Args:
        prepared: The float model, from :func:`trtint8.models.model.prepare`.
        table: The ranges of the cache.
        fill: Whether tensors that the cache lacks get the ranges that follow from others.
        keep_float: Names of nodes, or patterns, that stay in float.

    Returns:
        The model with Q/DQ pairs, and how the cache and the graph fit together.

    Raises:
        TableError: The cache lacks ranges, and ``fill`` is false or they do not follow from other ranges.
        ModelError: A pattern matches no node that could be quantized.
    """
    plan = plan_migration(place(prepared.graph_model, keep_float), table.amax)
    if plan.unsolved or (plan.missing and not fill):
        raise TableError(_refusal(plan))
    graph_model, placement = quantize_graph(prepared, table.override(plan.fills), QuantizeOptions(keep_float))
    return Migrated(graph_model, placement, plan)


def _refusal(plan: Migration) -> str:
    named = enumerated(f"'{name}'" for name in plan.unsolved or plan.missing)
    renamed = ""
    if plan.unsolved:
        if plan.unused:
            renamed = f"; it has one for '{plan.unused[0]}', which the model lacks (was a tensor renamed?)"
        advice = "calibrate the model, or add ranges with 'trtint8 table set'"
    else:
        first = plan.proposals[0]
        advice = (
            f"all of them follow from others, like '{first.tensor}' from '{first.source}': pass "
            f"{Argument('fill', 'True')} to take those"
        )
    count = len(plan.unsolved or plan.missing)
    tensors = "1 tensor that needs one" if count == 1 else f"{count} tensors that need one"
    return f"the cache has no range for {tensors}: {named}{renamed}; {advice}"
