"""What the expansions of integer operators share: pairs, and nodes that take another's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from trtint8.models.graph_constants import constant

#: The types of quantized data.
WHOLE = (ir.DataType.INT8, ir.DataType.UINT8)


class Parameters(NamedTuple):
    """With what a tensor is quantized: scale and zero point, as they stand in the graph."""

    scale: ir.Value
    zero: ir.Value | None


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """An input, or None where a node has fewer."""
    return node.inputs[index] if index < len(node.inputs) else None


def parameters_of(node: ir.Node) -> Parameters | None:
    """Those of a QuantizeLinear, DequantizeLinear or DynamicQuantizeLinear; None for other nodes."""
    if node.op_type == "DynamicQuantizeLinear":
        return Parameters(node.outputs[1], node.outputs[2])
    scale = input_at(node, 1)
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or scale is None:
        return None
    return Parameters(scale, input_at(node, 2))


def agree(first: Parameters, second: Parameters) -> bool:
    """Whether two sets of parameters are the same values, or constants of the same contents."""
    return _same(first.scale, second.scale, 1.0) and _same(first.zero, second.zero, 0)


def _same(first: ir.Value | None, second: ir.Value | None, missing: float) -> bool:
    if first is second:
        return True
    arrays = [np.asarray(missing) if value is None else constant(value) for value in (first, second)]
    left, right = (None if array is None else array.reshape(-1) for array in arrays)
    return left is not None and right is not None and np.array_equal(left, right)


def dequantized(
    reader: ir.Node, data: ir.Value, parameters: Parameters, name: str, axis: int | None = None
) -> ir.Value:
    """What a DequantizeLinear, put before a node, makes of quantized data."""
    inputs = [data, *(value for value in parameters if value is not None)]
    attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
    node = ir.Node("", "DequantizeLinear", inputs, attributes, name=f"{name}_dequantize")
    value = node.outputs[0]
    value.name, value.dtype, value.shape = f"{name}_dequantized", ir.DataType.FLOAT, data.shape
    _graph(reader).insert_before(reader, node)
    return value


def supplant(old: ir.Node, new: ir.Node, pairs: Sequence[Parameters | None]) -> None:
    """Puts a float node where one stood that made whole numbers.

    Args:
        old: Leaves the graph.
        new: With as many outputs.
        pairs: For each output, what quantizes it, or None where it is what the old one was.
    """
    graph = _graph(old)
    graph.insert_after(old, new)
    for before, after, pair in zip(old.outputs, new.outputs, pairs, strict=True):
        if pair is None:
            after.type = before.type
            take_over(before, after)
            continue
        after.name, after.dtype, after.shape = f"{before.name}_float", ir.DataType.FLOAT, before.shape
        inputs = [after, *(value for value in pair if value is not None)]
        quantize = ir.Node("", "QuantizeLinear", inputs, name=f"{before.name}_quantize")
        quantize.outputs[0].type = ir.TensorType(ir.DataType.UINT8) if pair.zero is None else pair.zero.type
        graph.insert_after(new, quantize)
        take_over(before, quantize.outputs[0])
    graph.remove(old, safe=True)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Gives a value the name, the shape and the readers of another."""
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name, old.name = old.name, f"{old.name}_replaced"
    new.name = name
    new.shape = new.shape if old.shape is None else old.shape


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph
