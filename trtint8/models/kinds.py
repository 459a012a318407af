"""Kinds of nodes and of values, by which a graph is followed."""

from __future__ import annotations

import onnx_ir as ir


def may_be_float(value: ir.Value) -> bool:
    """Whether a tensor has floating-point values, no classes or sizes; true where the type is unknown."""
    return value.dtype is None or value.dtype.is_floating_point()


def is_along_last_axis(node: ir.Node) -> bool:
    """Whether a node that takes an axis, such as a Softmax, takes the last; false where that is not known."""
    axis, shape = node.attributes.get_int("axis", -1), node.outputs[0].shape
    return axis == -1 or (shape is not None and axis == len(shape) - 1)
