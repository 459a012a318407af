"""Vectors of sizes that a graph computes from the shapes of its tensors, such as the target of a Reshape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from enum import Enum

import onnx_ir as ir

from calibrators.operators import Values, operator_of
from trtint8.models.graph_constants import constant_integers
from trtint8.models.static_shapes import declared_sizes


class Unknown(Enum):
    """Stands for a size that is not known.

    Attributes:
        SIZE: It is the same for any number of samples.
        OF_BATCH: It may depend on the number of samples.
    """

    SIZE = "size"
    OF_BATCH = "size of the batch"


#: A size; None in place of the number of samples.
Size = int | Unknown | None

#: Sizes along the axes of a tensor. Truth values are 0 and 1.
Sizes = tuple[Size, ...]

#: Types that hold every size as it is. A cast to truth values or to small integers changes sizes.
_EXACT = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.DOUBLE)

#: The most elements of a vector of one value. No tensor has so many axes.
_MOST_AXES = 64


class BatchSizes:
    """What is known of values that are computed from shapes, and from nothing else of a batch.

    Args:
        shape_of: Gives the sizes of a tensor, None in place of one that is open; None where not even the rank
            is known.
    """

    def __init__(self, shape_of: Callable[[ir.Value | None], tuple[int | None, ...] | None]) -> None:
        self._shape_of = shape_of
        self._known: dict[ir.Value, Sizes | None] = {}
        self._fixed: set[ir.Value] = set()

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
        fixed = fixed or (found is not None and not any(map(depends_on_batch, found)))
        self._known.update((output, found) for output in node.outputs)
        if fixed:
            self._fixed.update(node.outputs)

    def of(self, value: ir.Value | None) -> Sizes | None:
        """The elements of a vector or a single number, or None where they are not known.

        Args:
            value: A constant, or a value that was followed.
        """
        if value in self._known:
            return self._known[value]
        return constant_integers(value) if _is_vector(value) else None

    def _computed(self, node: ir.Node) -> Sizes | None:
        if node.domain != "" or not node.inputs:
            return None
        if node.op_type == "Shape":
            return self._shape(node, has_samples=False)
        inputs = [self.of(value) for value in node.inputs]
        first = inputs[0]
        own = operator_of(node)
        if own.keeps_order:
            exact = own.values is not Values.CONVERTED or node.outputs[0].dtype in _EXACT
            return first if exact else None
        if node.op_type == "Concat":
            return _joined(inputs)
        if node.op_type == "ConstantOfShape":
            return _filled(node, first)
        if node.op_type == "Gather" and first is not None:
            return _chosen(first, inputs[1])
        if node.op_type == "Slice" and first is not None:
            return self._sliced(node, first)
        if node.op_type in _ELEMENTWISE and None not in inputs:
            if node.op_type == "Div" and node.outputs[0].dtype not in (ir.DataType.INT64, ir.DataType.INT32):
                return None
            return _each(_ELEMENTWISE[node.op_type], [sizes for sizes in inputs if sizes is not None])
        return None

    def _shape(self, node: ir.Node, *, has_samples: bool) -> Sizes | None:
        """What a Shape node gives of a tensor, which has the samples along axis 0 or has none."""
        value = node.inputs[0]
        # The sizes of what changes with the number of samples may be those for one sample.
        changes = not has_samples and self.depends_on_samples(value)
        shape = (declared_sizes if changes else self._shape_of)(value)
        if shape is None:
            return None
        unknown = Unknown.OF_BATCH if changes else Unknown.SIZE
        sizes: list[Size] = [unknown if size is None else size for size in shape]
        if has_samples:
            sizes[:1] = [None]
        start = node.attributes.get_int("start", 0)
        return tuple(sizes[start : node.attributes.get_int("end", len(sizes))])

    def _sliced(self, node: ir.Node, first: Sizes) -> Sizes | None:
        start, end, axes, step = (
            self.of(node.inputs[i]) if len(node.inputs) > i and node.inputs[i] is not None else default
            for i, default in ((1, None), (2, None), (3, (0,)), (4, (1,)))
        )
        if not start or not end or axes not in ((0,), (-1,)) or step != (1,):
            return None
        if not (isinstance(start[0], int) and isinstance(end[0], int)):
            return None
        return first[start[0] : end[0]]


def depends_on_batch(size: Size) -> bool:
    """Whether a size is the number of samples, or may depend on it."""
    return size is None or size is Unknown.OF_BATCH


def _unknown_of(*sizes: Size) -> Unknown:
    """What is computed from sizes that are not all known."""
    return Unknown.OF_BATCH if any(map(depends_on_batch, sizes)) else Unknown.SIZE


def _is_vector(value: ir.Value | None) -> bool:
    """Whether a value has one axis or none. What is computed with rows and columns is not followed."""
    return value is not None and value.shape is not None and len(value.shape) <= 1


def _filled(node: ir.Node, shape: Sizes | None) -> Sizes | None:
    """A vector of one value."""
    value = node.attributes.get("value")
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > _MOST_AXES:
        return None
    if value is None or not value.as_tensor().dtype.is_integer():
        return None
    return (int(value.as_tensor().numpy().item()),) * shape[0]


def _chosen(sizes: Sizes, indices: Sizes | None) -> Sizes | None:
    if indices is None:
        return None
    known = [i for i in indices if isinstance(i, int) and -len(sizes) <= i < len(sizes)]
    return tuple(sizes[i] for i in known) if len(known) == len(indices) else None


def _joined(parts: Iterable[Sizes | None]) -> Sizes | None:
    joined: list[Size] = []
    for part in parts:
        if part is None:
            return None
        joined += part
    return tuple(joined)


def _each(function: Callable[..., Size], inputs: list[Sizes]) -> Sizes | None:
    """Computes element by element; a single one goes with all."""
    length = max(map(len, inputs))
    if any(len(sizes) not in (1, length) for sizes in inputs):
        return None
    return tuple(map(function, *(sizes * length if len(sizes) == 1 else sizes for sizes in inputs)))


def _of_integers(function: Callable[[int, int], Size]) -> Callable[[Size, Size], Size]:
    """A function of known sizes, whose result is unknown for others."""

    def computed(one: Size, other: Size) -> Size:
        if isinstance(one, int) and isinstance(other, int):
            return function(one, other)
        return _unknown_of(one, other)

    return computed


def _divided(one: int, other: int) -> Size:
    """Divides integers. What ONNX makes of negative ones depends on who computes it."""
    return one // other if one >= 0 and other > 0 else Unknown.SIZE


def _equal(one: Size, other: Size) -> Size:
    if isinstance(one, int) and isinstance(other, int):
        return int(one == other)
    # No number of samples is negative.
    number = one if isinstance(one, int) else other
    is_samples = None in (one, other)
    if is_samples and isinstance(number, int) and number < 0:
        return 0
    return _unknown_of(one, other)


def _where(condition: Size, one: Size, other: Size) -> Size:
    if isinstance(condition, int):
        return one if condition else other
    # Two sizes that are not known need not be the same.
    alike = one == other and not isinstance(one, Unknown)
    return one if alike else _unknown_of(condition, one, other)


_ELEMENTWISE: dict[str, Callable[..., Size]] = {
    "Add": _of_integers(operator.add),
    "Div": _of_integers(_divided),
    "Equal": _equal,
    "Mul": _of_integers(operator.mul),
    "Sub": _of_integers(operator.sub),
    "Where": _where,
}
