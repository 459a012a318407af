"""What the expansions of integer operators share: reading and inserting pairs, replacing nodes and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import operator_of
from trtint8.models.graph_constants import add_initializer, is_constant, read_constant
from trtint8.models.inner_graphs import holds_graphs
from trtint8.quantization.targets import TARGETS

#: Operators behind which a layer still reads the integers of a pair, where that was seen.
_READ_THROUGH = TARGETS["rtx"].reads_through or frozenset()

#: Values that are followed from weights back to constants; from an activation it would be all of a model.
_MOST_BEHIND_WEIGHTS = 64

#: The types of quantized data.
INTEGER_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


class Parameters(NamedTuple):
    """The parameters with which a tensor is quantized, as values of the graph.

    Attributes:
        scale: The scale.
        zero_point: The zero point; None for 0.
    """

    scale: ir.Value
    zero_point: ir.Value | None


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node, or None where the node has fewer inputs or leaves this one out."""
    return node.inputs[index] if index < len(node.inputs) else None


def read_parameters(node: ir.Node) -> Parameters | None:
    """The parameters of a QuantizeLinear, DequantizeLinear or DynamicQuantizeLinear; None for other nodes."""
    if node.op_type == "DynamicQuantizeLinear":
        return Parameters(node.outputs[1], node.outputs[2])
    scale = input_at(node, 1)
    if not operator_of(node).half_of_pair or scale is None:
        return None
    return Parameters(scale, input_at(node, 2))


def quantized_type(node: ir.Node) -> ir.DataType | None:
    """The type of the data that a QuantizeLinear writes or a DequantizeLinear reads.

    Args:
        node: A QuantizeLinear or DequantizeLinear.

    Returns:
        The type; None where a DequantizeLinear has no zero point and the graph does not say what it reads.
    """
    zero_point = input_at(node, 2)
    if zero_point is not None:
        tensor = ir.convenience.get_const_tensor(zero_point)
        return zero_point.dtype if tensor is None else tensor.dtype
    if node.op_type == "DequantizeLinear":
        return _data_type(node.inputs[0])
    return ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8)


def _data_type(data: ir.Value | None) -> ir.DataType | None:
    producer = data.producer() if data is not None else None
    if producer is not None and producer.op_type == "QuantizeLinear":
        return quantized_type(producer)
    return data.dtype if data is not None else None


def with_type_of(data: ir.Value | None, parameters: Parameters, graph: ir.Graph, stem: str) -> Parameters:
    """Parameters with which a QuantizeLinear writes the type of other data.

    Without a zero point it writes uint8.

    Args:
        data: The data whose type is wanted.
        parameters: The scale and the zero point.
        graph: The graph, which gets an int8 zero point where one is needed.
        stem: The stem of the zero point's name.

    Returns:
        The parameters, with a zero point where the data is int8.
    """
    if parameters.zero_point is not None or _data_type(data) != ir.DataType.INT8:
        return parameters
    return Parameters(parameters.scale, add_initializer(graph, f"{stem}_zero_point", np.zeros((), np.int8)))


def dequantizer_behind(value: ir.Value | None) -> tuple[ir.Node, tuple[int, ...] | None] | None:
    """The DequantizeLinear that computes a value, where only Transposes and Casts to floats are between.

    A Transpose moves integers. Before opset 19 a DequantizeLinear gives out FP32, which models in FP16 cast;
    TensorRT for RTX reads the integers before the Cast.

    Args:
        value: A value that a node reads.

    Returns:
        The node, and the axis of its output that each axis of the value is; None in its place where no
        Transpose is between. None where the value is not dequantized.
    """
    axes: tuple[int, ...] | None = None
    node = value.producer() if value is not None else None
    while node is not None and node.domain == "" and node.op_type in ("Cast", "Transpose"):
        if node.op_type == "Transpose":
            perm = tuple(node.attributes.get_ints("perm", ()))
            # Without perm it turns the axes round, and how many there are may not be known.
            if not perm or sorted(perm) != list(range(len(perm))) or len(axes or perm) != len(perm):
                return None
            axes = perm if axes is None else tuple(perm[axis] for axis in axes)
        elif not ir.DataType(node.attributes["to"].as_int()).is_floating_point():
            return None
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    if node is None or node.op_type != "DequantizeLinear":
        return None
    return node, axes


def reads_integers(value: ir.Value | None) -> bool:
    """Whether a layer that reads a value has the integers of pairs, also through operators that move values.

    Args:
        value: A value that a node reads. Weights are followed through Transposes only.
    """
    return dequantizer_behind(value) is not None or _is_moved(value)


def _is_moved(value: ir.Value | None) -> bool:
    """Whether a value is moved from activations that pairs stand before."""
    node = value.producer() if value is not None else None
    if node is None or node.domain != "" or node.op_type not in _READ_THROUGH:
        return False
    sources = _moved_from(value)
    return all(one is not None and read_constant(one.inputs[0]) is None for one in sources)


