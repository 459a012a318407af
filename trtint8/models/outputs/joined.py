"""Outputs in which several quantities are joined, and outputs that hold what a network caches.

One measure of joined quantities, such as the boxes and scores of a detector, says how well the one with the
largest values is kept, and nothing of the others: boxes in pixels hide any error of scores between 0 and 1.
So each quantity is measured by itself.

A cache for the network's next step, such as the keys and values of a decoder, is an input with something
added to it. It says little of how well the network computes. Most of it is the input again, without any
noise. What was added is read by the network itself, so that its noise is in the other outputs as well. A
decoder of 24 layers has 48 of them beside the one that matters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import Values, operator_of
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.shapes import declared_sizes

#: The most quantities that are told apart; a join of more, as of the layers of a dense block, is one.
_MOST = 8


@dataclass(frozen=True)
class OutputPart:
    """A part of an output, or all of it.

    Attributes:
        name: The output's name, and which part it is as NumPy would index it, such as ``output0[:, 4:84]``.
        output: The output's name.
        index: What selects the part; empty for all of it.
    """

    name: str
    output: str
    index: tuple[slice, ...] = ()

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """The part, as a view.

        Args:
            array: The output.
        """
        return array[self.index] if self.index else array


@pause_garbage_collection()
def output_parts(graph_model: ir.Model) -> tuple[OutputPart, ...]:
    """The parts of a model's outputs, in order.

    An output of three axes or more has a part for each tensor that a Concat joins to it, along another axis
    than the first, as far as the graph tells their sizes. Casts, transpositions and reshapings that keep the
    axis may follow the Concat, and so may one of several levels. Every other output is one part.

    Args:
        graph_model: The model; not changed.
    """
    joined = [output for output in graph_model.graph.outputs if len(declared_sizes(output) or ()) > 2]
    if any(list(_joins_before(output)) for output in joined):
        graph_model = _inferred_anew(graph_model)
    parts: list[OutputPart] = []
    for output in graph_model.graph.outputs:
        name = output.name or ""
        found = _joined(output) if len(declared_sizes(output) or ()) > 2 else None
        parts += [OutputPart(name, name)] if found is None else found.parts(name)
    return tuple(parts)


def inferred_copy(graph_model: ir.Model) -> ir.Model:
    """A copy of a model that declares the types and shapes of its tensors, as far as ONNX infers them.

    Args:
        graph_model: The model.
    """
    copy = graph_model.clone()
    InferShapesPass()(copy)
    return copy


def _inferred_anew(graph_model: ir.Model) -> ir.Model:
    """A copy of a model with the shapes that ONNX infers, and those that it declares where ONNX infers none.

    What a model declares of its inner tensors may be left over from before it was edited.
    """
    copy = graph_model.clone()
    values = [value for node in copy.graph for value in node.outputs]
    declared = [value.shape for value in values]
    for value in values:
        value.shape = None
    InferShapesPass()(copy)
    for value, shape in zip(values, declared, strict=True):
        if shape is not None and None in (declared_sizes(value) or (None,)):
            inferred = declared_sizes(value) or (None,) * len(shape)
            if len(inferred) == len(shape):
                value.shape = ir.Shape(
                    [old if new is None else new for new, old in zip(inferred, shape, strict=True)]
                )
    return copy


def split_outputs(
    parts: Sequence[OutputPart], outputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Outputs by the names of their parts.

    Args:
        parts: The parts.
        outputs: All outputs by name.
    """
    return {part.name: part.of(outputs[part.output]) for part in parts}


@dataclass(frozen=True)
class _Joined:
    """How a tensor is made of several along an axis.

    Attributes:
        axis: The axis, counted from the first one.
        sizes: How many elements each has along it.
        rank: The number of the tensor's axes.
    """

    axis: int
    sizes: tuple[int, ...]
    rank: int

    def parts(self, output: str) -> list[OutputPart]:
        found, start = [], 0
        for size in self.sizes:
            index = (*(slice(None),) * self.axis, slice(start, start + size))
            before = "..., " if 1 < self.axis == self.rank - 1 else ":, " * self.axis
            found.append(OutputPart(f"{output}[{before}{start}:{start + size}]", output, index))
            start += size
        return found


