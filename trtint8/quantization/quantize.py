"""A float model and a table become a model with Q/DQ pairs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from calibrators.tables.table import CalibrationTable
from trtint8.models.gc_pause import paused_collection
from trtint8.models.model import Model
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.qdq import WeightScales, insert_qdq


@paused_collection()
def quantize_graph(
    prepared: Model,
    table: CalibrationTable,
    keep_float: Sequence[str] = (),
    weight_scales: WeightScales | None = None,
) -> tuple[ir.Model, Placement]:
    """Puts Q/DQ pairs into a prepared model of any size, where TensorRT fuses them.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`; not changed.
        table: The ranges.
        keep_float: Names or patterns.
        weight_scales: Of weights that were quantized before.

    Returns:
        The model with Q/DQ pairs, and where they went.
    """
    graph_model = prepared.graph_model.clone()
    placement = place(graph_model, keep_float)
    table.check_model(prepared.fingerprint, placement.tensors)
    insert_qdq(graph_model, placement, table.amax, weight_scales)
    return graph_model, placement
