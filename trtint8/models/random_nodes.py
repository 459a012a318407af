"""Nodes that draw random numbers."""

from __future__ import annotations

import itertools

import onnx_ir as ir

#: The operators of ONNX whose results are random. A Dropout is not among them: in inference it drops nothing.
RANDOM_OPERATORS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


def random_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes whose results are random and are read, those of inner graphs and functions included.

    Args:
        model: Any model.

    Returns:
        The nodes, in graph order.
    """
    in_functions = (function.all_nodes() for function in model.functions.values())
    return [
        node
        for node in itertools.chain(model.graph.all_nodes(), *in_functions)
        if node.op_type in RANDOM_OPERATORS and not node.domain and _is_read(node.outputs[0])
    ]


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