_Sizes: TypeAlias = tuple[int | None, ...]


def _joins_before(value: ir.Value | None) -> Iterator[ir.Node]:
    """The Concats between a tensor and what computes its elements."""
    node = None if value is None else value.producer()
    if node is not None and not node.domain:
        if node.op_type == "Concat":
            yield node
            for joined in dict.fromkeys(node.inputs):
                yield from _joins_before(joined)
        elif _keeps_quantities(node):
            yield from _joins_before(node.inputs[0])


def _keeps_quantities(node: ir.Node) -> bool:
    """Whether quantities stay what they are behind a node, none is missing, and axes can be followed."""
    return operator_of(node).keeps_order or (node.op_type == "Transpose" and not node.domain)


def _lacks_sizes(node: ir.Node) -> bool:
    """Whether the model does not say how long the inputs of a Concat are along its axis."""
    axis = node.attributes.get_int("axis", 0)
    found = [declared_sizes(value) for value in node.inputs]
    return any(not sizes or sizes[axis] is None for sizes in found)


def _joined(value: ir.Value | None) -> _Joined | None:
    """How a tensor is made of several; None where it is of one piece, or sizes are not known."""
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Concat":
        return _of_concat(node)
    if not _keeps_quantities(node):
        return None
    before = _joined(node.inputs[0])
    if before is None or operator_of(node).values <= Values.CONVERTED:
        return before
    if node.op_type == "Transpose":
        return _Joined(_permutation(node, before.rank).index(before.axis), before.sizes, before.rank)
    return _reshaped(before, declared_sizes(node.inputs[0]), declared_sizes(node.outputs[0]))


def _of_concat(node: ir.Node) -> _Joined | None:
    if _lacks_sizes(node):
        return None
    found = [declared_sizes(value) or () for value in node.inputs]
    rank = len(found[0])
    axis = node.attributes.get_int("axis", 0) % rank
    if all(_holds_positions(value, axis) for value in node.inputs):
        # Levels of a feature pyramid: the result is made of the quantities that all of them are made of.
        levels = {_joined(value) for value in dict.fromkeys(node.inputs)}
        (level,) = levels if len(levels) == 1 else (None,)
        return level if level is not None and level.axis != axis else None
    sizes = tuple(sizes[axis] or 0 for sizes in found)
    return _Joined(axis, sizes, rank) if axis and 1 < len(sizes) <= _MOST and all(sizes) else None


def _holds_positions(value: ir.Value | None, axis: int) -> bool:
    """Whether an axis was made of others since the tensor was computed, such as of height and width."""
    node = None if value is None else value.producer()
    while node is not None and _keeps_quantities(node):
        before, after = declared_sizes(node.inputs[0]), declared_sizes(node.outputs[0])
        if node.op_type == "Transpose":
            axis = _permutation(node, len(after or ()))[axis]
        elif operator_of(node).values > Values.CONVERTED:
            kept = _reshaped(_Joined(axis, (), len(after or ())), after, before)
            if kept is None:
                return True
            axis = kept.axis
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return False


def _permutation(node: ir.Node, rank: int) -> Sequence[int]:
    return list(node.attributes.get_ints("perm", tuple(reversed(range(rank)))))


def _reshaped(joined: _Joined, before: _Sizes | None, after: _Sizes | None) -> _Joined | None:
    """What a reshaping leaves; None where it does not keep the axis."""
    if not before or not after:
        return None
    ahead, behind = before[: joined.axis + 1], before[joined.axis :]
    if None not in behind and after[-len(behind) :] == behind:
        return _Joined(len(after) - len(behind), joined.sizes, len(after))
    # The number of samples may be open on both sides.
    if None not in ahead[1:] and after[: len(ahead)] == ahead:
        return _Joined(joined.axis, joined.sizes, len(after))
    return None


