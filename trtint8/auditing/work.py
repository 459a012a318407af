"""How many multiply-adds the nodes of an ONNX model compute, at given shapes of its inputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from trtint8.models.inner_graphs import values_read
from trtint8.models.model import Model
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.static_shapes import StaticShapes

#: Gives the dimensions of a tensor; None where they are not known.
Sizes: TypeAlias = Callable[[ir.Value | None], tuple[int, ...] | None]

_EINSUM_OPERANDS = 2

#: Operator to the fewest dimensions that its first operand has.
_SMALLEST_RANK = {"Gemm": 2, "MatMul": 1}

_RECURRENT = ("LSTM", "GRU", "RNN")

#: Operators that compute products, or whose graphs may; those of Attention and of graphs are not counted.
_PRODUCTS = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", *_RECURRENT, "Attention", "If", "Loop", "Scan"}
)


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
        if node.op_type in _PRODUCTS:
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


def multiply_adds(node: ir.Node, sizes: Sizes) -> int | None:
    """How many multiply-adds a node computes.

    Args:
        node: The node.
        sizes: Gives the dimensions of a tensor; None where they are not known.

    Returns:
        The number; None for a node that computes no products, whose dimensions are not known, or that has
        graphs of its own.
    """
    if node.op_type in _RECURRENT:
        return _recurrent(node, sizes)
    operands = [sizes(value) for value in node.inputs[:2]]
    output = sizes(node.outputs[0]) if node.outputs else None
    if len(operands) != 2 or operands[0] is None or operands[1] is None or output is None:
        return None
    first, second = operands[0], operands[1]
    if len(first) < _SMALLEST_RANK.get(node.op_type, 0):
        return None  # such a node is invalid, and TensorRT refuses it
    if node.op_type == "Conv":
        return math.prod(output) * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(first) * math.prod(second[1:])
    if node.op_type == "Gemm":
        return math.prod(output) * first[0 if node.attributes.get_int("transA", 0) else 1]
    if node.op_type == "MatMul":
        return math.prod(output) * first[-1]
    if node.op_type == "Einsum" and len(node.inputs) == _EINSUM_OPERANDS:
        return _einsum(node.attributes.get_string("equation", ""), first, second)
    return None


def _recurrent(node: ir.Node, sizes: Sizes) -> int | None:
    """The products of all steps of a sequence with the weights of the input and of the hidden state."""
    sequence, weights, recurrence = map(sizes, node.inputs[:3])
    if sequence is None or weights is None or recurrence is None:
        return None
    return math.prod(sequence[:2]) * (math.prod(weights) + math.prod(recurrence))


def _einsum(equation: str, first: Sequence[int], second: Sequence[int]) -> int | None:
    """The product of the sizes of all letters; None for an equation with an ellipsis."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != _EINSUM_OPERANDS or "." in equation:
        return None
    sizes: Counter[str] = Counter()
    for term, shape in zip(terms, (first, second), strict=True):
        for letter, size in zip(term, shape, strict=False):
            sizes[letter] = max(sizes[letter], size)
    return math.prod(sizes.values())


def _fixed(sizes: Sequence[int | None] | None) -> tuple[int, ...] | None:
    """The dimensions of a tensor; None where one of them is not known."""
    if sizes is None:
        return None
    dimensions = tuple(size for size in sizes if size is not None)
    return dimensions if len(dimensions) == len(sizes) else None
