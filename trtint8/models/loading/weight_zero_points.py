"""Products of integers whose weights have no zero point."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from calibrators.operators import operator_of
from trtint8.models.inner_graphs import message_graphs


def write_zero_points(message: onnx.ModelProto) -> None:
    """Writes the zero point of constant INT8 weights, which is 0, where a product of integers leaves it out.

    Where a processor needs it for exact sums, ONNX Runtime exchanges such weights for uint8 ones with another
    zero point. Before 1.30 it writes that behind the inputs of a node that has none, which can end the
    process. Where the zero point is an empty name, the weights stay, and sums saturate.

    Args:
        message: The model; changed.
    """
    graphs = list(message_graphs(message.graph))
    lacking = [found for graph in graphs for node in graph.node for found in _lacking_zero_point(node)]
    int8: set[str] = set()
    for graph in graphs if lacking else ():
        _add_int8_constants(graph, int8)
    changed = [(node, index) for node, weights, index in lacking if node.input[weights] in int8]
    if not changed:
        return
    name, taken = "weight_zero_point", {name for graph in graphs for name in _names(graph)}
    while name in taken:
        name += "_"
    message.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT8, [], [0]))
    for node, index in changed:
        node.input.extend([""] * (index + 1 - len(node.input)))
        node.input[index] = name


def _lacking_zero_point(node: onnx.NodeProto) -> Iterator[tuple[onnx.NodeProto, int, int]]:
    """A product of integers without a zero point of its weights, with the indices of both; else nothing."""
    indices = operator_of(node).integer_weights
    if indices is not None:
        weights, zero_point = indices
        if len(node.input) > weights and not "".join(node.input[zero_point : zero_point + 1]):
            yield node, weights, zero_point


def _add_int8_constants(graph: onnx.GraphProto, int8: set[str]) -> None:
    """Adds the names of a graph's constants that are INT8, and of what only moves these."""
    wanted = onnx.TensorProto.INT8
    int8.update(tensor.name for tensor in graph.initializer if tensor.data_type == wanted)
    for node in graph.node:
        stored = node.op_type == "Constant" and any(one.t.data_type == wanted for one in node.attribute)
        if stored or (operator_of(node).moves and int8.intersection(node.input[:1])):
            int8.update(node.output[:1])


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of all values of a graph."""
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from (*node.input, *node.output)
