"""How many multiply-adds a network computes, at given shapes of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.models.inner_graphs import holds_graphs, values_read
from trtint8.models.model import Model
from trtint8.models.multiply_adds import multiply_adds
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.static_shapes import StaticShapes


@dataclass(frozen=True)
class Work:
    """The multiply-adds of a model's main graph.

    Attributes:
        multiply_adds: Name of each node that computes products to their number per inference.
        uncounted: Names of such nodes whose shapes are not known, and of nodes with graphs of their own.
    """

    multiply_adds: Mapping[str, int]
    uncounted: tuple[str, ...]


def at_shapes(model: Model, shapes: Mapping[str, Sequence[int]]) -> Model:
    """A prepared model whose inputs have fixed shapes, with the shapes of all tensors that follow from them.

    Args:
        model: A prepared model; not changed.
        shapes: Name of each input with a dynamic dimension to its dimensions.

    Returns:
        A new model with the same fingerprint.
    """
    graph_model = model.graph_model.clone()
    graph = graph_model.graph
    for node in graph:
        for value in node.outputs:
            if value.shape is not None and not value.shape.is_static():
                value.shape = None
    for value in graph.inputs:
        if (name := value.name or "") in shapes:
            value.shape = ir.Shape(shapes[name])
    inference = InferShapesPass()
    return Model(inference(graph_model).model, model.name, model.fingerprint)


def count_work(graph_model: ir.Model) -> Work:
    """Counts the multiply-adds of convolutions and matrix products.

    Args:
        graph_model: A model whose inputs have fixed shapes (see :func:`at_shapes`); not changed.

    Returns:
        The multiply-adds per node of the main graph.
    """
    shapes = StaticShapes(graph_model)

    def sizes(value: ir.Value | None) -> tuple[int, ...] | None:
        return _fixed(shapes.of(value))

    counted: dict[str, int] = {}
    uncounted = []
    for node in _nodes_that_run(graph_model.graph):
        # Products of Attention, and in the graphs of nodes, are not counted.
        if operator_of(node).multiplies or holds_graphs(node):
            number = multiply_adds(node, sizes)
            if number is None:
                uncounted.append(node.name or "")
            else:
                counted[node.name or ""] = number
    return Work(counted, tuple(uncounted))


def _nodes_that_run(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes that depend on the values of an input; the builder computes others, which shapes decide."""
    fed = {value for value in graph.inputs if value.name not in graph.initializers}
    for node in graph:
        if node.op_type != "Shape" and any(value in fed for value in values_read(node)):
            fed.update(node.outputs)
            yield node


def _fixed(sizes: Sequence[int | None] | None) -> tuple[int, ...] | None:
    """The dimensions of a tensor; None where one of them is not known."""
    if sizes is None:
        return None
    dimensions = tuple(size for size in sizes if size is not None)
    return dimensions if len(dimensions) == len(sizes) else None
