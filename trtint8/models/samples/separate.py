"""Whether a network computes every sample by itself, so that a batch may be run in pieces.

Every operator has a rule that says when it computes each sample, along axis 0, from the same sample of what
it reads. Sizes that a graph computes from the shapes of its tensors, such as the target of a Reshape, are
followed as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Array, Ints
from calibrators.operators import Axes, Values, operator_of
from trtint8.models.graph import constant_input, constant_integers, holds_graphs
from trtint8.models.passes.fold_constants import compute_integers
from trtint8.models.shapes import StaticShapes, declared_sizes, open_inputs


class Joining(Enum):
    """What becomes of the outputs of samples that are joined along axis 0.

    Attributes:
        ROWS: Every output has one row along axis 0 for each sample, the same as apart.
        APART: Every sample has the outputs that it has apart, but not always as its row along axis 0.
        CHANGED: The outputs of a sample change with the one beside it.
        REFUSED: The network takes one sample only.
    """

    ROWS = "rows"
    APART = "apart"
    CHANGED = "changed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Joined:
    """Whether samples may be joined along axis 0, and why.

    Attributes:
        joining: What becomes of the outputs; None where that is not known.
        reason: Why, as a clause.
        separate: Whether the graph shows that every sample is computed by itself, so that a batch may be run
            in pieces. What two samples have shown that were tried is no proof of that.
    """

    joining: Joining | None
    reason: str
    separate: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether the graph shows that every output has one row along axis 0 for each sample."""
        return self.separate and self.joining is Joining.ROWS


def joined_by_graph(graph_model: ir.Model, *, follow_shapes: bool = True) -> Joined:
    """Whether samples may be joined, as far as the graph shows it.

    :func:`trtint8.models.samples.joining.joined_samples` also tries it.

    Args:
        graph_model: A model with inferred shapes.
        follow_shapes: Whether shapes that the graph computes are followed where none is declared, which may
            take longer than all the rest.

    Returns:
        The answer. Samples are separate only where all inputs have samples along axis 0, in any number, and
        every operator is known to compute each sample from the same sample of what it reads.
    """
    graph = graph_model.graph
    if fixed := [value.name for value in graph.inputs if not _is_open(value)]:
        return Joined(None, f"input '{fixed[0]}' does not leave open how many samples there are")
    if _has_the_batch_twice(graph):
        return Joined(None, "an input has the number of samples along another axis, too")
    # With open sizes, computing shapes finds nothing more.
    follow_shapes = follow_shapes and not open_inputs(graph_model)
    shape_of = StaticShapes(graph_model).of if follow_shapes else declared_sizes
    found = Found(set(graph.inputs), BatchSizes(shape_of), shape_of)
    for node in graph:
        if not _keeps_samples(node, found):
            return Joined(None, f"node '{node.name}' ({node.op_type}) may compute samples from each other")
    for output in graph.outputs:
        if output not in found.samples:
            return Joined(None, f"output '{output.name}' may have no row for each sample", separate=True)
    return Joined(Joining.ROWS, "every node computes each sample by itself", separate=True)


def _keeps_samples(node: ir.Node, found: Found) -> bool:
    """Whether a node computes samples by themselves, or none; adds what it computes to what was found."""
    if holds_graphs(node):
        return False
    reads_samples = any(value in found.samples for value in node.inputs)
    reads_sizes = any(value in found.sizes for value in node.inputs)
    if not reads_samples and not reads_sizes:
        return True
    shapes = node.op_type in _SHAPING and node.domain == ""
    makes_samples = shapes and node.inputs[0] not in found.sizes
    if not (makes_samples or reads_samples) or (node.op_type == "Shape" and node.domain == ""):
        found.sizes.follow(node)
        return True
    changes = any(found.sizes.depends_on_samples(value) for value in node.inputs)
    if (changes and not shapes) or not _keeps_samples_apart(node, found):
        return False
    found.samples.update(node.outputs)
    return True


def _has_the_batch_twice(graph: ir.Graph) -> bool:
    """Whether an input has as many elements along another axis as there are samples."""
    shapes = [value.shape for value in graph.inputs if value.shape is not None]
    samples = {str(shape[0]) for shape in shapes}
    return any(str(size) in samples for shape in shapes for size in shape[1:])


def _is_open(value: ir.Value) -> bool:
    """Whether a tensor may have any size along axis 0."""
    return value.shape is not None and len(value.shape) > 0 and not isinstance(value.shape[0], int)


#: Operators that take the shape of what they compute as an input.
_SHAPING = ("Expand", "Reshape")


