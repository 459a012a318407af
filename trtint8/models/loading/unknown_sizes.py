"""Sizes of dimensions that are declared, but not known."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.models.inner_graphs import all_nodes, graph_values, message_graphs

#: Names of sizes that are not known: converters of PaddlePaddle write ``?``, and others nothing.
_NO_NAMES = ("?", "")


def clear_unknown_sizes(message: onnx.ModelProto) -> None:
    """Removes sizes that say only that a size is not known: -1, the name ``?``, and an empty name.

    In ONNX a size is a number that is not negative, and equal names are equal sizes; so -1 would be a wrong
    size, and two dimensions called ``?`` would have to be equal.

    Args:
        message: The model; changed.
    """
    for graph in message_graphs(message.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.HasField("tensor_type"):
                for dimension in value.type.tensor_type.shape.dim:
                    named = dimension.HasField("dim_param")
                    if dimension.dim_value < 0 or (named and dimension.dim_param in _NO_NAMES):
                        dimension.ClearField("value")


def names_to_keep(model: ir.Model) -> set[str] | None:
    """The names of sizes that a model may have after ONNX has inferred its shapes.

    Args:
        model: The model before.

    Returns:
        Those that it has, in graphs inside its nodes too; None for all, as no size of it may be 0.
    """
    if not any(operator_of(node).open_size for node in all_nodes(model)):
        return None
    return {name for value in _values(model) for name in _names(value)}


def clear_new_names(model: ir.Model, keep: set[str] | None) -> None:
    """Removes the names that ONNX gave to sizes it does not know, where some of these may be 0.

    Where ONNX Runtime reads that two sizes have one name, it may turn a shape computed from one of them into
    the constant ``[0, -1]``, with which a Reshape fails if the first size is 0: where a detector finds
    nothing. Other networks keep the names, as ONNX Runtime fuses more of their layers with them.

    Args:
        model: The model; changed.
        keep: What :func:`names_to_keep` found before ONNX inferred shapes.
    """
    if keep is None:
        return
    for value in _values(model):
        if value.shape is not None and not _names(value) <= keep:
            value.shape = ir.Shape(
                [size if isinstance(size, int) or size.value in keep else None for size in value.shape]
            )


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph_values(graph)


def _names(value: ir.Value) -> set[str]:
    sizes = value.shape or ()
    return {size.value for size in sizes if not isinstance(size, int) and size.value is not None}
