"""Quantizing and dequantizing values, as a config says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import UnsupportedError
from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.rounding import round_values


def quantize(values: NDArray[np.floating], config: TensorQuantConfig) -> NDArray[np.int32]:
    """The whole numbers that stand for values: clip(round(x / scale) + offset).

    The quotient is taken in float32, as hardware does; NaN becomes the offset.

    Args:
        values: Any shape.
        config: With a scale; per channel, the policy's axis has as many entries as the scale.

    Returns:
        The same shape, within ``quant_min`` and ``quant_max``.

    Raises:
        UnsupportedError: There is no scale, or it does not fit the shape.
    """
    scale, offset = _parameters(values.shape, config)
    rounded = round_values(values.astype(np.float32) / scale, config.rounding) + offset
    # Clipped as floats: infinities have no whole number.
    clipped = np.clip(np.nan_to_num(rounded.astype(np.float64)), config.quant_min, config.quant_max)
    return clipped.astype(np.int32)


def dequantize(whole: NDArray[np.integer], config: TensorQuantConfig) -> NDArray[np.float32]:
    """The values that whole numbers stand for: (q - offset) * scale, in float32.

    Args:
        whole: Any shape.
        config: As for :func:`quantize`.

    Returns:
        The same shape.

    Raises:
        UnsupportedError: There is no scale, or it does not fit the shape.
    """
    scale, offset = _parameters(whole.shape, config)
    values: NDArray[np.float32] = (whole.astype(np.float32) - offset) * scale
    return values


def fake_quantize(values: NDArray[np.floating], config: TensorQuantConfig) -> NDArray[np.float32]:
    """What is left of values after quantizing and dequantizing them.

    Args:
        values: Any shape.
        config: As for :func:`quantize`.

    Returns:
        The same shape.

    Raises:
        UnsupportedError: There is no scale, or it does not fit the shape.
    """
    return dequantize(quantize(values, config), config)


def _parameters(
    shape: tuple[int, ...], config: TensorQuantConfig
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale and offset, shaped to be broadcast."""
    if config.scale is None:
        raise UnsupportedError(f"the tensor is '{config.state.value}' and has no scale yet")
    offset = np.zeros_like(config.scale) if config.offset is None else config.offset
    axis = config.policy.axis
    if axis is None:
        return config.scale, offset
    if not -len(shape) <= axis < len(shape) or shape[axis] != len(config.scale):
        raise UnsupportedError(
            f"there are {len(config.scale)} scales for axis {axis} of a tensor of shape "
            f"{'x'.join(map(str, shape))}; give one a channel"
        )
    broadcast = [1] * len(shape)
    broadcast[axis] = -1
    return config.scale.reshape(broadcast), offset.reshape(broadcast)
