"""Cuts a model in two at tensors: the part up to them, and the part that is computed from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.checks import several
from calibrators.errors import ModelError
from trtint8.models.graph import is_constant, values_behind, values_read
from trtint8.models.model import Model
from trtint8.models.serialization import fingerprint


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
            example = ", ".join(f"'{known}'" for known in list(computed)[-2:])
            raise ModelError(
                f"'{prepared.name}' cannot be cut at '{name}': no node computes a tensor of that name; there "
                f"are for example {example}"
            )
        if computed[name].type is None or computed[name].shape is None:
            raise ModelError(
                f"'{prepared.name}' cannot be cut at '{name}', whose type or shape is not known; cut it at "
                "another tensor"
            )
    chosen = list(dict.fromkeys(tensors))
    cut = {computed[name] for name in chosen}
    behind = [value for value in graph.outputs if value not in cut and _needs(value, cut)]
    if not behind:
        listed = ", ".join(f"'{name}'" for name in chosen)
        raise ModelError(
            f"'{prepared.name}' cannot be cut at {listed}: no other output is computed from there; name "
            "tensors that are"
        )
    before = [value for value in graph.outputs if value not in behind and value not in cut]
    head = _part(prepared.graph_model, (), [*before, *(computed[name] for name in chosen)])
    tail = _part(prepared.graph_model, [computed[name] for name in chosen], behind)
    return CutModel(Model(head, prepared.name, fingerprint(head)), tail)


def tensors_before(graph: ir.Graph, nodes: Collection[ir.Node]) -> tuple[str, ...]:
    """The tensors at which to cut a model so that some nodes, and all that needs them, are behind the cut.

    Args:
        graph: The graph of a prepared model.
        nodes: The nodes that are to be behind the cut.

    Returns:
        Names of the computed tensors that the part behind reads, and of the outputs that are computed from
        these and not behind the cut, in graph order; none where the part behind reads inputs alone.
    """
    behind = _nodes_behind(graph, nodes)
    before = {value for node in graph if node not in behind for value in node.outputs}
    read = {value for node in graph if node in behind for value in values_read(node)}
    cut = {value for value in read if value in before and not is_constant(value)}
    cut |= {value for value in graph.outputs if value in before and _needs(value, cut)}
    return tuple(value.name or "" for node in graph for value in node.outputs if value in cut)


def _nodes_behind(graph: ir.Graph, nodes: Collection[ir.Node]) -> set[ir.Node]:
    """Some nodes of a graph, and all that need what they compute."""
    reached = values_behind(graph, nodes.__contains__)
    return {node for node in graph if any(value in reached for value in node.outputs)}


def _needs(output: ir.Value, cut: Collection[ir.Value]) -> bool:
    """Whether an output is computed from at least one of some tensors."""
    waiting, seen = [output], {output}
    while waiting:
        value = waiting.pop()
        if value in cut:
            return True
        node = value.producer()
        for source in values_read(node) if node is not None else ():
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return False


def _part(graph_model: ir.Model, starts: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
    """The part of a model that computes some values from others, and from inputs of the model."""
    graph = graph_model.graph
    inputs = [value for value in graph.inputs if value not in graph.initializers.values()]
    part = ir.convenience.extract(graph, [*starts, *inputs], outputs)
    for value in [value for value in part.inputs if not value.uses() and not value.is_graph_output()]:
        part.inputs.remove(value)
    return ir.Model(
        part,
        ir_version=graph_model.ir_version,
        producer_name=graph_model.producer_name,
        producer_version=graph_model.producer_version,
        functions=[function.clone() for function in graph_model.functions.values()],
    )
