"""Names that ONNX and ONNX Runtime demand: of graphs, and of nodes, whose names are unique."""

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


def name_graphs(message: onnx.ModelProto) -> None:
    """Names the graphs without a name, which only ONNX's checker refuses.

    Args:
        message: The model; changed.
    """
    for graph in message_graphs(message.graph):
        graph.name = graph.name or "graph"
