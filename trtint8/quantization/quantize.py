"""Makes a model with Q/DQ pairs of a float model and a calibration table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from calibrators.tables.table import CalibrationTable
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.model import Model
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.qdq import WeightScales, insert_qdq
from trtint8.quantization.targets import TARGETS, Target


@pause_garbage_collection()
def quantize_graph(
    prepared: Model,
    table: CalibrationTable,
    keep_float: Sequence[str] = (),
    weight_scales: WeightScales | None = None,
    target: Target = TARGETS["tensorrt"],
    largest: Mapping[str, Sequence[int]] | None = None,
) -> tuple[ir.Model, Placement]:
    """Puts Q/DQ pairs into a prepared model of any size, where TensorRT fuses them.

    Args:
        prepared: A model from :func:`trtint8.models.model.prepare`; not changed.
        table: The calibration table.
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        weight_scales: Scales of weights that were quantized before.
        target: What the model is built for.
        largest: Input name to its largest shape, where that is known.

    Returns:
        The model with Q/DQ pairs, and the placement of the pairs.

    Raises:
        ModelError: A pattern matches no node that could be quantized, or the model has no weighted node.
        TableError: The table lacks a range that the placement needs, or was made for another model.
    """
    graph_model = prepared.graph_model.clone()
    placement = place(graph_model, keep_float, target, largest)
    table.check_model(prepared.fingerprint, placement.tensors, tensor_names(graph_model))
    insert_qdq(graph_model, placement, table.amax, weight_scales)
    return graph_model, placement


def tensor_names(graph_model: ir.Model) -> Iterator[str]:
    """Names of the inputs of a graph and of everything that its nodes compute."""
    graph = graph_model.graph
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        if value.name:
            yield value.name
