"""Outputs in which several quantities are joined, and outputs that hold what a network caches.

One measure of joined quantities, such as the boxes and scores of a detector, says how well the one with the
largest values is kept, and nothing of the others: boxes in pixels hide any error of scores between 0 and 1.
So each quantity is measured by itself.

A cache for the network's next step, such as the keys and values of a decoder, is an input with something
added to it. It says little of how well the network computes. Most of it is the input again, without any
noise. What was added is read by the network itself, so that its noise is in the other outputs as well. A
decoder of 24 layers has 48 of them beside the one that matters. For the same reason all elements that INT8
cannot change are left out: they would hide the noise of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.data.feeds import Array, NamedArrays
from calibrators.operators import Values, operator_of
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import made_by, nodes_inside, values_behind, values_read
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
        partly_copied: Whether some elements of the output come from no layer, although others do.
    """

    name: str
    output: str
    index: tuple[slice, ...] = ()
    partly_copied: bool = False

    def of(self, array: Array) -> Array:
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
    copied = _partly_copied(graph_model)
    return tuple(replace(part, partly_copied=part.output in copied) for part in parts)


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


def split_outputs(parts: Sequence[OutputPart], outputs: NamedArrays) -> dict[str, Array]:
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
    node = made_by(value)
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


def _joined(value: ir.Value | None) -> _Joined | None:
    """How a tensor is made of several; None where it is of one piece, or sizes are not known."""
    node = made_by(value)
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
    axis = node.attributes.get_int("axis", 0)
    found = [declared_sizes(value) for value in node.inputs]
    known = [
        sizes for sizes in found if sizes and -len(sizes) <= axis < len(sizes) and sizes[axis] is not None
    ]
    if len(known) < len(found):
        return None  # the model does not say how long the inputs are along the axis
    rank = len(known[0])
    axis %= rank
    if all(_holds_positions(value, axis) for value in node.inputs):
        # Levels of a feature pyramid: the result is made of the quantities that all of them are made of.
        levels = {_joined(value) for value in dict.fromkeys(node.inputs)}
        (level,) = levels if len(levels) == 1 else (None,)
        return level if level is not None and level.axis != axis else None
    sizes = tuple(sizes[axis] or 0 for sizes in known)
    return _Joined(axis, sizes, rank) if axis and 1 < len(sizes) <= _MOST and all(sizes) else None


