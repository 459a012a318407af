"""What a rule for the gradient of an operator gets and returns.

The shapes of a network's tensors as far as they do not depend on the data, and where its samples lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Array
from calibrators.data.inputs import InputShapes
from trtint8.models.graph import graph_values, read_constant
from trtint8.models.graph_writer import GraphWriter, Term, attributes_of, static_shape
from trtint8.models.shapes import StaticShapes


class NoGradientError(Exception):
    """The gradient of a node is not known; the text says of which, and why."""


@dataclass(frozen=True)
class Step:
    """A node whose gradient is computed.

    Attributes:
        writer: Where nodes are appended.
        node: The node.
        gradients: The gradient of each of its outputs; None for one that nothing depends on.
        wanted: Indices of the inputs whose gradient is needed.
    """

    writer: GraphWriter
    node: ir.Node
    gradients: Sequence[Term | None]
    wanted: Sequence[int]

    @property
    def gradient(self) -> Term:
        """The gradient of the first output.

        Raises:
            NoGradientError: Something depends on another output.
        """
        first, *others = self.gradients
        if first is None or any(gradient is not None for gradient in others):
            raise self.refused("more than its first output is read")
        return first

    @property
    def x(self) -> Term:
        """The node's first input."""
        return self.input(0)

    @property
    def y(self) -> Term:
        """The node's first output."""
        return Term(self.writer, self.node.outputs[0])

    def input(self, index: int) -> Term:
        """An input of the node.

        Raises:
            NoGradientError: The node has no such input.
        """
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            raise self.refused(f"it has no input {index}")
        return Term(self.writer, value)

    def constant(self, index: int) -> Array:
        """The value of an input that has to be constant.

        Raises:
            NoGradientError: It is missing, or is computed.
        """
        value = read_constant(self.input(index).value)
        if value is None:
            raise self.refused(f"its input {index} is computed")
        return value

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The node's attributes."""
        return attributes_of(self.node)

    def number(self, attribute: str, usual: float) -> float:
        """An attribute that is a number, or its default."""
        return float(self.attributes.get(attribute, usual))

    def axis(self, usual: int = -1) -> int:
        """The attribute ``axis``, or its default, counted from the first axis of the first input."""
        return int(self.attributes.get("axis", usual)) % self.rank

    @property
    def rank(self) -> int:
        """How many axes the first input has.

        Raises:
            NoGradientError: It is not known.
        """
        return len(self.shape(self.x))

    def shape(self, term: Term) -> list[int | str | None]:
        """The shape of a tensor.

        Raises:
            NoGradientError: Not even its rank is known.
        """
        shape = static_shape(term.value)
        if shape is None:
            raise self.refused(f"the shape of '{term.value.name}' is unknown")
        return shape

    def sizes(self, term: Term, axes: Sequence[int]) -> list[int]:
        """The size of a tensor along axes.

        Raises:
            NoGradientError: A size is not known before the network runs.
        """
        shape = self.shape(term)
        sizes = [size for axis in axes if isinstance(size := shape[axis], int)]
        if len(sizes) < len(axes):
            raise self.refused(f"the shape of '{term.value.name}' depends on the data")
        return sizes

    def like(self, index: int, gradient: Term) -> Term:
        """A gradient of the output's shape in the shape of an input: summed where the input was broadcast.

        Raises:
            NoGradientError: Whether the input is broadcast is not known.
        """
        value = self.input(index).value
        own, whole = static_shape(value), static_shape(self.y.value)
        others = [static_shape(other) for other in self.node.inputs if other is not value]
        if own is not None and all(_never_wider(other, own) for other in others):
            return gradient
        if own is None or whole is None:
            raise self.refused(f"the shape of '{value.name}' is unknown")
        return self.summed(index, gradient, _repeated_axes(own, whole))

    def broadcast_axes(
        self, term: Term, own: Sequence[int | str | None], whole: Sequence[int | str | None]
    ) -> list[int]:
        """The axes along which a tensor of one shape is repeated until it has another.

        Raises:
            NoGradientError: Whether the tensor is broadcast is not known.
        """
        aligned = zip(own, whole[len(whole) - len(own) :], strict=True)
        if any(size is None or size not in (1, other) for size, other in aligned):
            raise self.refused(f"whether '{term.value.name}' is broadcast is not known")
        return _repeated_axes(own, whole)

    def summed(self, index: int, gradient: Term, axes: Sequence[int]) -> Term:
        """A gradient summed over axes, in the shape of an input."""
        total = gradient.reduced("ReduceSum", axes) if axes else gradient
        # This fails, where an axis whose size is only known when the network runs is broadcast after all.
        return total.op("Reshape", self.input(index).op("Shape"))

    def added_up(self, places: Term) -> Term:
        """The gradient of the first input, of which the output is elements in any order.

        Args:
            places: Where in the flattened input each element of the output came from, int64.
        """
        zeros = (
            self.x.op("Size")
            .op("Reshape", [1])
            .op("ConstantOfShape", value=ir.tensor(np.zeros(1, np.float32)))
        )
        values = [term.op("Reshape", [-1]) for term in (places, self.gradient)]
        return zeros.op("ScatterElements", *values, axis=0, reduction="add").op("Reshape", self.x.op("Shape"))

    def refused(self, reason: str) -> NoGradientError:
        """The error for a node whose gradient is not known."""
        return NoGradientError(f"{self.node.op_type} '{self.node.name}': {reason}")


