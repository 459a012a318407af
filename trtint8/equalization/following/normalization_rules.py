"""Normalizations, which end with a factor and an offset per channel: they produce channels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import Axes, operator_of
from trtint8.equalization.following.channels import Change, Copy, Producer
from trtint8.equalization.following.labelling import Affine, Labelling
from trtint8.equalization.following.labels import placed, with_rank
from trtint8.models.graph_constants import constant_input, take_name


def normalize(labelling: Labelling, node: ir.Node) -> None:
    """Gives the output of an operator that ends with factors new channels, where these are constant."""
    labelling.stop(node)
    indices = [index for index in operator_of(node).affine if index < len(node.inputs)]
    constants = [constant_input(node, index) for index in indices]
    is_read = any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
    trains = bool(node.attributes.get_int("training_mode", 0))
    parameters = [one for one in constants if one is not None and one.dtype == np.float32]
    on_axis_1 = operator_of(node).axes is Axes.IMAGES  # else the channels are on the last axes
    if len(parameters) < len(indices) or trains or (is_read and on_axis_1):
        return
    rank, shape = labelling.rank(node.outputs[0]), parameters[0].shape
    numbers = np.arange(parameters[0].size).reshape(shape)
    labels = placed(numbers, rank, 1) if on_axis_1 else with_rank(numbers, rank)
    labelling.add_affine(Affine((node,), tuple((node, index) for index in indices), shape, labels))


def scale_by_constant(labelling: Labelling, node: ir.Node, index: int, shape: tuple[int, ...]) -> None:
    """Gives new channels to a product with constants, or to the sum with a constant offset after it.

    Args:
        labelling: The labels so far.
        node: The product.
        index: Index of the constant among the node's inputs.
        shape: The constant's shape.
    """
    nodes, constants = [node], [(node, index)]
    uses = tuple(node.outputs[0].uses())
    if len(uses) == 1 and not node.outputs[0].is_graph_output():
        reader, other = uses[0]
        offset = constant_input(reader, 1 - other) if len(reader.inputs) == 2 else None
        is_sum = reader.op_type == "Add" and reader.domain == "" and reader.graph is labelling.graph
        # An offset with more elements than factors would need a channel for each of its elements.
        if is_sum and offset is not None and offset.dtype == np.float32 and offset.ndim <= len(shape):
            nodes.append(reader)
            constants.append((reader, 1 - other))
            labelling.absorbed.add(reader)
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    labels = with_rank(numbers, max(len(shape), labelling.rank(nodes[-1].outputs[0])))
    labelling.add_affine(Affine(tuple(nodes), tuple(constants), shape, labels))


def separate_readers(
    labelling: Labelling, affine: Affine, read: NDArray[np.bool_], taken: set[str]
) -> list[Copy]:
    """Ties the channels of all readers that factors can be applied to, once all nodes were followed.

    Args:
        labelling: The labels of the whole network.
        affine: The last nodes of a normalization.
        read: For every channel, whether weights or products read it.
        taken: The names of all nodes, to which those of copies are added.

    Returns:
        A copy of these nodes, where other readers need the output unchanged; else nothing.
    """
    output = affine.output
    readers = list(dict.fromkeys(user for user, _ in output.uses() if not operator_of(user).reads_shape))
    uses = {reader: labelling.affine_uses.get((output, reader)) for reader in readers}
    good = {
        reader: labels
        for reader, labels in uses.items()
        if labels is not None and not labelling.classes.are_fixed(labels).any() and read[labels].all()
    }
    # Nothing divides the channels of the other readers, so nothing may multiply them either.
    name = affine.nodes[-1].name or ""
    for reader, labels in uses.items():
        if labels is not None and reader not in good:
            reason = f"'{reader.name}' passes only a part of '{output.name}' on to weights"
            labelling.classes.fix(labels, reason)
    if not good:
        for labels in uses.values():
            if labels is not None:
                labelling.note_skipped(name, labels)
        return []
    first, *others = good.values()
    for labels in others:
        labelling.classes.tie(first, labels, 1, f"readers of '{output.name}' need different factors")
    labelling.producers[output] = Producer(name, output.name or "", first)
    shared = len(good) < len(readers) or output.is_graph_output()
    names = [node.name or "" for node in affine.nodes]
    copies = [take_name(f"{one}_equalized", taken) if shared else one for one in names]
    renamed = dict(zip(names, copies, strict=True))
    channels = first.reshape(affine.shape)
    for node, index in affine.constants:
        labelling.changes.append(Change(renamed[node.name or ""], index, channels, -1))
    if not shared:
        return []
    return [Copy(tuple(names), tuple(copies), tuple(one.name or "" for one in good), np.unique(first))]
