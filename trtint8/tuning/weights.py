"""Constants of a graph: read, and given new values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import add_initializer, read_constant


def constant_input(node: ir.Node, index: int) -> NDArray[Any] | None:
    """The value of an input, or None where there is no such input or it is computed."""
    return read_constant(node.inputs[index]) if index < len(node.inputs) else None


def set_constant_input(node: ir.Node, index: int, array: NDArray[Any]) -> None:
    """Gives one input of one node a new constant value.

    An initializer that nothing else reads keeps its name; another one is left to its other readers, and the
    node gets one of its own.

    Args:
        node: Of the model's main graph; changed in place.
        index: Which input; one more than the node has adds it.
        array: The value.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = ir.tensor(array, name=value.name if value is not None else None)
    if value is not None and _is_own(value):
        value.const_value, value.shape, value.dtype = tensor, ir.Shape(array.shape), tensor.dtype
        return
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, _initializer(node, f"{node.name}_input_{index}", array))


def _is_own(value: ir.Value) -> bool:
    return value.is_initializer() and len(value.uses()) == 1 and not value.is_graph_output()


def _initializer(node: ir.Node, stem: str, array: NDArray[Any]) -> ir.Value:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    taken = {value.name for other in graph for value in (*other.inputs, *other.outputs) if value is not None}
    taken |= {value.name for value in graph.inputs} | set(graph.initializers)
    names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(1)))
    name = next(name for name in names if name not in taken)
    return add_initializer(graph, name, np.ascontiguousarray(array))