#: Appends nodes, and returns the gradient of the first input, or index of an input to its gradient, for the
#: indices that are wanted.
Rule: TypeAlias = Callable[[Step], Term | Mapping[int, Term]]


def _never_wider(other: Sequence[int | str | None] | None, own: Sequence[int | str | None]) -> bool:
    """Whether a tensor of one shape broadcasts to another shape without making that one larger."""
    if other is None or len(other) > len(own):
        return False
    aligned = own[len(own) - len(other) :]
    return all(a == 1 or (a is not None and a == b) for a, b in zip(other, aligned, strict=True))


def _repeated_axes(own: Sequence[int | str | None], whole: Sequence[int | str | None]) -> list[int]:
    """The axes of the shape ``whole`` that ``own``, which broadcasts to it, has with one element or lacks."""
    lead = len(whole) - len(own)
    return [*range(lead), *(axis for axis, size in enumerate(own, lead) if size == 1 != whole[axis])]


def normalized(axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the first one."""
    return [int(axis) % rank for axis in np.atleast_1d(np.asarray(axes, np.int64))]


#: The name of an axis along which the samples of a batch lie.
BATCH = "trtint8_batch"

#: How the name of an axis begins along which every sample has several elements; their number follows.
_SEVERAL = f"{BATCH}_times_"

#: Two batch sizes with which shapes are inferred: what differs depends on the batch.
_SIZES = (3, 5)


def batch_is_free(graph_model: ir.Model) -> bool:
    """Whether every input takes any number of samples along its first axis."""
    return not any(map(_first_size, _fed(graph_model)))


def _fed(graph_model: ir.Model) -> list[ir.Value]:
    """The inputs that are no initializers."""
    graph = graph_model.graph
    return [value for value in graph.inputs if value.name not in graph.initializers]


def infer_shapes(graph_model: ir.Model, sizes: InputShapes | None = None) -> None:
    """Sets the shapes of all tensors; an axis of samples is named ``BATCH``.

    Where the batch size is free, shapes are inferred for two. A dimension that is the same in both is a
    number; one that is the batch size is named ``BATCH``; one that is a multiple of it, as where samples were
    flattened, has a name that tells the factor; and others that differ stay unknown.

    Args:
        graph_model: The model; shapes in it are replaced. Where some inputs fix the batch size and others
            leave it open, nothing is changed.
        sizes: Input name to the shape of a batch, whose first size does not count, for inputs that leave
            other sizes open.
    """
    is_free = batch_is_free(graph_model)
    if not (is_free or all(not static_shape(value) or _first_size(value) for value in _fed(graph_model))):
        return
    batches: Sequence[int | None] = _SIZES if is_free else (None,)
    copy = graph_model.clone()
    for value in [output for node in copy.graph for output in node.outputs] if is_free else ():
        value.shape = None  # exporters declare shapes that do not hold for other batches
    inferred = [_inferred(copy, size, sizes or {}) for size in batches]
    for value, *shapes in zip(graph_values(graph_model.graph), *inferred, strict=True):
        first, second = shapes[0], shapes[-1]
        if first is None or second is None or len(first) != len(second):
            value.shape = None
        else:
            value.shape = ir.Shape([_dimension(*pair) for pair in zip(first, second, strict=True)])


def _first_size(value: ir.Value) -> bool:
    shape = static_shape(value)
    return bool(shape) and isinstance((shape or [0])[0], int)


def _inferred(
    graph_model: ir.Model, size: int | None, sizes: InputShapes
) -> list[tuple[int | None, ...] | None]:
    """The shapes of a graph's inputs and of what its nodes make, for so many samples; None: for its own."""
    given = {}
    for value in _fed(graph_model):
        name, shape = value.name or "", static_shape(value)
        if shape is not None:
            own = shape[:1] if size is None else [size]
            whole = [*own, *sizes.get(name, shape)[1:]]
            given[name] = [dim if isinstance(dim, int) else None for dim in whole]
    shapes = StaticShapes(graph_model, given)
    return [shapes.of(value) for value in graph_values(graph_model.graph)]


def _dimension(first: int | None, second: int | None) -> int | str | None:
    if first is None or second is None:
        return None
    if first == second:
        return first
    factor = first // _SIZES[0]
    if (first, second) != (factor * _SIZES[0], factor * _SIZES[1]):
        return None
    return BATCH if factor == 1 else f"{_SEVERAL}{factor}"


def elements_per_sample(value: ir.Value) -> int:
    """How many elements a tensor has for one sample, where :func:`infer_shapes` knows; at least that many."""
    count = 1
    for size in static_shape(value) or []:
        if isinstance(size, str):
            size = int(size.removeprefix(_SEVERAL)) if size.startswith(_SEVERAL) else 1
        count *= 1 if size is None else size
    return count
