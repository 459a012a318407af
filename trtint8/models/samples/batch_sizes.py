"""Vectors of sizes that a graph computes from the shapes of its tensors, such as the target of a Reshape."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from trtint8.models.graph_constants import constant_integers

#: Sizes along the axes of a tensor; None in place of the number of samples.
Sizes = tuple[int | None, ...]

#: Operators that leave a vector's elements as they are, read one after another.
_COPYING = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


class BatchSizes:
    """What is known of values that depend on the number of samples in a batch, and on nothing else of it."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, Sizes | None] = {}

    def __contains__(self, value: ir.Value | None) -> bool:
        """Whether a value was computed from shapes, by nodes that were followed."""
        return value in self._known

    def follow(self, node: ir.Node) -> None:
        """Follows a node that reads a shape, or reads constants and values that were followed.

        Args:
            node: The node, in the order in which the graph runs.
        """
        found = _shape_of(node) if node.op_type == "Shape" else self._computed(node)
        self._known.update((output, found) for output in node.outputs)

    def of(self, value: ir.Value | None) -> Sizes | None:
        """The elements of a vector, or None where they are not known.

        Args:
            value: A constant, or a value that was followed.
        """
        if value in self._known:
            return self._known[value]
        return constant_integers(value)

    def _computed(self, node: ir.Node) -> Sizes | None:
        if node.domain != "" or not node.inputs:
            return None
        first = self.of(node.inputs[0])
        if node.op_type in _COPYING:
            return first
        if node.op_type == "Concat":
            return _joined(map(self.of, node.inputs))
        if node.op_type == "Gather" and first is not None:
            return _chosen(first, self.of(node.inputs[1]))
        if node.op_type == "Slice" and first is not None:
            return self._sliced(node, first)
        return None

    def _sliced(self, node: ir.Node, first: Sizes) -> Sizes | None:
        start, end, axes, step = (
            self.of(node.inputs[i]) if len(node.inputs) > i and node.inputs[i] is not None else default
            for i, default in ((1, None), (2, None), (3, (0,)), (4, (1,)))
        )
        if not start or not end or axes not in ((0,), (-1,)) or step != (1,):
            return None
        return first[start[0] : end[0]]


def _shape_of(node: ir.Node) -> Sizes | None:
    """The sizes of a tensor whose axis 0 has the samples."""
    value = node.inputs[0]
    if value is None or value.shape is None or not all(isinstance(size, int) for size in value.shape[1:]):
        return None
    sizes: Sizes = (None, *(size for size in value.shape[1:] if isinstance(size, int)))
    start = node.attributes.get_int("start", 0)
    return sizes[start : node.attributes.get_int("end", len(sizes))]


def _chosen(sizes: Sizes, indices: Sizes | None) -> Sizes | None:
    if indices is None:
        return None
    known = [i for i in indices if i is not None and -len(sizes) <= i < len(sizes)]
    return tuple(sizes[i] for i in known) if len(known) == len(indices) else None


def _joined(parts: Iterable[Sizes | None]) -> Sizes | None:
    joined: list[int | None] = []
    for part in parts:
        if part is None:
            return None
        joined += part
    return tuple(joined)
