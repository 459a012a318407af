"""Nodes that draw random numbers."""

from __future__ import annotations

import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.models.inner_graphs import all_nodes


def random_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes whose results are random and are read, those of inner graphs and functions included.

    Args:
        model: Any model.

    Returns:
        The nodes, in graph order.
    """
    return [node for node in all_nodes(model) if operator_of(node).random and _is_read(node.outputs[0])]


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
