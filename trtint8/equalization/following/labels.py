"""Arrays that say which channel each element of a tensor belongs to.

A label array is compact: along an axis on which all labels are equal it has size 1, so that it broadcasts
with the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from trtint8.equalization.following.channel_classes import Channels


def compact(labels: Channels) -> Channels:
    """Reduces axes along which all labels are equal to size 1."""
    for axis in range(labels.ndim):
        first = labels.take([0], axis) if labels.shape[axis] else labels
        if labels.shape[axis] > 1 and bool((labels == first).all()):
            labels = first
    return labels


def along(labels: Channels, axis: int, size: int) -> Channels | None:
    """The labels along one axis, where they are equal along all others.

    Args:
        labels: A compact label array.
        axis: The axis; negative counts from the end.
        size: The tensor's size along this axis.

    Returns:
        Labels of shape (size,); None where labels differ along another axis.
    """
    axis %= labels.ndim
    if any(length != 1 for other, length in enumerate(labels.shape) if other != axis):
        return None
    return np.broadcast_to(labels.reshape(-1), (size,))


def placed(labels: Channels, rank: int, axis: int) -> Channels:
    """Spreads a vector of labels out along one axis of a tensor.

    Args:
        labels: Labels of shape (channels,).
        rank: The tensor's rank.
        axis: The axis of the channels; negative counts from the end.

    Returns:
        A compact label array of the given rank.
    """
    shape = [1] * rank
    shape[axis] = -1
    return labels.reshape(shape)


def with_rank(labels: Channels, rank: int) -> Channels:
    """Adds axes of size 1 in front, as broadcasting does."""
    return labels.reshape((1,) * (rank - labels.ndim) + labels.shape)


def moved(
    node: ir.Node, opset: int, labels: Mapping[int, Channels], others: Mapping[int, NDArray[Any]]
) -> list[Channels]:
    """Executes an operator that only moves elements on labels in place of values.

    Args:
        node: The node, such as a Reshape.
        opset: The opset of the model.
        labels: Index of input to its labels, of the tensor's full shape, or of size 1 along axes that the
            operator does not touch.
        others: Index of input to its value, for shapes, indices and the like.

    Returns:
        One compact label array per output of the node.
    """
    arrays = {**others, **labels}
    values = {index: value for index, value in enumerate(node.inputs) if value is not None}
    inputs = {values[index].name or "": array for index, array in arrays.items()}
    evaluator = ReferenceEvaluator(ir.to_proto(node), opsets={"": opset})
    return [compact(np.asarray(output, np.int64)) for output in evaluator.run(None, inputs)]
