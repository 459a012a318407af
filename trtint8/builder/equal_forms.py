"""Writes what TensorRT refuses in forms that compute the same, and that it takes.

A scale must be positive for TensorRT, and exporters give weights that were pruned to 0 the scale 0. TensorRT
for RTX 1.7 fails inside ("same_symbolic_shapes") where one number multiplies the output of an INT8
convolution.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calibrators.errors import ModelError
from trtint8.interop.pairs import dequantizer_behind, input_at
from trtint8.interop.stored_integers import float_values
from trtint8.models.graph_constants import is_constant, read_constant, set_constant_input, value_names


def with_equal_forms(graph_model: ir.Model) -> ir.Model:
    """Returns a model that computes the same to the last bit, in the forms that TensorRT takes.

    Args:
        graph_model: A model with or without Q/DQ pairs; not changed.

    Returns:
        The model itself, where nothing is to be changed, or a copy. Weights that are 0 have a scale of 1 in
        place of 0. A constant that multiplies the output of an INT8 convolution has a value per channel in
        place of one.
    """
    nodes = list(graph_model.graph)
    if not any(map(_has_free_zeros, nodes)) and not any(map(_channels_of_factor, nodes)):
        return graph_model
    changed = graph_model.clone()
    names = value_names(changed.graph)
    # Both nodes of a pair are looked at before either is changed.
    for node in [node for node in changed.graph if _has_free_zeros(node)]:
        scale = node.inputs[1]
        values = read_constant(scale)
        assert values is not None
        set_constant_input(node, 1, np.where(values == 0, values.dtype.type(1), values), names)
    for node in changed.graph:
        if (found := _channels_of_factor(node)) is not None:
            index, shape = found
            factor = read_constant(node.inputs[index])
            assert factor is not None
            set_constant_input(node, index, np.full(shape, factor.reshape(())), names)
    return changed


def _has_free_zeros(node: ir.Node) -> bool:
    """Whether a node of a pair has scales of 0, and only for weights that are 0 with any scale."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.domain != "":
        return False
    source, scale = node.inputs[0], read_constant(input_at(node, 1))
    if scale is None or scale.all():
        return False
    quantize = source.producer() if source is not None else None
    if node.op_type == "DequantizeLinear" and quantize is not None and quantize.op_type == "QuantizeLinear":
        return _has_free_zeros(quantize)
    weights, point = read_constant(source), read_constant(input_at(node, 2))
    if weights is None:
        return False
    if point is None or node.op_type == "QuantizeLinear":
        point = np.zeros(1, np.int64)
    try:
        left = float_values(node, weights, (scale == 0).astype(np.float32).reshape(-1), point.reshape(-1))
    except ModelError:  # the scales do not fit, as the parser says
        return False
    return not left.any()


def _channels_of_factor(node: ir.Node) -> tuple[int, tuple[int, ...]] | None:
    """The shape that one number gets which multiplies the output of an INT8 convolution.

    Returns:
        The index of the input that is the number, and the shape; None of other nodes.
    """
    if node.op_type != "Mul" or node.domain != "":
        return None
    for index in (0, 1):
        factor, channels = read_constant(node.inputs[index]), _channels(node.inputs[1 - index])
        if factor is not None and factor.size == 1 and channels and factor.ndim <= len(channels) + 1:
            return index, channels
    return None


def _channels(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of a value per channel of the INT8 convolution that computes a value; else nothing."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.domain != "" or node.op_type not in ("Conv", "ConvTranspose"):
        return ()
    data, weights = (dequantizer_behind(operand) for operand in node.inputs[:2])
    if data is None or weights is None or weights[1] is not None:
        return ()
    stored = weights[0].inputs[0]
    quantize = stored.producer() if stored is not None else None
    if quantize is not None and quantize.op_type == "QuantizeLinear":
        stored = quantize.inputs[0]
    if not is_constant(stored) or stored is None or stored.shape is None:
        return ()
    shape = stored.shape.numpy()
    channels = shape[0] if node.op_type == "Conv" else shape[1] * node.attributes.get_int("group", 1)
    return (channels, *[1] * (len(shape) - 2))
