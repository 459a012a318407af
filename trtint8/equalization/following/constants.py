"""The constants of weighted nodes, and which channel each of their elements belongs to.

The shapes that a model's tensors have for the samples of a feed.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import FeedDict, Floats, Indices
from calibrators.operators import operator_of
from trtint8.models.graph import constant_input
from trtint8.models.shapes import StaticShapes


def is_linear(node: ir.Node) -> bool:
    """Whether a node multiplies its first input by constant float32 weights that have channels.

    These are convolutions, and products with a constant matrix that has elements.
    """
    if not operator_of(node).is_weighted:
        return False
    weights = constant_input(node, 1)
    if weights is None or weights.dtype != np.float32 or not weights.size:
        return False
    return is_convolution(node) or weights.ndim == 2


def is_convolution(node: ir.Node) -> bool:
    """Whether a weighted node is a convolution, whose channels are axis 1 of its input and output."""
    return operator_of(node).is_convolution


def has_constant_bias(node: ir.Node) -> bool:
    """Whether a weighted node has a constant bias, or none."""
    return len(node.inputs) < 3 or node.inputs[2] is None or constant_input(node, 2) is not None


def read_axis(node: ir.Node) -> int:
    """The axis of a linear node's input that its weights are multiplied along."""
    if is_convolution(node):
        return 1
    return 0 if node.op_type == "Gemm" and bool(node.attributes.get_int("transA", 0)) else -1


def channel_numbers(node: ir.Node, shape: tuple[int, ...]) -> tuple[Indices, Indices]:
    """The numbers of the output channel and of the input channel of every weight.

    Args:
        node: A linear node (:func:`is_linear`).
        shape: The shape of the node's weights.

    Returns:
        Two arrays that broadcast to ``shape``.
    """
    first, second = np.ix_(*(np.arange(size) for size in shape[:2]))
    if not is_convolution(node):
        transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        return (first, second) if transposed else (second, first)
    # Axis 0 counts the channels of all groups, axis 1 those of the other side within the group.
    group = first // (shape[0] // node.attributes.get_int("group", 1))
    within = group * shape[1] + second
    kernel = (1,) * (len(shape) - 2)
    first, within = first.reshape(*first.shape, *kernel), within.reshape(*within.shape, *kernel)
    return (first, within) if node.op_type == "Conv" else (within, first)


def input_ranges(node: ir.Node, weights: Floats) -> Floats:
    """The largest magnitude among the weights that read each input channel, of shape (input channels,)."""
    peaks = np.abs(weights).max(axis=tuple(range(2, weights.ndim)), keepdims=True)
    _, inputs = channel_numbers(node, weights.shape)
    ranges = np.zeros(int(inputs.max()) + 1)
    np.maximum.at(ranges, np.broadcast_to(inputs, peaks.shape), peaks)
    return ranges


#: Number of samples that shapes are taken for. With one sample, labels that differ between samples would not
#: be noticed.
SAMPLES = 2


def shapes_of_samples(model: ir.Model, feed: FeedDict) -> StaticShapes:
    """The shapes of a model's tensors for samples like those of a feed: few, where it takes any number.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        feed: One batch.
    """
    inputs = [value for value in model.graph.inputs if value.name in feed]
    dynamic = all(value.shape and not isinstance(value.shape[0], int) for value in inputs)
    return StaticShapes(
        model,
        {name: (SAMPLES, *array.shape[1:]) if dynamic else array.shape for name, array in feed.items()},
    )
