"""Nodes whose names are unique, as ONNX Runtime demands."""

from __future__ import annotations

from collections import Counter

import onnx

from trtint8.models.graph_constants import take_name
from trtint8.models.inner_graphs import message_graphs


def name_nodes_apart(message: onnx.ModelProto) -> None:
    """Names the nodes that have the name of an earlier node of their graph after their operator and output.

    Some exporters name nodes after layers that are called several times. Nodes without a name stay as they
    are, because ONNX Runtime takes them.

    Args:
        message: The model; changed.
    """
    for graph in message_graphs(message.graph):
        counts = Counter(node.name for node in graph.node if node.name)
        if len(counts) == counts.total():
            continue
        taken, seen = set(counts), set[str]()
        for node in graph.node:
            if node.name in seen:
                node.name = take_name(f"{node.op_type}_{node.output[0] if node.output else ''}", taken)
            elif node.name:
                seen.add(node.name)
