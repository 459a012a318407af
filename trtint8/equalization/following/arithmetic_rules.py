"""How sums, products and quotients of single elements treat the channels that they read."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trtint8.equalization.following.channel_classes import Channels
from trtint8.equalization.following.channels import Change, Producer
from trtint8.equalization.following.labelling import Labelling
from trtint8.equalization.following.labels import compact, with_rank
from trtint8.equalization.following.normalization_rules import scale_by_constant
from trtint8.models.graph_constants import constant_input


def add(labelling: Labelling, node: ir.Node) -> None:
    """Divides a constant that is added to channels; ties channels of one producer that are added."""
    first, second = labelling.read(node, 0), labelling.read(node, 1)
    rank = labelling.rank(node.outputs[0])
    if first is not None and second is not None:
        first, second = with_rank(first, rank), with_rank(second, rank)
        reason = f"'{node.name}' adds channels of different factors"
        if labelling.owners_of(first) == labelling.owners_of(second):
            labelling.classes.tie(first, second, 1, reason)
            labelling.write(node.outputs[0], compact(np.broadcast_arrays(first, second)[0]))
        else:
            labelling.classes.fix(first, reason)
            labelling.classes.fix(second, reason)
        return
    index = 0 if first is not None else 1
    labels = first if first is not None else second
    if labels is None:
        return
    if not _divides_constant(labelling, node, 1 - index, index, labels):
        labelling.classes.fix(labels, f"'{node.name}' adds values to them that keep theirs")
        return
    source, output = node.inputs[index], node.outputs[0]
    assert source is not None
    labels = with_rank(labels, rank)
    producer = labelling.producers.get(source)
    if producer is not None and producer.tensor == source.name and len(source.uses()) == 1:
        # The channels are what they are with the bias.
        labelling.producers[source] = Producer(producer.node, output.name or "", labels)
    labelling.write(output, labels)


def _divides_constant(labelling: Labelling, node: ir.Node, index: int, other: int, labels: Channels) -> bool:
    """Whether a constant that is added to channels can be divided with them; if so, notes the change."""
    constant, value = constant_input(node, index), node.inputs[other]
    if constant is None or value is None or constant.dtype != np.float32:
        return False
    rank = max(constant.ndim, labels.ndim)
    sizes = (1,) * (rank - constant.ndim) + constant.shape
    static = value.shape
    for axis in range(-labels.ndim, 0):
        if labels.shape[axis] == 1 or sizes[axis] == labels.shape[axis]:
            continue
        # The constant becomes larger, which is right only where the channels' axis has one size.
        if static is None or not isinstance(static[axis], int):
            return False
    while labels.ndim > constant.ndim and labels.shape[0] == 1:
        labels = labels[0]
    labelling.changes.append(Change(node.name or "", index, labels, -1))
    return True


def multiply(labelling: Labelling, node: ir.Node) -> None:
    """Passes channels on that are multiplied by values without factors, such as a gate."""
    if labelling.read(node, 0) is not None and labelling.read(node, 1) is not None:
        labelling.fix(node, 1, f"'{node.name}' multiplies channels by them that have factors of their own")
    first, second = labelling.read(node, 0), labelling.read(node, 1)
    labels = first if first is not None else second
    if labels is not None:
        labelling.write(node.outputs[0], with_rank(labels, labelling.rank(node.outputs[0])))
        return
    for index in (0, 1):
        constant = constant_input(node, index)
        if constant is not None and constant.size > 1 and constant.dtype == np.float32:
            scale_by_constant(labelling, node, index, constant.shape)
            return


def divide(labelling: Labelling, node: ir.Node) -> None:
    """Passes on the channels of the dividend."""
    labelling.fix(node, 1, f"'{node.name}' divides by them")
    labels = labelling.read(node, 0)
    if labels is not None:
        labelling.write(node.outputs[0], with_rank(labels, labelling.rank(node.outputs[0])))