@dataclass(frozen=True)
class Found:
    """What the nodes so far have computed.

    Attributes:
        samples: Values that have samples along axis 0.
        sizes: Values that were computed from shapes. All others are constants.
        shape_of: Gives the sizes of a tensor, None in place of one that is open; None where not even the rank
            is known.
    """

    samples: set[ir.Value | None]
    sizes: BatchSizes
    shape_of: Callable[[ir.Value | None], tuple[int | None, ...] | None]


#: Whether a node keeps samples apart, given what the nodes before it have computed.
Rule: TypeAlias = Callable[[ir.Node, Found], bool]


def _in_first_alone(rule: Callable[[ir.Node], bool]) -> Rule:
    """The rule of a node that must have samples in the first input, and in no other."""

    def whole(node: ir.Node, found: Found) -> bool:
        first, *others = (value in found.samples for value in node.inputs)
        return first and not any(others) and rule(node)

    return whole


def _elementwise(node: ir.Node, found: Found) -> bool:
    ranks = [_rank(value) for value in node.inputs if value is not None]
    if None in ranks:
        return False
    most = max(rank for rank in ranks if rank is not None)
    return all(
        _rank(value) == most if value in found.samples else _broadcasts(value, most)
        for value in node.inputs
        if value is not None
    )


def _batched(node: ir.Node, found: Found) -> bool:
    # Each sample has places of its own. All else that is read are weights.
    of_samples = (0, *operator_of(node).coordinates)
    given = [(index, value) for index, value in enumerate(node.inputs) if value is not None]
    # The second output of MaxPool counts places from the first sample of the batch on.
    return len(node.outputs) == 1 and all(
        (value in found.samples) == (index in of_samples) for index, value in given
    )


@_in_first_alone
def _normalizes_batch(node: ir.Node) -> bool:
    return not node.attributes.get_int("training_mode", 0)


@_in_first_alone
def _along_axis(node: ir.Node) -> bool:
    axis = node.attributes.get_int("axis", operator_of(node).axis)
    return _is_other(axis, _rank(node.inputs[0]))


@_in_first_alone
def _along_axes(node: ir.Node) -> bool:
    axes = _axes(node, operator_of(node).axes_input)
    # New axes are counted among those of the output.
    rank = _rank(node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0])
    return bool(axes) and all(_is_other(axis, rank) for axis in axes)


def _concatenates(node: ir.Node, found: Found) -> bool:
    axis = node.attributes.get_int("axis", 0)
    return all(value in found.samples for value in node.inputs) and _is_other(axis, _rank(node.inputs[0]))


@_in_first_alone
def _flattens(node: ir.Node) -> bool:
    return node.attributes.get_int("axis", 1) == 1


def _gathers(node: ir.Node, found: Found) -> bool:
    axis, (data, indices) = node.attributes.get_int("axis", 0), node.inputs
    if data in found.samples:
        return indices not in found.samples and _is_other(axis, _rank(data))
    return axis == 0  # rows of a table


def _multiplies(node: ir.Node, found: Found) -> bool:
    first, second = (_rank(value) or 0 for value in node.inputs)
    if node.inputs[0] not in found.samples:
        return first == 2 and second > 2
    return first == second > 2 if node.inputs[1] in found.samples else first >= second == 2


@_in_first_alone
def _multiplies_matrices(node: ir.Node) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return not node.attributes.get_int("transA", 0) and (bias is None or _broadcasts(bias, 2))


