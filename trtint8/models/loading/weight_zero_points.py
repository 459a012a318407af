"""Products of integers whose weights have no zero point."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from trtint8.models.inner_graphs import message_graphs

#: Domain and operator of a product whose zero points are optional, to the indices of its weights and of their
#: zero point.
_INDICES = {
    ("", "MatMulInteger"): (1, 3),
    ("com.microsoft", "DynamicQuantizeMatMul"): (1, 3),
    ("com.microsoft", "MatMulIntegerToFloat"): (1, 5),
    ("com.microsoft", "QAttention"): (1, 7),
}

#: Operators behind which weights have the type that they had before.
_MOVING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def write_zero_points(message: onnx.ModelProto) -> None:
    """Writes the zero point of constant INT8 weights, which is 0, where a product of integers leaves it out.

    Where a processor needs it for exact sums, ONNX Runtime exchanges such weights for uint8 ones with another
    zero point. Before 1.30 it writes that behind the inputs of a node that has none, which can end the
    process. Where the zero point is an empty name, the weights stay, and sums saturate.

    Args:
        message: The model; changed.
    """
    graphs = list(message_graphs(message.graph))
    lacking = [node for graph in graphs for node in graph.node if _lacks_zero_point(node)]
    int8: set[str] = set()
    for graph in graphs if lacking else ():
        _add_int8_constants(graph, int8)
    changed = [node for node in lacking if node.input[_indices(node)[0]] in int8]
    if not changed:
        return
    name, taken = "weight_zero_point", {name for graph in graphs for name in _names(graph)}
    while name in taken:
        name += "_"
    message.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT8, [], [0]))
    for node in changed:
        _, index = _indices(node)
        node.input.extend([""] * (index + 1 - len(node.input)))
        node.input[index] = name


def _indices(node: onnx.NodeProto) -> tuple[int, int]:
    return _INDICES[node.domain, node.op_type]


def _lacks_zero_point(node: onnx.NodeProto) -> bool:
    """Whether a node is a product of integers without a zero point of its weights."""
    if (node.domain, node.op_type) not in _INDICES:
        return False
    weights, zero_point = _indices(node)
    return len(node.input) > weights and not "".join(node.input[zero_point : zero_point + 1])


def _add_int8_constants(graph: onnx.GraphProto, int8: set[str]) -> None:
    """Adds the names of a graph's constants that are INT8, and of what only moves these."""
    wanted = onnx.TensorProto.INT8
    int8.update(tensor.name for tensor in graph.initializer if tensor.data_type == wanted)
    for node in graph.node:
        stored = node.op_type == "Constant" and any(one.t.data_type == wanted for one in node.attribute)
        if stored or (node.op_type in _MOVING and int8.intersection(node.input[:1])):
            int8.update(node.output[:1])


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of all values of a graph."""
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from (*node.input, *node.output)
