"""The part of a model that ONNX Runtime can run: what comes before plugins of TensorRT."""

from __future__ import annotations

import onnx_ir as ir

from calibrators.errors import Argument, ModelError
from trtint8.models.inner_graphs import values_behind
from trtint8.models.loading.plugins import plugin_nodes
from trtint8.models.model import Model
from trtint8.models.outputs.cutting import tensors_before
from trtint8.models.outputs.picked import NO_PICKS, Picks, before_picks, find_picks


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
        raise ModelError(
            f"node '{first.name}' of '{model.name}' has the operator '{first.op_type}', which ONNX Runtime "
            "does not know, and it is not at the end of the network: "
            + (f"cut the model before it ({Argument('cut_at')} {listed}), or " if listed else "")
            + f"take the implicit route, on which TensorRT calibrates ({Argument('route')})"
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
    if not plugin_nodes(whole):
        return part
    changed = part.clone()
    graph = changed.graph
    known = {
        value.name: value
        for value in (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs))
    }

    def of_part(value: ir.Value | None) -> ir.Value | None:
        if value is not None and value.name not in known:
            copy = ir.Value(
                name=value.name, shape=value.shape, type=value.type, const_value=value.const_value
            )
            known[value.name] = copy
            if value.const_value is not None:
                graph.register_initializer(copy)
        return None if value is None else known[value.name]

    for node in whole.graph:
        if not any(value.name in known for value in node.outputs):
            inputs = [of_part(value) for value in node.inputs]
            outputs = [of_part(value) for value in node.outputs]
            graph.append(
                ir.Node(
                    node.domain,
                    node.op_type,
                    inputs,
                    node.attributes.values(),
                    outputs=[value for value in outputs if value is not None],
                    name=node.name,
                )
            )
    graph.outputs.clear()
    graph.outputs.extend(known[value.name] for value in whole.graph.outputs)
    changed.opset_imports.update({**whole.opset_imports, **changed.opset_imports})
    return changed
