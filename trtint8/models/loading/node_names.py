"""Names that ONNX and ONNX Runtime demand: of graphs, of outputs in lists, and of nodes, which are unique."""

from __future__ import annotations

from collections import Counter

import onnx

from trtint8.models.graph_constants import take_name
from trtint8.models.inner_graphs import message_containers, message_graphs


def name_nodes_apart(message: onnx.ModelProto) -> None:
    """Names nodes after their operator and output where an earlier one of the same graph has their name.

    Some exporters name nodes after layers that are called several times. Nodes without a name stay as they
    are, because ONNX Runtime takes them.

    Args:
        message: The model; changed.
    """
    for graph in message_containers(message):
        counts = Counter(node.name for node in graph.node if node.name)
        if len(counts) == counts.total():
            continue
        taken, seen = set(counts), set[str]()
        for node in graph.node:
            if node.name in seen:
                node.name = take_name(f"{node.op_type}_{node.output[0] if node.output else ''}", taken)
            elif node.name:
                seen.add(node.name)


def name_listed_outputs(message: onnx.ModelProto) -> None:
    """Names the outputs that a node leaves out amid a list, as of a Split: ONNX Runtime crashes there.

    Args:
        message: The model; changed.
    """
    bare = [
        (node, index)
        for graph in message_containers(message)
        for node in graph.node
        for index in range(_first_listed(node), len(node.output))
        if not node.output[index]
    ]
    if not bare:
        return
    taken = {name for graph in message_containers(message) for node in graph.node for name in node.output}
    taken |= {name for graph in message_containers(message) for node in graph.node for name in node.input}
    for node, index in bare:
        node.output[index] = take_name(f"{node.op_type}_unused", taken)


def _first_listed(node: onnx.NodeProto) -> int:
    """The index of a node's first output that is one of a list; the number of outputs where none is."""
    if not "".join(node.output) or all(node.output) or node.domain or not onnx.defs.has(node.op_type):
        return len(node.output)
    outputs = onnx.defs.get_schema(node.op_type).outputs
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return len(outputs) - 1 if outputs and outputs[-1].option == variadic else len(node.output)


def name_graphs(message: onnx.ModelProto) -> None:
    """Names the graphs without a name, which only ONNX's checker refuses.

    Args:
        message: The model; changed.
    """
    for graph in message_graphs(message.graph):
        graph.name = graph.name or "graph"
