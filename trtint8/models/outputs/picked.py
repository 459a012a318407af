"""Outputs that hold what a network picks, such as the boxes that non-maximum suppression leaves.

Element by element such outputs say little of a quantized network: where two scores are close, others are
picked, or the same in another order, and their number may differ. So what they are picked from is compared in
their place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.operators import Picks as Picking
from calibrators.operators import Values, operator_of
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph_constants import is_constant
from trtint8.models.inner_graphs import nodes_inside, values_behind, values_read
from trtint8.models.kinds import may_be_float
from trtint8.models.loading.plugins import plugin_nodes
from trtint8.models.outputs.parts import inferred_copy


@dataclass(frozen=True)
class Picks:
    """What a network picks at its end.

    Attributes:
        outputs: Names of the outputs that hold picked elements, or which they are.
        sources: Names of the floating-point tensors that they are picked from, and picked by.
    """

    outputs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


#: Of networks that pick nothing.
NO_PICKS = Picks()


@pause_garbage_collection()
def find_picks(graph_model: ir.Model) -> Picks:
    """Finds the outputs that hold what a network picks by its own activations.

    What is picked behind the last layer counts, of what a layer has computed: all outputs behind TopK,
    NonMaxSuppression and others that give elements by rank or some number of them, or behind plugins; and the
    places that ArgMax and ArgMin find, as integers, or joined to other values as floats.

    Args:
        graph_model: The model; not changed.

    Returns:
        Nothing where there is no such output, or it is not known what it is picked from.
    """
    nodes, plugins = graph_model.graph, set(plugin_nodes(graph_model))
    if not plugins and all(operator_of(node).picks is None for node in nodes):
        return NO_PICKS
    if any(value.dtype is None for node in nodes if node not in plugins for value in node.outputs):
        graph_model = inferred_copy(graph_model)
    outputs, sources = _found(graph_model)
    origins = dict.fromkeys(_origin(value) for value in sources if _is_float(value))
    independent = [value for value in origins if not _follows_from(value, origins)]
    if not outputs or not independent:
        return NO_PICKS
    return Picks(*(tuple(value.name or "" for value in values) for values in (outputs, independent)))


def sources_inside(graph_model: ir.Model, picks: Picks) -> tuple[str, ...]:
    """The tensors that outputs are picked from, except those that are outputs themselves.

    Args:
        graph_model: The model.
        picks: What :func:`find_picks` finds in it.
    """
    given = {output.name for output in graph_model.graph.outputs}
    return tuple(name for name in picks.sources if name not in given)


def with_outputs(graph_model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A model with further outputs.

    Args:
        graph_model: The model; not changed.
        names: Names of tensors that its nodes compute, and that are no outputs yet.

    Returns:
        A copy; the model itself where there are no names.
    """
    if not names:
        return graph_model
    known = _computed(graph_model)
    lacks_types = any(known[name].dtype is None for name in names)
    extended = inferred_copy(graph_model) if lacks_types else graph_model.clone()
    computed = _computed(extended)
    extended.graph.outputs.extend(computed[name] for name in names)
    return extended


def computes_all(graph_model: ir.Model, names: Sequence[str]) -> bool:
    """Whether a model's nodes compute all tensors of some names.

    Args:
        graph_model: The model.
        names: The names.
    """
    return _computed(graph_model).keys() >= set(names)


@pause_garbage_collection()
def before_picks(graph_model: ir.Model, picks: Picks | None = None) -> ir.Model:
    """A model that gives what is picked from in place of what is picked.

    Args:
        graph_model: The model; not changed.
        picks: What :func:`find_picks` finds in it, where that is known.

    Returns:
        A copy with the same inputs, without the nodes that only its picked outputs need; the model itself
        where it has no such outputs.
    """
    picks = picks or find_picks(graph_model)
    if not picks.outputs:
        return graph_model
    inside = sources_inside(graph_model, picks)
    changed = with_outputs(graph_model, inside) if inside else graph_model.clone()
    graph, computed = changed.graph, _computed(changed)
    kept: dict[ir.Value, None] = {}
    for output in graph.outputs[: len(graph.outputs) - len(inside)]:
        names = picks.sources if output.name in picks.outputs else (output.name or "",)
        kept.update(dict.fromkeys(computed.get(name, output) for name in names))
    graph.outputs.clear()
    graph.outputs.extend(kept)
    common.RemoveUnusedNodesPass()(changed)
    return changed


