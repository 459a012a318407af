"""Makes a model with Q/DQ pairs of a float model and a calibration table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from calibrators.tables.table import CalibrationTable
from calibrators.user_warnings import warn_user
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.inner_graphs import graph_values
from trtint8.models.model import Model
from trtint8.models.origin import record_calibration
from trtint8.quantization.float16.convert import to_float16
from trtint8.quantization.float16.one_scale import dequantize_by_one_scale
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
    *,
    float16: bool = False,
    keep_int8: Sequence[str] = (),
) -> tuple[ir.Model, Placement]:
    """Puts Q/DQ pairs into a prepared model of any size, where TensorRT fuses them.

    Args:
        prepared: A model from :func:`trtint8.models.model.prepare`; not changed.
        table: The calibration table.
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        weight_scales: Scales of weights that were quantized before.
        target: What the model is built for.
        largest: Input name to its largest shape, where that is known.
        float16: Whether :func:`with_float16` converts the rest, so that layers stay in float that are
            estimated to be slower in INT8 than in FP16.
        keep_int8: Names of nodes, or patterns, that are in INT8 although that is estimated to be slower.

    Returns:
        The model with Q/DQ pairs, and the placement of the pairs.

    Raises:
        ModelError: A pattern matches no node that could be quantized, or the model has no weighted node.
        TableError: The table lacks a range that the placement needs, or was made for another model.
    """
    graph_model = prepared.graph_model.clone()
    placement = place(graph_model, keep_float, target, largest, float16=float16, keep_int8=keep_int8)
    table.check_model(prepared.fingerprint, placement.tensors, tensor_names(graph_model))
    insert_qdq(graph_model, placement, table.amax, weight_scales)
    record_calibration(graph_model, table.provenance.data, table.provenance.samples)
    return graph_model, placement


def warn_of_no_int8(placement: Placement, target: Target) -> None:
    """Warns where all layers that could be in INT8 are in FP16, because INT8 is estimated to be slower."""
    if placement.all_slower:
        warn_user(
            f"INT8 would be slower than FP16 in all layers that target '{target.name}' runs in INT8, so the "
            "whole model is FP16; 'trtint8 audit' shows why, and keep_int8 quantizes layers all the same"
        )


def with_float16(
    quantized: ir.Model, target: Target, *, float32_io: bool, peaks: Mapping[str, float], name: str
) -> tuple[ir.Model, dict[str, str]]:
    """Converts what is outside INT8 to FP16, in the form in which a target runs it with the fewest bytes.

    Args:
        quantized: A model from :func:`quantize_graph`; not changed.
        target: What the model is built for.
        float32_io: Whether the model's own inputs and outputs stay float32.
        peaks: Tensor name to the largest magnitude seen in it; may lack tensors.
        name: The model's name in messages.

    Returns:
        The new model, and the names of the nodes that stay in FP32, with the reasons.

    Raises:
        ModelError: ONNX cannot convert it to an opset with FP16 scales.
    """
    converted, kept = to_float16(quantized, float32_io=float32_io, peaks=peaks, name=name)
    if target.one_scale_with_float16:
        dequantize_by_one_scale(converted, peaks)
    return converted, kept


def tensor_names(graph_model: ir.Model) -> Iterator[str]:
    """Names of the inputs of a graph and of everything that its nodes compute."""
    for value in graph_values(graph_model.graph):
        if value.name:
            yield value.name
