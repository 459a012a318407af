"""Shapes of a model for one shape of its inputs, where exporters compute them at run time.

How many multiply-adds a node computes.

How many samples per batch keep the observed activations small.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from calibrators.data.feeds import Array, NamedArrays
from calibrators.data.inputs import OpenShape, fitting_batch_size
from calibrators.host.plan import BYTES_PER_PART
from calibrators.operators import Product, operator_of
from trtint8.models.graph import constant_tensor, holds_graphs
from trtint8.models.passes.fold_constants import FEW, compute_node, infer_outputs

_logger = logging.getLogger(__name__)

_Sizes = tuple[int | None, ...]

#: Under which name a model keeps its shapes, so that they are computed once.
_KEPT = "trtint8.static_shapes"


def open_inputs(graph_model: ir.Model) -> tuple[str, ...]:
    """Names of the inputs that leave a size open beside that of their first axis."""
    graph = graph_model.graph
    shapes = {
        value.name or "": declared_sizes(value)
        for value in graph.inputs
        if value.name not in graph.initializers
    }
    return tuple(name for name, sizes in shapes.items() if sizes is None or None in sizes[1:])


class StaticShapes:
    """The shapes of a model's tensors.

    PyTorch writes the sizes of a Reshape as computations on the sizes of its input, and ONNX's shape
    inference does not follow all of them. With fixed inputs they are constant, and then they are computed.

    Args:
        model: A prepared model. Its shapes must not change afterwards.
        inputs: Input name to shape, None for a size that is open. Other inputs have one sample per batch, and
            open sizes stay open.
    """

    def __init__(self, model: ir.Model, inputs: Mapping[str, Sequence[int | None]] | None = None) -> None:
        self._model = model
        self._inputs = {name: tuple(shape) for name, shape in (inputs or {}).items()}
        sizes = [self._inputs.get(value.name or "", declared_sizes(value)) for value in model.graph.inputs]
        #: Axes that may stay open without anything being computed: the samples'.
        self._open_axes = 1 if any(shape and shape[0] is None for shape in sizes) else 0

    def of(self, value: ir.Value | None) -> _Sizes | None:
        """The shape of a tensor.

        Args:
            value: A value of the model. Where all its dimensions are known, or all but the first where the
                inputs leave the number of samples open, nothing is computed.

        Returns:
            The sizes; None in place of one that is not fixed. None where not even the rank is known.
        """
        if value is None:
            return None
        known = declared_sizes(value)
        if known is not None and None not in known[self._open_axes :]:
            return known
        return self._computed[0].get(value.name or "", known)

    def integers_of(self, value: ir.Value | None) -> Array | None:
        """The values of a tensor, where they are few and computed from shapes and constants alone."""
        return None if value is None else self._computed[1].get(value.name or "")

    @cached_property
    def _computed(self) -> tuple[dict[str, _Sizes], dict[str, Array]]:
        kept: dict[Any, tuple[dict[str, _Sizes], dict[str, Array]]] = self._model.meta.setdefault(_KEPT, {})
        key = tuple(sorted(self._inputs.items()))
        if key not in kept:
            kept[key] = _Computation(self._model, self._inputs).run()
        return kept[key]


class _Computation:
    """Follows the shapes of a graph, and the values of few elements that shapes may depend on."""

    def __init__(self, model: ir.Model, inputs: Mapping[str, _Sizes]) -> None:
        self._graph, self._opset, self._inputs = model.graph, model.opset_imports.get("", 1), inputs
        self._shapes: dict[str, _Sizes] = {}
        self._values: dict[str, Array] = {}

    def run(self) -> tuple[dict[str, _Sizes], dict[str, Array]]:
        """The sizes of all tensors of known rank, and the values of some, by name."""
        for value in self._graph.inputs:
            sizes = self._inputs.get(value.name or "", declared_sizes(value))
            if sizes is not None:
                batched = len(sizes) > 1 and sizes[0] is None
                self._shapes[value.name or ""] = (1, *sizes[1:]) if batched else sizes
        for node in self._graph:
            self._follow(node)
        return self._shapes, self._values

    def _follow(self, node: ir.Node) -> None:
        found = self._evaluate(node)
        if found is not None:
            name = node.outputs[0].name or ""
            self._values[name], self._shapes[name] = found, found.shape
            return
        inferred = self._infer(node)
        for value in node.outputs:
            sizes = inferred.get(value.name or "", declared_sizes(value))
            if value.name and sizes is not None:
                self._shapes[value.name] = sizes

    def _evaluate(self, node: ir.Node) -> Array | None:
        """The values of a node's output, where they are few and follow from known ones."""
        if node.domain != "" or len(node.outputs) != 1 or holds_graphs(node):
            return None
        if node.op_type == "Shape":
            sizes = self._shape(node.inputs[0])
            if sizes is None or None in sizes:
                return None
            start = node.attributes.get_int("start", 0)
            return np.asarray(sizes[start : node.attributes.get_int("end", len(sizes))], np.int64)
        values = {value.name or "": self._value(value) for value in node.inputs if value is not None}
        arrays = {name: array for name, array in values.items() if array is not None}
        if not arrays or len(arrays) < len(values):
            return None
        predicted = self._infer(node).get(node.outputs[0].name or "")
        if predicted is None or None in predicted or np.prod([size or 0 for size in predicted]) > FEW:
            return None
        try:
            return compute_node(node, arrays, self._opset)
        except Exception:
            _logger.debug("could not compute %s '%s'", node.op_type, node.name, exc_info=True)
            return None

    def _infer(self, node: ir.Node) -> dict[str, _Sizes]:
        """What ONNX infers of a node's outputs from its inputs alone."""
        inputs = [value for value in node.inputs if value is not None and value.name]
        types = {value.name or "": self._type(value) for value in inputs}
        values = {value.name or "": array for value in inputs if (array := self._value(value)) is not None}
        inferred = infer_outputs(node, self._opset, types, values).items()
        return {name: _sizes_of(kind) for name, kind in inferred if kind.tensor_type.HasField("shape")}

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        element = int(value.dtype or ir.DataType.FLOAT)
        return helper.make_tensor_type_proto(element, self._shape(value))

    def _shape(self, value: ir.Value | None) -> _Sizes | None:
        return self._shapes.get(value.name or "", declared_sizes(value)) if value is not None else None

    def _value(self, value: ir.Value) -> Array | None:
        tensor = constant_tensor(value)
        if tensor is not None:
            return tensor.numpy() if tensor.size <= FEW else None
        return self._values.get(value.name or "")