def _holds_positions(value: ir.Value | None, axis: int) -> bool:
    """Whether an axis was made of others since the tensor was computed, such as of height and width."""
    node = made_by(value)
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

    They hold elements of an input and computed elements, joined along any axis, or written into each other.
    Nothing else reads the input, and other nodes read the result. Or the operator Attention returns them.

    Args:
        graph_model: The model.

    Returns:
        Their names, in order; none where no other output would be left.
    """
    outputs = graph_model.graph.outputs
    names = tuple(value.name or "" for value in outputs if _is_cached(value))
    return names if len(names) < len(outputs) else ()


def _partly_copied(graph_model: ir.Model) -> set[str | None]:
    """The outputs of which some elements come from no layer, although others do."""
    computed = _values_behind(graph_model, lambda node: operator_of(node).multiplies)
    return {
        value.name
        for value in graph_model.graph.outputs
        if _computed_parts(value, computed) not in ([], [value])
    }


@pause_garbage_collection()
def compared_tensors(graph_model: ir.Model, quantized: Collection[str]) -> tuple[str, ...]:
    """Finds the tensors by which a quantized network is compared with the float network.

    They are its outputs, without those that it caches and those that INT8 does not change. Where INT8 leaves
    some elements of an output as they are, the tensors are compared that the other elements come from.

    Args:
        graph_model: The model.
        quantized: Names of the nodes that read Q/DQ pairs.

    Returns:
        Their names; those of the outputs where nothing else is left.
    """
    computed = _values_behind(graph_model, lambda node: node.name in quantized)
    cached = cached_outputs(graph_model)
    kept = [value for value in graph_model.graph.outputs if value.name not in cached]
    found = dict.fromkeys(part.name or "" for value in kept for part in _computed_parts(value, computed))
    return tuple(found or (value.name or "" for value in kept))


def giving(graph_model: ir.Model, names: Iterable[str], *, all_nodes: bool = True) -> ir.Model:
    """A model that gives out some of its tensors and nothing else, with the same inputs.

    Fewer outputs may let more be quantized: where pairs go has to be asked of the whole model.

    Args:
        graph_model: The model; not changed.
        names: The tensors.
        all_nodes: Whether nodes stay that these do not need.

    Returns:
        A copy; the model itself where these are its outputs, and all nodes stay.
    """
    wanted, outputs = tuple(names), graph_model.graph.outputs
    if all_nodes and wanted == tuple(value.name for value in outputs):
        return graph_model
    tensors = ir.convenience.create_value_mapping(graph_model.graph, include_subgraphs=False)
    lacks_types = any(tensors[name].dtype is None for name in wanted)
    changed = inferred_copy(graph_model) if lacks_types else graph_model.clone()
    tensors = ir.convenience.create_value_mapping(changed.graph, include_subgraphs=False)
    changed.graph.outputs.clear()
    changed.graph.outputs.extend(tensors[name] for name in wanted)
    if not all_nodes:
        common.RemoveUnusedNodesPass()(changed)
    return changed


def _values_behind(graph_model: ir.Model, starts: Callable[[ir.Node], bool]) -> set[ir.Value]:
    """What some nodes compute, or nodes inside them, and all whose values are computed from it."""
    return values_behind(
        (node for node in graph_model.graph if not operator_of(node).reads_shape),
        lambda node: any(map(starts, (node, *nodes_inside(node)))),
    )


def _placed_data(value: ir.Value) -> list[ir.Value]:
    """The tensors whose elements a tensor holds as they are; none where they are computed."""
    node = value.producer()
    if node is None:
        return []
    operator = operator_of(node)
    writes = operator.writes_into and node.attributes.get_string("reduction", "none") == "none"
    if operator.values > Values.PLACED and not writes:
        return []
    data = (node.inputs[index] for index in operator.data_among(len(node.inputs)))
    return [one for one in data if one is not None]


def _computed_parts(value: ir.Value, computed: Collection[ir.Value]) -> list[ir.Value]:
    """The tensors from which those elements of a tensor come that are among computed ones, each once.

    Args:
        value: The tensor.
        computed: What some nodes compute, and all that is computed from it.

    Returns:
        The tensor itself where all its elements are; none where it has none of these.
    """

    @cache
    def parts(tensor: ir.Value) -> list[ir.Value]:
        if tensor not in computed:
            return []
        node, data = tensor.producer(), _placed_data(tensor)
        if node is None or any(one in computed for one in values_read(node) if one not in data):
            return [tensor]  # which elements it holds is computed
        inner = list(dict.fromkeys(part for one in data for part in parts(one)))
        return [tensor] if inner == list(dict.fromkeys(data)) else inner

    return parts(value)


def _is_cached(output: ir.Value) -> bool:
    """Whether an output is an input of the graph with something added, which the network reads itself."""
    origins = _origins(output)
    if any(map(_is_returned_cache, origins[output])):
        return True
    joining = {value.producer() for value, found in origins.items() if value not in found}
    given = {value for value, found in origins.items() if all(map(_is_input, found))}
    joined = {value for value, found in origins.items() if any(map(_is_input, found))} - given
    return (
        bool(given and joined)
        and all(_readers(value) <= joining for value in given)
        and any(_readers(value) - joining for value in joined)
    )


def _origins(value: ir.Value) -> dict[ir.Value, frozenset[ir.Value]]:
    """The tensors that elements of a tensor come through as they are, to those that they were first in."""
    found: dict[ir.Value, frozenset[ir.Value]] = {}

    def visit(tensor: ir.Value) -> frozenset[ir.Value]:
        if tensor not in found:
            found[tensor] = frozenset().union(*map(visit, _placed_data(tensor))) or frozenset([tensor])
        return found[tensor]

    visit(value)
    return found


def _is_returned_cache(value: ir.Value) -> bool:
    """Whether the operator Attention gives a tensor as one that it has added keys or values to."""
    node = value.producer()
    if node is None or node.domain or node.op_type != "Attention" or len(node.inputs) <= 5:
        return False
    place = node.outputs.index(value)
    past = node.inputs[place + 3] if place in (1, 2) else None
    return past is not None and all(map(_is_input, _origins(past)[past]))


def _is_input(value: ir.Value) -> bool:
    return value.is_graph_input() and not value.is_initializer()


def _readers(value: ir.Value) -> set[ir.Node | None]:
    """The nodes that read the values of a tensor."""
    return {node for node, _ in value.uses() if not operator_of(node).reads_shape}
