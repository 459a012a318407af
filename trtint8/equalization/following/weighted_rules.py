"""How products with weights, and products of two activations, treat the channels that they read."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trtint8.equalization.following.channel_classes import Channels
from trtint8.equalization.following.channels import Change, Producer, Product, Reading
from trtint8.equalization.following.labelling import Labelling
from trtint8.equalization.following.labels import along, placed, with_rank
from trtint8.equalization.following.weights import (
    channel_numbers,
    has_constant_bias,
    is_convolution,
    read_axis,
)


def multiply_by_weights(labelling: Labelling, node: ir.Node) -> None:
    """Notes that weights read the channels of a linear node's input, and gives its output new channels."""
    weights = labelling.shape(node.inputs[1])
    assert weights is not None
    outputs, inputs = channel_numbers(node, weights)
    labels = labelling.read(node, 0)
    if labels is not None:
        axis = read_axis(node)
        channels = along(labels, axis, int(inputs.max()) + 1)
        if channels is None:
            labelling.classes.fix(labels, f"'{node.name}' sums over another axis than that of the channels")
        else:
            value = node.inputs[0]
            assert value is not None
            read = placed(channels, labels.ndim, axis)
            labelling.readings.append(Reading(node.name or "", value.name or "", read))
            labelling.changes.append(Change(node.name or "", 1, channels[inputs], 1))
    if not has_constant_bias(node):
        labelling.fix(node, 2, f"it is the bias of '{node.name}'")
        return
    output = node.outputs[0]
    channels = labelling.new_channels(node, int(outputs.max()) + 1)
    labelling.changes.append(Change(node.name or "", 1, channels[outputs], -1))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        labelling.changes.append(Change(node.name or "", 2, channels, -1))
    labels = placed(channels, labelling.rank(output), 1 if is_convolution(node) else -1)
    labelling.producers[output] = Producer(node.name or "", output.name or "", labels)
    labelling.write(output, labels)


def multiply_matrices(labelling: Labelling, node: ir.Node) -> None:
    """Passes on channels that the product does not sum over; pairs channels of both operands."""
    first, second = labelling.read(node, 0), labelling.read(node, 1)
    output, rank = node.outputs[0], labelling.rank(node.outputs[0])
    if any(labelling.rank(value) < 2 for value in node.inputs if value is not None):
        labelling.stop(node)
    elif first is not None and second is not None:
        _pair(labelling, node, first, second)
    elif first is not None or second is not None:
        labels, contracted = (first, -1) if first is not None else (second, -2)
        assert labels is not None
        if labels.shape[contracted] != 1:
            labelling.classes.fix(labels, f"'{node.name}' sums over them without weights")
        else:
            labelling.write(output, with_rank(labels, rank))


def _pair(labelling: Labelling, node: ir.Node, first: Channels, second: Channels) -> None:
    """Ties the channels of both sides, whose factors cancel in the product."""
    reason = f"factors do not cancel in '{node.name}'"
    if first.shape[-2] != 1 or second.shape[-1] != 1:
        labelling.classes.fix(first, reason)
        labelling.classes.fix(second, reason)
        return
    labelling.classes.tie(first.swapaxes(-1, -2), second, -1, reason)
    labelling.products.append(Product(node.name or "", np.unique(first), np.unique(second)))
