"""Constants of a graph: read, and added."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """A value's contents, where they are constant."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """A new constant of a graph.

    Args:
        graph: Gets it; changed in place.
        name: Of no other value in the graph.
        array: The contents.

    Returns:
        The constant as a value.
    """
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value
