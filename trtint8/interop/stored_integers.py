"""The integers of a quantized constant, and the values that they represent."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.errors import ModelError
from trtint8.interop.grids import integer_ends, parameters
from trtint8.models.graph_constants import read_constant


def quantized_values(node: ir.Node, weights: NDArray[Any]) -> NDArray[np.int64]:
    """Quantizes a constant as a QuantizeLinear does.

    Args:
        node: The QuantizeLinear that reads the constant.
        weights: The constant, of any shape.

    Returns:
        int64, of the constant's shape.

    Raises:
        ModelError: The scales do not fit the shape, or a scale is 0 where the constant is not.
    """
    scale, point = parameters(node)
    smallest, largest = integer_ends(node)
    scales = scale if scale.size == 1 else _spread(node, scale, weights.shape)
    points = point if point.size == 1 else _spread(node, point, weights.shape)
    values = weights.astype(np.float32)
    # Any scale is right for a channel that was pruned.
    if bool(((scales == 0) & (values != 0)).any()):
        raise ModelError(f"a scale of node '{node.name}' is 0, and its weights are not")
    whole = np.rint(values / np.where(scales == 0, np.float32(1), scales)).astype(np.float64) + points
    return np.clip(np.nan_to_num(whole), smallest, largest).astype(np.int64).reshape(weights.shape)


def float_values(
    node: ir.Node, stored: NDArray[Any], scale: NDArray[np.floating], zero_point: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Dequantizes a constant.

    Args:
        node: The DequantizeLinear that reads the constant.
        stored: The constant, of any shape and type.
        scale: The node's scales, flat: one, one per channel, or one per block.
        zero_point: The node's zero points, flat: one, or as many as there are scales.

    Returns:
        float32, of the constant's shape.

    Raises:
        ModelError: The scales do not fit the shape.
    """
    scales, points = (
        numbers.astype(np.float32)
        if numbers.size == 1
        else _spread(node, numbers.astype(np.float32), stored.shape)
        for numbers in (scale, zero_point)
    )
    values = (stored.astype(np.float32) - points) * scales
    return values.astype(np.float32).reshape(stored.shape)


def channel_axis(node: ir.Node, count: int, shape: tuple[int, ...]) -> int:
    """The axis of a constant's channels, counted from the first.

    Args:
        node: The DequantizeLinear of the constant.
        count: The number of its scales, more than one.
        shape: The shape of the constant.

    Raises:
        ModelError: The constant has another number of channels.
    """
    axis = node.attributes.get_int("axis", 1)
    if not -len(shape) <= axis < len(shape) or shape[axis] != count:
        name = node.inputs[0].name if node.inputs[0] is not None else ""
        raise ModelError(
            f"node '{node.name}' has {count} scales along axis {axis}, which do not fit the "
            f"tensor '{name}' of shape {list(shape)}; give one scale per channel"
        )
    return axis % len(shape)


def _spread(node: ir.Node, numbers: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Numbers per channel or per block, in a shape that broadcasts against ``shape``."""
    axis, block_size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    name = node.inputs[0].name if node.inputs[0] is not None else ""
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    if block_size > 0 and size is not None:
        given, blocks = read_constant(node.inputs[1]), list(shape)
        blocks[axis] = -(-size // block_size)
        assert given is not None, "flat scales were read from it"
        if list(given.shape) != blocks:
            raise ModelError(
                f"node '{node.name}' has scales of shape {list(given.shape)}, and the tensor '{name}' of "
                f"shape {list(shape)} in blocks of {block_size} along axis {axis} needs {blocks}; "
                "give one scale per block"
            )
        return np.repeat(numbers.reshape(blocks), block_size, axis).take(range(size), axis)
    channels = [1] * len(shape)
    channels[channel_axis(node, numbers.size, shape)] = -1
    return numbers.reshape(channels)
