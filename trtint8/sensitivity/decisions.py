"""Layers that outputs depend on by decisions alone, such as which element is the largest.

The gradient of a decision is zero wherever there is one, and yet a decision that turns out differently
changes the outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.models.graph_writer import reached_from
from trtint8.models.inner_graphs import values_read
from trtint8.simulation.layers import Layer


def deciding_operators(
    nodes: Sequence[ir.Node], outputs: Iterable[ir.Value], layers: Iterable[Layer]
) -> Mapping[str, frozenset[str]]:
    """The operators by which layers decide something that outputs depend on.

    Args:
        nodes: The nodes of a graph, in graph order.
        outputs: The outputs that count.
        layers: Layers that no output depends on by floating-point values.

    Returns:
        Name of a layer to its operators, such as ``TopK``; without layers that no output depends on at all.
    """
    leading = _leading_to(nodes, outputs)
    found = {}
    for layer in layers:
        reached = reached_from(nodes, [layer.node.outputs[0]])
        operators = frozenset(
            node.op_type
            for node in nodes
            if not operator_of(node).reads_shape
            and any(value in reached for value in values_read(node))
            and any(output in leading and output not in reached for output in node.outputs)
        )
        if operators:
            found[layer.name] = operators
    return found


def _leading_to(nodes: Sequence[ir.Node], outputs: Iterable[ir.Value]) -> set[ir.Value]:
    """The values that outputs depend on in any way."""
    leading = set(outputs)
    for node in reversed(nodes):
        if any(output in leading for output in node.outputs):
            leading.update(values_read(node))
    return leading
