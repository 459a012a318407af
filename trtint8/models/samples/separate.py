"""Whether a network computes every sample by itself, so that a batch may be run in pieces."""

from __future__ import annotations

import onnx_ir as ir

from trtint8.models.inner_graphs import holds_graphs
from trtint8.models.samples.batch_sizes import BatchSizes
from trtint8.models.samples.rules import SHAPING, Found, keeps_samples_apart
from trtint8.models.static_shapes import StaticShapes, declared_sizes, open_inputs


def computes_samples_separately(graph_model: ir.Model) -> bool:
    """Whether the outputs for one sample depend on that sample alone, whatever else is in the batch.

    Args:
        graph_model: A model with inferred shapes.

    Returns:
        True only where all inputs have samples along axis 0, in any number, and every operator is known to
        compute each sample from the same sample of what it reads.
    """
    return _computed_separately(graph_model) is not None


def gives_outputs_of_samples(graph_model: ir.Model, *, follow_shapes: bool = True) -> bool:
    """Whether every output has, along axis 0, what is computed from each sample by itself.

    Args:
        graph_model: A model with inferred shapes.
        follow_shapes: Whether shapes that the graph computes are followed where none is declared, which may
            take longer than all the rest.

    Returns:
        True only where that is known: see :func:`computes_samples_separately`.
    """
    found = _computed_separately(graph_model, follow_shapes=follow_shapes)
    return found is not None and all(output in found for output in graph_model.graph.outputs)


def _computed_separately(graph_model: ir.Model, *, follow_shapes: bool = True) -> set[ir.Value | None] | None:
    """The tensors that have samples along axis 0; None where samples may depend on each other."""
    graph = graph_model.graph
    if not all(_is_open(value) for value in graph.inputs) or _has_the_batch_twice(graph):
        return None
    # With open sizes, computing shapes finds nothing more.
    follow_shapes = follow_shapes and not open_inputs(graph_model)
    shape_of = StaticShapes(graph_model).of if follow_shapes else declared_sizes
    found = Found(set(graph.inputs), BatchSizes(shape_of), shape_of)
    return found.samples if all(_keeps_samples(node, found) for node in graph) else None


def _keeps_samples(node: ir.Node, found: Found) -> bool:
    """Whether a node computes samples by themselves, or none; adds what it computes to what was found."""
    if holds_graphs(node):
        return False
    reads_samples = any(value in found.samples for value in node.inputs)
    reads_sizes = any(value in found.sizes for value in node.inputs)
    if not reads_samples and not reads_sizes:
        return True
    shapes = node.op_type in SHAPING and node.domain == ""
    makes_samples = shapes and node.inputs[0] not in found.sizes
    if not (makes_samples or reads_samples) or (node.op_type == "Shape" and node.domain == ""):
        found.sizes.follow(node)
        return True
    changes = any(found.sizes.depends_on_samples(value) for value in node.inputs)
    if (changes and not shapes) or not keeps_samples_apart(node, found):
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
