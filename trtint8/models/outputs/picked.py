"""Outputs that hold what a network picks, and models cut in two before them.

Element by element such outputs, as the boxes that non-maximum suppression leaves, say little of a quantized
network: where two scores are close, others are picked, or the same in another order, and their number may
differ. So what they are picked from is compared in their place. A model that ends in plugins of TensorRT is
cut before them, so that ONNX Runtime can run it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.checks import several
from calibrators.errors import Argument, ModelError, advice, such_as
from calibrators.operators import Picks as Picking
from calibrators.operators import Shown, Values, operator_of
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import (
    graph_values,
    is_constant,
    may_be_float,
    nodes_inside,
    read_constant,
    values_behind,
    values_read,
)
from trtint8.models.graph_writer import reached_from
from trtint8.models.model import Model, forget_origin
from trtint8.models.outputs.joined import giving, inferred_copy
from trtint8.models.plugins import plugin_nodes
from trtint8.models.serialization import fingerprint
from trtint8.models.shapes import declared_sizes


@dataclass(frozen=True)
class CutModel:
    """A model in two parts.

    Attributes:
        head: The part up to the tensors, which are outputs of it; with the outputs that need none of them.
        tail: The part that computes the other outputs, from these tensors and from inputs of the model.
    """

    head: Model
    tail: ir.Model


def cut_model(prepared: Model, tensors: Iterable[str]) -> CutModel:
    """Cuts a model at tensors.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`; not changed.
        tensors: Names of tensors that nodes compute. Outputs that are named stay outputs of the head.

    Returns:
        Both parts.

    Raises:
        ModelError: No tensor is named, or there is none of the name, or its type or shape is not known, or no
            output is computed from it.
    """
    tensors = several(tensors)
    if not tensors:
        raise ModelError("no tensor is named at which the model is to be cut; name one that a node computes")
    graph = prepared.graph_model.graph
    computed = {value.name: value for node in graph for value in node.outputs if value.name}
    for name in tensors:
        if not isinstance(name, str) or name not in computed:
            raise ModelError(
                f"'{prepared.name}' cannot be cut at '{name}': no node computes a tensor of that name; nodes "
                f"compute {such_as(reversed(computed))}"
            )
        if computed[name].type is None or computed[name].shape is None:
            raise ModelError(
                f"'{prepared.name}' cannot be cut at '{name}', whose type or shape is not known; cut it at "
                "another tensor"
            )
    chosen = list(dict.fromkeys(tensors))
    cut = {computed[name] for name in chosen}
    needing = reached_from(graph, cut, bool) - cut
    behind = [value for value in graph.outputs if value in needing]
    if not behind:
        listed = ", ".join(f"'{name}'" for name in chosen)
        raise ModelError(
            f"'{prepared.name}' cannot be cut at {listed}: no other output is computed from there; name "
            "tensors that are"
        )
    before = [value for value in graph.outputs if value not in behind and value not in cut]
    head = _part(prepared.graph_model, (), [*before, *(computed[name] for name in chosen)])
    tail = _part(prepared.graph_model, [computed[name] for name in chosen], behind)
    return CutModel(Model(head, prepared.name, fingerprint(head), prepared.fingerprint), tail)


def tensors_before(graph: ir.Graph, nodes: Collection[ir.Node]) -> tuple[str, ...]:
    """The tensors at which to cut a model so that some nodes, and all that needs them, are behind the cut.

    Args:
        graph: The graph of a prepared model.
        nodes: The nodes that are to be behind the cut.

    Returns:
        Names of the computed tensors that the part behind reads, and of the outputs that are computed from
        these and not behind the cut, in graph order; none where the part behind reads inputs alone.
    """
    reached = values_behind(graph, nodes.__contains__)
    before = {value for node in graph for value in node.outputs if value not in reached}
    read = {value for node in graph if reached.intersection(node.outputs) for value in values_read(node)}
    cut = {value for value in read if value in before and not is_constant(value)}
    cut |= reached_from(graph, cut, bool) & before & set(graph.outputs)
    return tuple(value.name or "" for node in graph for value in node.outputs if value in cut)


def _part(graph_model: ir.Model, starts: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
    """The part of a model that computes some values from others, and from inputs of the model."""
    graph = graph_model.graph
    inputs = [value for value in graph.inputs if value not in graph.initializers.values()]
    part = ir.convenience.extract(graph, [*starts, *inputs], outputs)
    for value in [value for value in part.inputs if not value.uses() and not value.is_graph_output()]:
        part.inputs.remove(value)
    model = ir.Model(
        part,
        ir_version=graph_model.ir_version,
        producer_name=graph_model.producer_name,
        producer_version=graph_model.producer_version,
        domain=graph_model.domain,
        model_version=graph_model.model_version,
        doc_string=graph_model.doc_string,
        metadata_props=dict(graph_model.metadata_props),  # the names of classes, for one
    )
    forget_origin(model)
    return model


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


@dataclass(frozen=True)
class ShownPicks:
    """A tensor that shows what a node picks by comparing values that layers have computed.

    Attributes:
        tensor: Its name. Where it is copied to an output, perhaps converted, it is that output; and a mask
            that is combined with others, or multiplied by values, is what comes of it.
        operator: The node's operator.
        shows: How it shows what is picked.
        axis: The axis of the places, for an operator that has one.
    """

    tensor: str
    operator: str
    shows: Shown
    axis: int = 0


@pause_garbage_collection()
def find_shown_picks(graph_model: ir.Model) -> tuple[ShownPicks, ...]:
    """Finds the tensors that show what a network picks, in the order in which they are computed.

    A place, a rank or an equality counts wherever in the network it is found. What is beyond a bound counts
    behind the last layer alone, and not where it only says which of two computed values a Where takes, as in
    a function that is defined piece by piece.

    Args:
        graph_model: The model; not changed.
    """
    if all(operator_of(node).shows is None for node in graph_model.graph):
        return ()
    if any(value.dtype is None for node in graph_model.graph for value in node.outputs):
        graph_model = inferred_copy(graph_model)
    nodes = list(graph_model.graph)
    activations, needed = _around_layers(nodes)

    def is_compared(value: ir.Value | None) -> bool:
        return value is not None and value in activations and may_be_float(value)

    found: dict[str, ShownPicks] = {}
    for node in nodes:
        operator = operator_of(node)
        if operator.shows is None or operator.shown_in >= len(node.outputs):
            continue
        value = node.outputs[operator.shown_in]
        needs = all if operator.shows is Shown.MASK else any
        if not (value.is_graph_output() or value.uses()) or not needs(
            is_compared(node.inputs[index]) for index in operator.decides
        ):
            continue
        if operator.shows is Shown.BEYOND and (value in needed or _chooses_computed(value)):
            continue
        name = _seen_in(value, is_mask=operator.shows in (Shown.MASK, Shown.BEYOND)).name or ""
        axis = node.attributes.get_int("axis", operator.axis)
        found.setdefault(name, ShownPicks(name, node.op_type, operator.shows, axis))
    found.pop("", None)
    return tuple(found.values())


def _chooses_computed(mask: ir.Value) -> bool:
    """Whether a mask only says which of two computed values a Where takes."""
    return not mask.is_graph_output() and all(
        node.op_type == "Where" and index == 0 and not any(map(is_constant, node.inputs[1:]))
        for node, index in mask.uses()
    )


def _seen_in(value: ir.Value, *, is_mask: bool) -> ir.Value:
    """The tensor in which picks are seen: an output if there is one, and that to which a mask leads."""
    while True:
        copies, readers = [value], list[tuple[ir.Node, int]]()
        for copy in copies:
            if copy.is_graph_output():
                return copy
            for node, index in copy.uses():
                if operator_of(node).values <= Values.CONVERTED:
                    copies.append(node.outputs[0])
                else:
                    readers.append((node, index))
        if not (is_mask and len(readers) == 1 and _narrows(*readers[0])):
            return value
        value = readers[0][0].outputs[0]


def _narrows(node: ir.Node, index: int) -> bool:
    """Whether what a node gives is zero where its mask is, and of the same shape."""
    mask, result = node.inputs[index], node.outputs[0]
    sizes = None if mask is None else declared_sizes(mask)
    if sizes is None or sizes != declared_sizes(result):
        return False
    if node.op_type == "Where" and index == 0:
        other = read_constant(node.inputs[2])
        return other is not None and not other.any()
    return operator_of(node).narrows


def computed_among(graph_model: ir.Model, names: Iterable[str]) -> tuple[str, ...]:
    """Those of some names that a model's nodes compute tensors of.

    Args:
        graph_model: The model.
        names: The names.
    """
    computed = _computed(graph_model)
    return tuple(name for name in names if name in computed)


def giving_picks(graph_model: ir.Model, shown: Sequence[ShownPicks]) -> ir.Model:
    """A model that gives nothing but the tensors that show what it picks.

    Args:
        graph_model: The model; not changed.
        shown: What :func:`find_shown_picks` finds in it, at least one.

    Returns:
        A copy with the same inputs, without the nodes that these tensors do not need.
    """
    return giving(graph_model, (one.tensor for one in shown), all_nodes=False)


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
    return giving(graph_model, (*(output.name or "" for output in graph_model.graph.outputs), *names))


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
    outputs = (output.name or "" for output in graph_model.graph.outputs)
    names = (picks.sources if name in picks.outputs else (name,) for name in outputs)
    return giving(graph_model, dict.fromkeys(itertools.chain(*names)), all_nodes=False)


def _computed(graph_model: ir.Model) -> dict[str, ir.Value]:
    """The tensors that nodes of the main graph compute, by name."""
    return {value.name or "": value for node in graph_model.graph for value in node.outputs}


def _found(graph_model: ir.Model) -> tuple[list[ir.Value], list[ir.Value]]:
    """The outputs that hold picks, and the activations that these are computed from."""
    nodes, plugins = list(graph_model.graph), set(plugin_nodes(graph_model))
    activations, needed = _around_layers(nodes)

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


def _around_layers(nodes: Sequence[ir.Node]) -> tuple[set[ir.Value], set[ir.Value]]:
    """What is computed from what layers compute, their results included, and what layers need."""
    layers = set(filter(_is_layer, nodes))
    of_values = [node for node in nodes if not operator_of(node).reads_shape]
    activations = values_behind(of_values, layers.__contains__)
    needed: set[ir.Value] = set()
    for node in reversed(nodes):
        if node in layers or any(value in needed for value in node.outputs):
            needed.update(values_read(node))
    return activations, needed


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


def picks_of_plugins(model: Model) -> Picks:
    """What the plugins at the end of a model compute, and from what; nothing where it has no plugins."""
    return find_picks(model.graph_model) if plugin_nodes(model.graph_model) else NO_PICKS


def runnable_part(model: Model, picks: Picks | None = None) -> Model:
    """A model without the plugins at its end, and without the outputs that these compute.

    Args:
        model: The model; not changed.
        picks: The outputs that plugins compute and what they compute these from, where that is known from
            another model.

    Returns:
        The part before the plugins, which gives the tensors that they read; with the fingerprint of the whole
        model. The model itself where it has no plugins.

    Raises:
        ModelError: Layers compute with what a plugin computes, or it reads nothing that layers compute.
    """
    if not plugin_nodes(model.graph_model):
        return model
    part = before_picks(model.graph_model, picks)
    if left := plugin_nodes(part):
        first = left[0]
        listed = ", ".join(f"'{name}'" for name in tensors_before(model.graph_model.graph, left)[:5])
        ways = [f"cut the model before it ({Argument('cut_at')} {listed})"] if listed else []
        ways += [
            f"take the implicit route, on which TensorRT calibrates ({Argument('route', 'implicit')})",
            "replace it by operators that ONNX Runtime knows",
        ]
        raise ModelError(
            f"node '{first.name}' of '{model.name}' has the operator '{first.op_type}', which ONNX Runtime "
            f"does not know, and it is not at the end of the network; {advice(*ways)}"
        )
    return model.part(part)


def left_out_nodes(model: Model) -> dict[str, str]:
    """The nodes that :func:`runnable_part` leaves out: plugins, and all that follows them.

    Args:
        model: A prepared model, whose nodes have names.

    Returns:
        Their names, to their operators, in the graph's order.
    """
    nodes = set(plugin_nodes(model.graph_model))
    behind = values_behind(model.graph_model.graph, nodes.__contains__) if nodes else ()
    return {
        node.name or "": node.op_type
        for node in model.graph_model.graph
        if any(value in behind for value in node.outputs)
    }


def with_plugins(part: ir.Model, whole: ir.Model) -> ir.Model:
    """A changed part of a model with the plugins that :func:`runnable_part` left out.

    Args:
        part: The part, whose tensors have the names that they had; not changed.
        whole: The model that it was a part of.

    Returns:
        A model with all outputs of ``whole``; the part itself where nothing was left out.
    """
    known = ir.convenience.create_value_mapping(part.graph, include_subgraphs=False)
    behind = [value for value in whole.graph.outputs if value.name not in known]
    if not behind:
        return part
    starts = [value for value in graph_values(whole.graph) if value.name in known]
    tail = ir.convenience.extract(whole.graph, starts, behind)
    changed = part.clone()
    graph = changed.graph
    known = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    for value in (*tail.inputs, *tail.initializers.values()):
        if value.name in known:
            value.replace_all_uses_with(known[value.name])
        else:
            del tail.initializers[value.name or ""]
            graph.register_initializer(value)
    known |= {value.name or "": value for value in tail.outputs}
    tail.outputs.clear()
    nodes = list(tail)
    tail.remove(nodes)
    graph.extend(nodes)
    graph.outputs.clear()
    graph.outputs.extend(known[value.name or ""] for value in whole.graph.outputs)
    changed.opset_imports.update({**whole.opset_imports, **changed.opset_imports})
    return changed
