"""Constants of a graph: read, replaced, named and added."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Container
from typing import Any

import numpy as np
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


def constant_integers(value: ir.Value | None) -> tuple[int, ...] | None:
    """The elements of a constant of integers, such as axes; None of anything else."""
    if value is None or value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return None
    found = read_constant(value)
    return None if found is None else tuple(map(int, found.ravel()))


def add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Adds a constant to a graph.

    Args:
        graph: The graph, which is changed in place.
        name: A name that no other value in the graph has.
        array: The contents, of any shape and of a dtype that ONNX has.

    Returns:
        The constant as a value.
    """
    tensor = ir.Tensor(array, name=name)  # ir.tensor takes longer to find out that this is an array
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def value_names(graph: ir.Graph) -> set[str]:
    """The names of all inputs, initializers and values of a graph and of the graphs inside its nodes.

    A graph inside a node sees the values around it, so no name there may be given again outside.
    """
    names: set[str] = set()
    for each in (graph, *graph.subgraphs()):
        values = (value for node in each for value in (*node.inputs, *node.outputs) if value is not None)
        names |= {value.name for value in (*each.inputs, *values) if value.name is not None}
        names |= set(each.initializers)
    return names


def unused_name(stem: str, taken: Container[str]) -> str:
    """Chooses a name that is not taken yet.

    Args:
        stem: The name where it is free; else ``_1``, ``_2`` and so on are appended.
        taken: The names in use, such as :func:`value_names`.

    Returns:
        The first free name.
    """
    names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(1)))
    return next(name for name in names if name not in taken)


def take_name(stem: str, taken: set[str]) -> str:
    """Chooses a name as :func:`unused_name` does, and adds it to those in use."""
    name = unused_name(stem, taken)
    taken.add(name)
    return name


def set_element_type(value: ir.Value, element_type: ir.DataType) -> None:
    """Changes the element type of a value, but not that of the same value in copies of the model.

    Args:
        value: A value of a known type, which copies made by ``clone`` share.
        element_type: The new element type.
    """
    value.type = copy.deepcopy(value.type)
    value.dtype = element_type


def constant_input(node: ir.Node, index: int) -> NDArray[Any] | None:
    """The value of a node's input.

    Args:
        node: The node.
        index: Index of the input.

    Returns:
        The value; None where there is no such input, or where it is computed.
    """
    return read_constant(node.inputs[index]) if index < len(node.inputs) else None


def set_constant_input(node: ir.Node, index: int, array: NDArray[Any], taken: set[str] | None = None) -> None:
    """Gives one input of one node a new constant value.

    An initializer that nothing else reads keeps its name. One that others read as well is not changed, and
    the node gets an initializer of its own.

    Args:
        node: A node of the model's main graph; changed in place.
        index: Index of the input; the number of the node's inputs adds one.
        array: The new value.
        taken: The names in use, to which a new one is added; None where they are to be looked for, which
            takes time in proportion to the graph.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is not None and _is_read_by_one_node(value):
        tensor = ir.Tensor(array, name=value.name)
        value.const_value, value.shape = tensor, ir.Shape(array.shape)
        value.type = ir.TensorType(tensor.dtype)
        return
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    name = take_name(f"{node.name}_input_{index}", value_names(graph) if taken is None else taken)
    node.replace_input_with(index, add_initializer(graph, name, np.ascontiguousarray(array)))


def _is_read_by_one_node(value: ir.Value) -> bool:
    return value.is_initializer() and len(value.uses()) == 1 and not value.is_graph_output()