def declared_sizes(value: ir.Value | None) -> _Sizes | None:
    """The sizes that a model says a tensor has.

    Args:
        value: A value of the model.

    Returns:
        The sizes, None in place of one that is not fixed; None where not even the rank is known.
    """
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def open_shape(value: ir.Value | None) -> OpenShape:
    """The shape that a model says a tensor has, with the names of sizes that are not fixed.

    Args:
        value: A value of the model.
    """
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def _sizes_of(kind: onnx.TypeProto) -> _Sizes:
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim)


#: Gives the dimensions of a tensor; None where they are not known.
Sizes: TypeAlias = Callable[[ir.Value | None], tuple[int, ...] | None]

_EINSUM_OPERANDS = 2

#: Operator to the fewest dimensions that its first operand has.
_SMALLEST_RANK = {"Gemm": 2, "MatMul": 1}


def multiply_adds(node: ir.Node, sizes: Sizes) -> int | None:
    """How many multiply-adds a node computes.

    Args:
        node: The node.
        sizes: Gives the dimensions of a tensor; None where they are not known.

    Returns:
        The number; None for a node that computes no products, whose dimensions are not known, or that has
        graphs of its own.
    """
    if operator_of(node).product is Product.RECURRENT:
        return _recurrent(node, sizes)
    operands = [sizes(value) for value in node.inputs[:2]]
    output = sizes(node.outputs[0]) if node.outputs else None
    if len(operands) != 2 or operands[0] is None or operands[1] is None or output is None:
        return None
    first, second = operands[0], operands[1]
    if len(first) < _SMALLEST_RANK.get(node.op_type, 0):
        return None  # such a node is invalid, and TensorRT refuses it
    if node.op_type in ("Conv", "DeformConv"):
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


#: Bytes of observed activations per batch. A ResNet-50 is hardly faster with more than 4 samples per batch,
#: which take 160 MB; and memory that is used for the first time takes time.
_BUDGET = 192 << 20

_BYTES_PER_ELEMENT = 4


class FittingBatchSize:
    """The number of samples per batch where neither the model nor the user fixes it.

    Args:
        graph_model: A prepared model. Its shapes must not change afterwards.
        tensors: Names of the float32 tensors that are kept until the batch is over.

    Attributes:
        for_all: The size for samples of every shape: a power of two, at most the usual batch size. None where
            it depends on the sizes of the inputs, which the model leaves open.
    """

    def __init__(self, graph_model: ir.Model, tensors: Iterable[str]) -> None:
        wanted = set(tensors)
        self._model = graph_model
        nodes = list(graph_model.graph)
        self._values = [value for node in nodes for value in node.outputs if value.name in wanted]
        #: Those of them that are counted with the input of their Relu, and not kept.
        self._rectified = {node.outputs[0].name for node in nodes if _is_seen_with_its_input(node, wanted)}
        self._known: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
        self._open = set(open_inputs(graph_model))
        self.for_all = None if self._open else self({})

    @property
    def rule(self) -> int | FittingBatchSize:
        """The size for all samples, or, where there is none, this object, which tells it from a sample."""
        return self.for_all or self

    def __call__(self, feed: NamedArrays) -> int:
        """The size for samples of the shapes in a feed.

        Args:
            feed: Input name to array, with one sample or more. Sizes that neither the feed nor the model has
                count as 1.
        """
        shapes = {
            value.name or "": _sample_shape(value, feed[value.name or ""].shape)
            for value in self._model.graph.inputs
            if value.name in feed and value.name in self._open
        }
        key = tuple(sorted(shapes.items()))
        if key not in self._known:
            found = StaticShapes(self._model, shapes)
            taken = {
                value.name: _BYTES_PER_ELEMENT
                * _elements_per_sample(found.of(value) if shapes else value.shape)
                for value in self._values
            }
            kept = sum(taken.values())
            if kept <= BYTES_PER_PART:  # else the model is divided, and shows what each Relu gives
                kept -= sum(taken[name] for name in self._rectified & taken.keys())
            self._known[key] = fitting_batch_size(_BUDGET, kept)
        return self._known[key]


def _is_seen_with_its_input(node: ir.Node, wanted: Collection[str]) -> bool:
    """Whether a node is a Relu whose input is observed: its output is counted with it, and not kept."""
    return (
        node.op_type == "Relu"
        and node.domain == ""
        and any(value and value.name in wanted for value in node.inputs)
    )


def _sample_shape(value: ir.Value, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one sample, where the model leaves the number of samples open."""
    fixed = value.shape is not None and len(value.shape) > 0 and isinstance(value.shape[0], int)
    return shape if fixed or not shape else (1, *shape[1:])


def _elements_per_sample(shape: Iterable[int | ir.SymbolicDim | None] | None) -> int:
    sizes = () if shape is None else tuple(shape)[1:]
    return math.prod(size for size in sizes if isinstance(size, int))
