"""Follows channels through a network, from the constants that produce them to the weights that read them.

Every producer's output channels get numbers. A label array says for each element of a tensor which channel
it belongs to. Operators that move elements are executed on the labels; the other operators pass labels on,
tie the factors of channels, or fix them at 1. So only factors remain that leave the network's function as it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx_ir as ir

from calibrators.operators import operator_of
from trtint8.equalization.following.arithmetic_rules import add, divide, multiply
from trtint8.equalization.following.channels import NetworkChannels
from trtint8.equalization.following.labelling import Labelling
from trtint8.equalization.following.moving_rules import move, pass_on, reduce_axes
from trtint8.equalization.following.normalization_rules import normalize, separate_readers
from trtint8.equalization.following.operators import is_elementwise, is_moving, is_reducing, is_spatial
from trtint8.equalization.following.shapes import Shapes
from trtint8.equalization.following.weighted_rules import multiply_by_weights, multiply_matrices
from trtint8.equalization.following.weights import is_linear

_Rule: TypeAlias = Callable[[Labelling, ir.Node], None]

_ARITHMETIC: Mapping[str, _Rule] = {
    "Add": add,
    "Div": divide,
    "MatMul": multiply_matrices,
    "Mul": multiply,
    "Sub": add,
}


def follow_channels(model: ir.Model, shapes: Shapes) -> NetworkChannels:
    """Finds all channels of a network that factors can be applied to.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        shapes: The shapes of the model's tensors.
    """
    labelling = Labelling(model, shapes)
    for node in model.graph:
        if node not in labelling.absorbed and not operator_of(node).reads_shape:
            values = [value for value in (*node.inputs, node.outputs[0]) if value is not None]
            known = all(labelling.shape(value) is not None for value in values)
            (_rule(node) if known else Labelling.stop)(labelling, node)
    read = labelling.read_channels()
    affines = labelling.affines.values()
    taken = {node.name or "" for node in model.graph}
    copies = [copy for affine in affines for copy in separate_readers(labelling, affine, read, taken)]
    for producer in labelling.producers.values():
        labelling.note_skipped(producer.node, producer.labels)
    representatives, powers = labelling.classes.representatives()
    return NetworkChannels(
        representatives,
        powers,
        tuple(labelling.producers.values()),
        tuple(labelling.readings),
        tuple(labelling.products),
        tuple(labelling.changes),
        tuple(copies),
        {value.name: labels for value, labels in labelling.labels.items() if value.name},
        labelling.skipped,
    )


def _rule(node: ir.Node) -> _Rule:
    """What happens to the channels that a node reads."""
    if operator_of(node).affine:
        return normalize
    if node.domain != "":
        return Labelling.stop
    if is_linear(node):
        return multiply_by_weights
    if is_moving(node):
        return move
    if is_elementwise(node) or is_spatial(node):
        return pass_on
    if is_reducing(node):
        return reduce_axes
    return _ARITHMETIC.get(node.op_type, Labelling.stop)
