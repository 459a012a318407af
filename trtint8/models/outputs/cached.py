"""Outputs that hold what a network caches for its next step, such as the keys and values of a decoder.

Such an output is an input with something added to it. It says little of how well the network computes: most
of it is the input again, without any noise, and what was added is read by the network itself, so that its
noise is in the other outputs as well. A decoder of 24 layers has 48 of them beside the one that matters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from calibrators.operators import Values, operator_of
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.static_shapes import declared_sizes


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