def _moved_from(value: ir.Value | None) -> list[ir.Node | None]:
    """The DequantizeLinear nodes whose values a value has; None among them for whatever is no such node."""
    found: list[ir.Node | None] = []
    pending, seen = [value], set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        node, behind = value.producer() if value is not None else None, dequantizer_behind(value)
        if behind is not None:
            found.append(behind[0])
        elif node is not None and node.domain == "" and node.op_type in _READ_THROUGH:
            pending += node.inputs if node.op_type == "Concat" else node.inputs[:1]
        else:
            found.append(None)
    return found


def quantizers_before(value: ir.Value | None) -> list[ir.Node]:
    """The QuantizeLinear nodes of the pairs whose values a value has, also through movements of values."""
    data = (node.inputs[0] for node in _moved_from(value) if node is not None)
    producers = (source.producer() for source in data if source is not None)
    return [node for node in producers if node is not None and node.op_type == "QuantizeLinear"]


def feeds_integers(node: ir.Node) -> bool:
    """Whether a layer or a QuantizeLinear reads what a node computes, also through movements of values."""
    pending, seen = [node], {node}
    while pending:
        for output in pending.pop().outputs:
            for reader, _ in output.uses():
                if reader.op_type == "QuantizeLinear" or operator_of(reader).is_weighted:
                    return True
                if reader.op_type in _READ_THROUGH and reader.domain == "" and reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
    return False


def is_quantized_constant(value: ir.Value | None) -> bool:
    """Whether a value is computed of constants alone, of which a pair represents one at least."""
    return bool(constant_scales(value))


def constant_scales(value: ir.Value | None) -> list[NDArray[np.float32]]:
    """The flat scales of the pairs that a value is computed of; none where it is not of constants alone."""
    found, pending, seen = [], [value], set()
    while pending:
        value = pending.pop()
        if value is None or value in seen or is_constant(value):
            continue
        seen.add(value)
        node = value.producer()
        if node is None or not node.inputs or holds_graphs(node) or len(seen) > _MOST_BEHIND_WEIGHTS:
            return []
        if node.op_type == "DequantizeLinear" and (scale := read_constant(input_at(node, 1))) is not None:
            found.append(np.asarray(scale, np.float32).reshape(-1))
        pending += node.inputs
    return found


def agree(first: Parameters, second: Parameters) -> bool:
    """Whether two sets of parameters are the same values, or constants of the same contents."""
    return _same(first.scale, second.scale, 1.0) and _same(first.zero_point, second.zero_point, 0)


def _same(first: ir.Value | None, second: ir.Value | None, missing: float) -> bool:
    if first is second:
        return True
    arrays = [np.asarray(missing) if value is None else read_constant(value) for value in (first, second)]
    left, right = (None if array is None else array.reshape(-1) for array in arrays)
    return left is not None and right is not None and np.array_equal(left, right)


def insert_dequantize(
    reader: ir.Node, data: ir.Value, parameters: Parameters, name: str, axis: int | None = None
) -> ir.Value:
    """Inserts a DequantizeLinear before a node.

    Args:
        reader: The node; it does not read the new value yet.
        data: The quantized data, int8 or uint8.
        parameters: The scale and the zero point of the data.
        name: The stem of the names of the new node and its output.
        axis: The axis of the channels; None for one scale.

    Returns:
        The dequantized data, float32.
    """
    inputs = [data, *(value for value in parameters if value is not None)]
    attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
    node = ir.Node("", "DequantizeLinear", inputs, attributes, name=f"{name}_dequantize")
    value = node.outputs[0]
    value.name, value.dtype, value.shape = f"{name}_dequantized", ir.DataType.FLOAT, data.shape
    _graph(reader).insert_before(reader, node)
    return value


def replace_by_float(old: ir.Node, new: ir.Node, pairs: Sequence[Parameters | None]) -> None:
    """Replaces a node that computes on integers by a node that computes in float.

    Args:
        old: The node that is removed from the graph.
        new: The node that takes its place, with as many outputs.
        pairs: For each output, the parameters with which it is quantized again; None where the output of the
            new node replaces that of the old one as it is.
    """
    graph = _graph(old)
    graph.insert_after(old, new)
    for before, after, pair in zip(old.outputs, new.outputs, pairs, strict=True):
        if pair is None:
            after.type = before.type
            replace_value(before, after)
            continue
        after.name, after.dtype, after.shape = f"{before.name}_float", ir.DataType.FLOAT, before.shape
        inputs = [after, *(value for value in pair if value is not None)]
        quantize = ir.Node("", "QuantizeLinear", inputs, name=f"{before.name}_quantize")
        quantize.outputs[0].type = (
            ir.TensorType(ir.DataType.UINT8) if pair.zero_point is None else pair.zero_point.type
        )
        graph.insert_after(new, quantize)
        replace_value(before, quantize.outputs[0])
    graph.remove(old, safe=True)


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Replaces a value by another, which gets its name, shape and readers."""
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name, old.name = old.name, f"{old.name}_replaced"
    new.name = name
    new.shape = new.shape if old.shape is None else old.shape


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph
