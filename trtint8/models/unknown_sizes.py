"""Sizes of dimensions that are declared, but not known."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

#: The name under which converters of PaddlePaddle write every size that they do not know.
_NO_NAME = "?"


def clear_unknown_sizes(message: onnx.ModelProto) -> None:
    """Removes sizes that say only that a size is not known: -1, and the name ``?``.

    In ONNX a size is a number that is not negative, and equal names are equal sizes; so -1 would be a wrong
    size, and two dimensions called ``?`` would have to be equal.

    Args:
        message: The model; changed.
    """
    for value in _values(message.graph):
        if value.type.HasField("tensor_type"):
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.dim_value < 0 or dimension.dim_param == _NO_NAME:
                    dimension.ClearField("value")


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """The declared values of a graph and of the graphs inside its nodes."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield from current.input
        yield from current.output
        yield from current.value_info
        for node in current.node:
            for attribute in node.attribute:
                waiting.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
