"""Constants of a graph: read, and added."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is an initializer or the output of a Constant node; its contents are not read."""
    return value is not None and ir.convenience.get_const_tensor(value) is not None


def read_constant(value: ir.Value | None) -> NDArray[Any] | None:
    """The contents of a constant.

    Args:
        value: A value of a graph, or None where a node leaves out an optional input.

    Returns:
        The array, of the constant's shape and dtype; None where the value is not constant.
    """
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Adds a constant to a graph.

    Args:
        graph: The graph, which is changed in place.
        name: A name that no other value in the graph has.
        array: The contents, of any shape and of a dtype that ONNX has.

    Returns:
        The constant as a value.
    """
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value
