"""Whether a network computes every sample by itself, so that a batch may be run in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import onnx_ir as ir

from trtint8.models.inner_graphs import holds_graphs
from trtint8.models.samples.batch_sizes import BatchSizes
from trtint8.models.samples.rules import SHAPING, Found, keeps_samples_apart
from trtint8.models.static_shapes import StaticShapes, declared_sizes, open_inputs


class Joining(Enum):
    """What becomes of the outputs of samples that are joined along axis 0.

    Attributes:
        ROWS: Every output has one row along axis 0 for each sample, the same as apart.
        APART: Every sample has the outputs that it has apart, but not always as its row along axis 0.
        CHANGED: The outputs of a sample change with the one beside it.
        REFUSED: The network takes one sample only.
    """

    ROWS = "rows"
    APART = "apart"
    CHANGED = "changed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Joined:
    """Whether samples may be joined along axis 0, and why.

    Attributes:
        joining: What becomes of the outputs; None where that is not known.
        reason: Why, as a clause.
        separate: Whether the graph shows that every sample is computed by itself, so that a batch may be run
            in pieces. What two samples have shown that were tried is no proof of that.
    """

    joining: Joining | None
    reason: str
    separate: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether the graph shows that every output has one row along axis 0 for each sample."""
        return self.separate and self.joining is Joining.ROWS


def joined_by_graph(graph_model: ir.Model, *, follow_shapes: bool = True) -> Joined:
    """Whether samples may be joined, as far as the graph shows it.

    :func:`trtint8.models.samples.joining.joined_samples` also tries it.

    Args:
        graph_model: A model with inferred shapes.
        follow_shapes: Whether shapes that the graph computes are followed where none is declared, which may
            take longer than all the rest.

    Returns:
        The answer. Samples are separate only where all inputs have samples along axis 0, in any number, and
        every operator is known to compute each sample from the same sample of what it reads.
    """
    graph = graph_model.graph
    if fixed := [value.name for value in graph.inputs if not _is_open(value)]:
        return Joined(None, f"input '{fixed[0]}' does not leave open how many samples there are")
    if _has_the_batch_twice(graph):
        return Joined(None, "an input has the number of samples along another axis, too")
    # With open sizes, computing shapes finds nothing more.
    follow_shapes = follow_shapes and not open_inputs(graph_model)
    shape_of = StaticShapes(graph_model).of if follow_shapes else declared_sizes
    found = Found(set(graph.inputs), BatchSizes(shape_of), shape_of)
    for node in graph:
        if not _keeps_samples(node, found):
            return Joined(None, f"node '{node.name}' ({node.op_type}) may compute samples from each other")
    for output in graph.outputs:
        if output not in found.samples:
            return Joined(None, f"output '{output.name}' may have no row for each sample", separate=True)
    return Joined(Joining.ROWS, "every node computes each sample by itself", separate=True)


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