def _computed(graph_model: ir.Model) -> dict[str, ir.Value]:
    """The tensors that nodes of the main graph compute, by name."""
    return {value.name or "": value for node in graph_model.graph for value in node.outputs}


def _found(graph_model: ir.Model) -> tuple[list[ir.Value], list[ir.Value]]:
    """The outputs that hold picks, and the activations that these are computed from."""
    nodes, plugins = list(graph_model.graph), set(plugin_nodes(graph_model))
    layers = set(filter(_is_layer, nodes))
    of_values = [node for node in nodes if not operator_of(node).reads_shape]
    activations = values_behind(of_values, layers.__contains__)
    needed: set[ir.Value] = set()  # by layers
    for node in reversed(nodes):
        if node in layers or any(value in needed for value in node.outputs):
            needed.update(values_read(node))

    def decides(node: ir.Node) -> bool:
        at_the_end = not any(value in needed for value in node.outputs)
        return at_the_end and any(value in activations for value in values_read(node))

    def picks(node: ir.Node, what: Picking) -> bool:
        return operator_of(node).picks is what and decides(node)

    ranked = values_behind(
        nodes, lambda node: picks(node, Picking.ELEMENTS) or (node in plugins and decides(node))
    )
    # What is computed from places stays where it is, so that its values can be compared, but not the places.
    placed = values_behind(nodes, lambda node: picks(node, Picking.PLACES))
    places: set[ir.Value] = set()
    for node in nodes:
        joined = _keeps_all(node) and any(value in places for value in node.inputs)
        found = (value for value in node.outputs if value in placed)
        places.update(value for value in found if joined or not may_be_float(value))
    outputs = [value for value in graph_model.graph.outputs if value in ranked or value in places]
    waiting, sources, seen = [*outputs], dict[ir.Value, None](), set(outputs)
    while waiting:
        producer = waiting.pop().producer()
        for value in () if producer is None else values_read(producer):
            if value in seen:
                continue
            seen.add(value)
            # Where elements are picked by a comparison, it is of floating-point values.
            if value in ranked or value in placed or (value in activations and not may_be_float(value)):
                waiting.append(value)
            elif value in activations:
                sources[value] = None
    # In the order in which they are computed.
    return outputs, [value for node in nodes for value in node.outputs if value in sources]


def _keeps_all(node: ir.Node) -> bool:
    """Whether a node gives out all elements that it reads, perhaps joined or converted."""
    return operator_of(node).values <= Values.REORDERED or (node.op_type == "Concat" and not node.domain)


def _is_layer(node: ir.Node) -> bool:
    """Whether a node computes products with weights or of activations.

    What it computes is worth comparing, also where it is computed from picked elements, as in a decoder that
    picks its queries.
    """
    return any(operator_of(inner).multiplies for inner in (node, *nodes_inside(node)))


def _origin(value: ir.Value) -> ir.Value:
    """The tensor that has the same elements, before they were put elsewhere."""
    node = value.producer()
    while node is not None and operator_of(node).values <= Values.REORDERED:
        before = node.inputs[0]
        if before is None or before.producer() is None or not _is_float(before):
            break
        value, node = before, before.producer()
    return value


def _follows_from(value: ir.Value, others: Collection[ir.Value]) -> bool:
    """Whether a tensor is computed from others without a layer, such as the largest score from all."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        node = waiting.pop().producer()
        if node is None or _is_layer(node):
            return False
        for source in values_read(node):
            if source not in others and source not in seen and not is_constant(source):
                seen.add(source)
                waiting.append(source)
    return True


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()