@_in_first_alone
def _pads(node: ir.Node) -> bool:
    pads = constant_integers(node.inputs[1]) if len(node.inputs) > 1 else None
    if not pads or any(value is not None for value in node.inputs[3:]):
        return False
    return pads[0] == pads[len(pads) // 2] == 0


def _expands(node: ir.Node, found: Found) -> bool:
    data, wanted = node.inputs[0], found.sizes.of(node.inputs[1])
    if not wanted or wanted[0] is not None or any(map(_depends_on_batch, wanted[1:])):
        return False
    return _rank(data) == len(wanted) if data in found.samples else _broadcasts(data, len(wanted))


def _reshapes(node: ir.Node, found: Found) -> bool:
    wanted = found.sizes.of(node.inputs[1])
    if node.inputs[0] not in found.samples or not wanted:
        return False
    if 0 in wanted and node.attributes.get_int("allowzero", False):  # else it changes nothing
        return False
    if any(map(_depends_on_batch, wanted[1:])):
        return False
    # Elements keep their order, so samples stay where their number stays.
    if wanted[0] in (None, 0):
        return True
    elements = _elements(wanted[1:])
    return wanted[0] == -1 and elements is not None and elements == _sample_elements(node, found)


@_in_first_alone
def _resizes(node: ir.Node) -> bool:
    scales = constant_input(node, 2)
    if node.attributes.get_ints("axes", ()) or any(value is not None for value in node.inputs[3:]):
        return False
    return scales is not None and scales.size > 0 and scales[0] == 1


@_in_first_alone
def _transposes(node: ir.Node) -> bool:
    return list(node.attributes.get_ints("perm", ()))[:1] == [0]


@_in_first_alone
def _quantizes(node: ir.Node) -> bool:
    # One scale for all, or one for each place along an axis.
    scales, axis = _rank(node.inputs[1]), node.attributes.get_int("axis", 1)
    return scales == 0 or (scales == 1 and _is_other(axis, _rank(node.inputs[0])))


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


def _sample_elements(node: ir.Node, found: Found) -> int | None:
    """How many elements a sample of the first input has, where that is known."""
    shape = found.shape_of(node.inputs[0])
    return None if shape is None else _elements(shape[1:])


def _elements(sizes: Sequence[object]) -> int | None:
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return math.prod(known) if len(known) == len(sizes) else None


def _broadcasts(value: ir.Value | None, rank: int) -> bool:
    """Whether a constant has no axis along the samples of a tensor of some rank, or one of size 1."""
    own = _rank(value)
    if own is None or value is None or value.shape is None:
        return False
    return own < rank or (own == rank and value.shape[0] == 1)


def _axes(node: ir.Node, index: int) -> list[int]:
    """The axes of an attribute, or of a constant input; none where they are left out or not constant."""
    if "axes" in node.attributes:
        return list(node.attributes.get_ints("axes", ()))
    return list(constant_integers(node.inputs[index]) or ()) if len(node.inputs) > index else []


def _is_other(axis: int, rank: int | None) -> bool:
    """Whether an axis is not the first one."""
    return axis > 0 or (rank is not None and -rank < axis < 0)


#: Operators whose nodes keep samples apart under conditions of their own, and these.
_RULES: Mapping[str, Rule] = {
    "BatchNormalization": _normalizes_batch,
    "Concat": _concatenates,
    "DequantizeLinear": _quantizes,
    "Expand": _expands,
    "Flatten": _flattens,
    "Gather": _gathers,
    "Gemm": _multiplies_matrices,
    "MatMul": _multiplies,
    "Pad": _pads,
    "QuantizeLinear": _quantizes,
    "Reshape": _reshapes,
    "Resize": _resizes,
    "Transpose": _transposes,
}

#: The same for all other operators, by what axes mean to them.
_RULES_OF_AXES: Mapping[Axes, Rule] = {
    Axes.ELEMENTWISE: _elementwise,
    Axes.IMAGES: _batched,
    Axes.ONE: _along_axis,
    Axes.SEVERAL: _along_axes,
}


def _keeps_samples_apart(node: ir.Node, found: Found) -> bool:
    """True if a node computes each sample from the same sample of what it reads, as far as that is known.

    Args:
        node: The node. At least one of its inputs has samples, or its target shape was computed from shapes.
        found: What the nodes before it have computed.
    """
    if node.domain != "":
        return False
    rule, axes = _RULES.get(node.op_type), operator_of(node).axes
    if rule is None and axes is not None:
        rule = _RULES_OF_AXES[axes]
    return rule is not None and rule(node, found)


#: A size; None in place of the number of samples, and :data:`OF_BATCH` where it may depend on that.
Size = int | str | None
OF_BATCH = "of the batch"

#: Types that hold every size as it is. A cast to truth values or to small integers changes sizes.
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
_EXACT = (*_INTEGERS, ir.DataType.FLOAT, ir.DataType.DOUBLE)

#: The most elements of a vector that is followed. No tensor has so many axes.
_MOST_AXES = 64

#: The numbers of samples for which sizes are computed. What is the same for both does not depend on them: no
#: number below their difference, a prime, leaves the same rest of both.
_SAMPLES = (1, 1_000_004)

#: The first of the numbers that stand for sizes that are not known. No other size is likely to be the same.
_UNKNOWN = 10_007


class BatchSizes:
    """What is known of values that are computed from shapes, and from nothing else of a batch.

    Vectors of few integers are computed for two numbers of samples. A size that is not known is some
    large number.

    Args:
        shape_of: Gives the sizes of a tensor, None in place of one that is open; None where not even the rank
            is known.
    """

    def __init__(self, shape_of: Callable[[ir.Value | None], tuple[int | None, ...] | None]) -> None:
        self._shape_of = shape_of
        #: The elements for each number of samples, shape (numbers of samples, elements).
        self._known: dict[ir.Value, Ints | None] = {}
        self._fixed: set[ir.Value] = set()
        self._unknown = itertools.count(_UNKNOWN)

    def __contains__(self, value: ir.Value | None) -> bool:
        """Whether a value was computed from shapes, by nodes that were followed."""
        return value in self._known

    def depends_on_samples(self, value: ir.Value | None) -> bool:
        """Whether a value was computed from shapes and may depend on the number of samples."""
        return value in self._known and value not in self._fixed

    def follow(self, node: ir.Node) -> None:
        """Follows a node that reads a shape, or reads constants and values that were followed.

        Args:
            node: The node, in the order in which the graph runs.
        """
        if node.op_type == "Shape" and node.domain == "" and node.inputs[0] not in self._known:
            found, fixed = self._shape(node, has_samples=True), False
        else:
            found = self._computed(node) if _is_vector(node.outputs[0]) else None
            fixed = not any(self.depends_on_samples(value) for value in node.inputs)
        self._known.update((output, found) for output in node.outputs)
        if fixed or (found is not None and (found == found[0]).all()):
            self._fixed.update(node.outputs)

    def of(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """The elements of a vector or a single number, or None where they are not known.

        Args:
            value: A constant, or a value that was followed.
        """
        found = self._elements(value)
        return None if found is None else tuple(map(_size, found.T.tolist()))

    def _elements(self, value: ir.Value | None) -> Ints | None:
        if value in self._known:
            return self._known[value]
        constant = constant_integers(value) if _is_vector(value) else None
        return None if constant is None else np.array([constant] * len(_SAMPLES), np.int64)

    def _computed(self, node: ir.Node) -> Ints | None:
        if node.domain != "" or not node.inputs:
            return None
        if node.op_type == "Shape":
            return self._shape(node, has_samples=False)
        inputs, own = [self._elements(value) for value in node.inputs], operator_of(node)
        if own.keeps_order:
            exact = own.values is not Values.CONVERTED or node.outputs[0].dtype in _EXACT
            return inputs[0] if exact else None
        if any(found is None and value is not None for found, value in zip(inputs, node.inputs, strict=True)):
            return None
        rows = [[None if found is None else found[i] for found in inputs] for i in range(len(_SAMPLES))]
        try:
            found = np.stack([np.asarray(_compute(node, row)) for row in rows])
        except Exception:  # noqa: BLE001  # whatever NumPy raises of sizes that do not fit each other
            return None
        if found.dtype.kind not in "bi":
            return None
        found = found.reshape(len(_SAMPLES), -1).astype(np.int64)
        if node.op_type == "Equal":  # there may be another number of samples for which sizes are equal
            first, second = (array for array in inputs if array is not None)
            if ((np.maximum(first, second) >= _UNKNOWN) & (found == 0)).all(axis=0).any():
                return None  # an open size may be any number
            depends = ((first != first[0]) | (second != second[0])).any(axis=0)
            possible = (np.minimum(first, second) >= 0).all(axis=0)  # no size is negative
            found[0] = np.where(depends & possible, 1 - found[-1], found[0])
        return found

    def _shape(self, node: ir.Node, *, has_samples: bool) -> Ints | None:
        """What a Shape node gives of a tensor, which has the samples along axis 0 or has none."""
        value = node.inputs[0]
        # The sizes of what changes with the number of samples may be those for one sample.
        changes = not has_samples and self.depends_on_samples(value)
        shape = (declared_sizes if changes else self._shape_of)(value)
        if shape is None:
            return None
        step = int(changes)
        sizes = [next(self._unknown) if size is None else size for size in shape]
        found = [
            [size + step * number if known is None else size for number in _SAMPLES]
            for size, known in zip(sizes, shape, strict=True)
        ]
        if has_samples:
            found[:1] = [list(_SAMPLES)]
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(found))
        return np.array(found[start:end], np.int64).reshape(-1, len(_SAMPLES)).T


def _compute(node: ir.Node, inputs: Sequence[Ints | None]) -> Array | None:
    """What a node computes of vectors of integers; None of operators that are not followed."""
    given = [array for array in inputs if array is not None]
    if node.op_type == "ConstantOfShape" and (len(given[0]) != 1 or given[0][0] > _MOST_AXES):
        return None
    if node.op_type == "Div":
        # What ONNX makes of negative integers depends on who computes it.
        is_known = node.outputs[0].dtype in _INTEGERS and (given[0] >= 0).all() and (given[1] > 0).all()
        return given[0] // given[1] if is_known else None
    if node.op_type == "Equal":
        return np.asarray(given[0] == given[1])
    if node.op_type == "Where":
        return np.where(given[0], given[1], given[2])
    return compute_integers(node, inputs)


def _size(numbers: Sequence[int]) -> Size:
    """A size, given its values for all numbers of samples."""
    if len(set(numbers)) == 1:
        return numbers[0]
    return None if tuple(numbers) == _SAMPLES else OF_BATCH


def _depends_on_batch(size: Size) -> bool:
    """Whether a size is the number of samples, or may depend on it."""
    return not isinstance(size, int)


def _is_vector(value: ir.Value | None) -> bool:
    """Whether a value has one axis or none. What is computed with rows and columns is not followed."""
    return value is not None and value.shape is not None and len(value.shape) <= 1
