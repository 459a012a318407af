"""Quantizes and dequantizes values as a config says.

Every function takes an array of any shape and returns one of the same shape. The config must have a scale;
with one scale per channel, the array has as many entries along the config's axis as there are scales. A
config without a scale, or one that does not fit the shape, raises
:class:`~calibrators.errors.UnsupportedError`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrators.data.inputs import shape_text
from calibrators.errors import UnsupportedError
from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.rounding import round_values


def quantize(values: NDArray[np.floating], config: TensorQuantConfig) -> NDArray[np.int32]:
    """The integers that represent values: clip(round(x / scale) + offset).

    They lie between ``quant_min`` and ``quant_max``. The quotient is computed in float32, as hardware does;
    NaN becomes the offset.
    """
    return _integers(values, config).astype(np.int32) + np.int32(config.offset)


def fake_quantize(values: NDArray[np.floating], config: TensorQuantConfig) -> NDArray[np.float32]:
    """Quantizes values and dequantizes the integers: the values as a quantized network computes with them."""
    integers = _integers(values, config)
    integers *= _scale(values.shape, config)
    return integers


def _integers(values: NDArray[np.floating], config: TensorQuantConfig) -> NDArray[np.float32]:
    """:func:`quantize` without the offset, as floats."""
    scale, values = _scale(values.shape, config), values.astype(np.float32, copy=False)
    quotients = values * (np.float32(1) / scale) if config.inverse else values / scale
    integers = round_values(quotients, config.rounding)
    # Clipped as floats, because infinity cannot be converted to an integer.
    np.clip(integers, config.quant_min - config.offset, config.quant_max - config.offset, out=integers)
    if np.isnan(integers.sum()):  # one pass tells, where two would look for each
        np.copyto(integers, 0, where=np.isnan(integers))
    return integers


def _scale(shape: tuple[int, ...], config: TensorQuantConfig) -> NDArray[np.float32]:
    """The scale, shaped to broadcast against a tensor of ``shape``."""
    if config.scale is None:
        raise UnsupportedError(f"the tensor is '{config.state.value}' and has no scale yet")
    axis = config.axis
    if axis is None:
        return config.scale
    if not -len(shape) <= axis < len(shape) or shape[axis] != len(config.scale):
        raise UnsupportedError(
            f"there are {len(config.scale)} scales for axis {axis} of a tensor of shape "
            f"{shape_text(shape)}; give one scale per channel"
        )
    broadcast = [1] * len(shape)
    broadcast[axis] = -1
    return config.scale.reshape(broadcast)