def cached_outputs(graph_model: ir.Model) -> tuple[str, ...]:
    """Finds the outputs that are an input with something added.

    A Concat has to add to the input along a dimension that is not fixed, or ScatterND, ScatterElements or
    TensorScatter write into it; nothing else reads the input, and other nodes read the result. Or the
    operator Attention returns it.

    Args:
        graph_model: The model.

    Returns:
        Their names, in order; none where no other output would be left.
    """
    outputs = graph_model.graph.outputs
    names = tuple(value.name or "" for value in outputs if _is_cached(value))
    return names if len(names) < len(outputs) else ()


@pause_garbage_collection()
def without_cached_outputs(graph_model: ir.Model) -> ir.Model:
    """A model that does not give out what it caches, with the same nodes.

    Fewer outputs may let more be quantized: where pairs go has to be asked of the whole model.

    Args:
        graph_model: The model; not changed.

    Returns:
        A copy with the same inputs; the model itself where it caches nothing.
    """
    return without_outputs(graph_model, cached_outputs(graph_model))


def without_outputs(graph_model: ir.Model, names: Collection[str]) -> ir.Model:
    """A model that does not give some of its outputs out, with the same nodes.

    Args:
        graph_model: The model; not changed.
        names: The outputs that it does not give out.

    Returns:
        A copy; the model itself where there are no names.
    """
    if not names:
        return graph_model
    changed = graph_model.clone()
    kept = [value for value in changed.graph.outputs if value.name not in names]
    changed.graph.outputs.clear()
    changed.graph.outputs.extend(kept)
    return changed


def _is_cached(output: ir.Value) -> bool:
    copies = list(_copies(output))
    node = copies[-1].producer()
    if node is None or node.domain:
        return False
    if node.op_type == "Attention":
        place = node.outputs.index(copies[-1])
        return place in (1, 2) and len(node.inputs) > 5 and _is_input(node.inputs[place + 3])
    if not any(_readers(value) for value in copies):
        return False
    if node.op_type == "Concat":
        return any(_adds_to(node, before) for before in node.inputs)
    return operator_of(node).writes_into and _is_only_read_by(node, node.inputs[0])


def _adds_to(concat: ir.Node, before: ir.Value | None) -> bool:
    """Whether a Concat adds to an input of the graph, along a dimension that is not fixed."""
    if before is None or not _is_only_read_by(concat, before):
        return False
    *_, value = _copies(before)
    sizes = declared_sizes(value)
    return sizes is not None and sizes[concat.attributes.get_int("axis", 0)] is None


def _is_only_read_by(node: ir.Node, value: ir.Value | None) -> bool:
    """Whether a tensor is an input of the graph, of which nothing else reads the values."""
    if value is None or not _is_input(value):
        return False
    return all(_readers(copy) <= {node} for copy in _copies(value))


def _is_input(value: ir.Value | None) -> bool:
    if value is None:
        return False
    *_, origin = _copies(value)
    return origin.is_graph_input() and not origin.is_initializer()


def _readers(value: ir.Value) -> set[ir.Node]:
    """The nodes that read the values of a tensor, without those that copy or convert it."""
    return {node for node, _ in value.uses() if not (_is_copy(node) or operator_of(node).reads_shape)}


def _is_copy(node: ir.Node) -> bool:
    """Whether a node gives what it reads; exporters write a Concat of one tensor where a cache begins."""
    if operator_of(node).values <= Values.CONVERTED:
        return True
    return not node.domain and node.op_type == "Concat" and len(node.inputs) == 1


def _copies(value: ir.Value) -> Iterator[ir.Value]:
    """A tensor, and those that it was copied or converted from, the first one last."""
    yield value
    node = value.producer()
    while node is not None and _is_copy(node) and node.inputs[0] is not None:
        yield node.inputs[0]
        node = node.inputs[0].producer()
