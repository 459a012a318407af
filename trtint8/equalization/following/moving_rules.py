"""How operators that move, pool, reduce or pass elements on treat the channels that they read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import Axes, operator_of
from trtint8.equalization.following.channel_classes import FIXED, Channels
from trtint8.equalization.following.labelling import Labelling
from trtint8.equalization.following.labels import moved
from trtint8.equalization.following.operators import is_elementwise, reduced_axes
from trtint8.models.graph_constants import read_constant

logger = logging.getLogger(__name__)


def pass_on(labelling: Labelling, node: ir.Node) -> None:
    """Passes channels on through a homogeneous operator that mixes none of them."""
    labels = labelling.read(node, 0)
    for index in range(1, len(node.inputs)):
        labelling.fix(node, index, f"'{node.name}' multiplies other values by them")
    if labels is None:
        return
    if not is_elementwise(node):
        in_shape, out_shape = labelling.shape(node.inputs[0]), labelling.shape(node.outputs[0])
        assert in_shape is not None and out_shape is not None
        is_read = any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        if any(size != 1 for size in labels.shape[2:]) or in_shape[:2] != out_shape[:2] or is_read:
            labelling.classes.fix(labels, f"'{node.name}' ({node.op_type}) mixes their channels")
            return
    labelling.write(node.outputs[0], labels)


def reduce_axes(labelling: Labelling, node: ir.Node) -> None:
    """Passes channels on where the reduced axes hold elements of the same channel."""
    labels = labelling.read(node, 0)
    if labels is None:
        return
    axes = reduced_axes(node, labels.ndim)
    if axes is None or any(labels.shape[axis] != 1 for axis in axes):
        labelling.classes.fix(labels, f"'{node.name}' ({node.op_type}) mixes their channels")
        return
    keeps = bool(node.attributes.get_int("keepdims", 1))
    labelling.write(node.outputs[0], labels if keeps else np.squeeze(labels, axes))


def move(labelling: Labelling, node: ir.Node) -> None:
    """Moves labels as the operator moves values."""
    count = len(operator_of(node).data_among(len(node.inputs)))
    read = {index: labelling.read(node, index) for index in range(count)}
    if all(labels is None for labels in read.values()):
        return
    spread = _axes_to_spread(node, [labels for labels in read.values() if labels is not None])
    full: dict[int, Channels] = {}
    others: dict[int, NDArray[Any]] = {}
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        if index < count:
            labels = read[index]
            shape = labelling.shape(value) or ()
            sizes = [size if axis in spread else 1 for axis, size in enumerate(shape)]
            full[index] = np.broadcast_to(np.int64(FIXED) if labels is None else labels, sizes)
        else:
            constant = read_constant(value)
            known = labelling.integers.get(value.name or "") if constant is None else constant
            others |= {} if known is None else {index: known}
    try:
        if len(full) + len(others) < sum(value is not None for value in node.inputs):
            raise ValueError("an index or a shape depends on the values of the feed")
        outputs = moved(node, labelling.opset, full, others)
    except Exception:
        logger.debug("cannot follow channels through '%s'", node.name, exc_info=True)
        for index in range(count):
            labelling.fix(node, index, f"where '{node.name}' ({node.op_type}) moves them is not constant")
        return
    for value, labels in zip(node.outputs, outputs, strict=True):
        labelling.write(value, labels)


def _axes_to_spread(node: ir.Node, read: Sequence[Channels]) -> set[int]:
    """The axes of a tensor's full size; labels may stay compact along the others, which saves much memory.

    Args:
        node: The node.
        read: The labels of its inputs, of one rank.
    """
    rank = read[0].ndim
    if operator_of(node).axes is not Axes.ONE:  # which takes elements along it, whatever is on the others
        return set(range(rank))
    touched = node.attributes.get_int("axis", 0) % rank
    return {touched, *(axis for axis in range(rank) if any(labels.shape[axis] != 1 for labels in read))}
