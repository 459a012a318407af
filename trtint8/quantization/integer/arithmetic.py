"""Quantizes and dequantizes values as a config says.

Every function takes an array of any shape and returns one of the same shape. The config must have a scale;
with one scale per channel, the array has as many entries along the policy's axis as there are scales. A
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
    NaN becomes 0, or the limit nearest to 0.
    """
    return _integers(values, config).astype(np.int32)


def dequantize(integers: NDArray[np.integer], config: TensorQuantConfig) -> NDArray[np.float32]:
    """The values that integers represent: (q - offset) * scale, computed in float32."""
    return _scaled(integers.astype(np.float32), config)


def fake_quantize(values: NDArray[np.floating], config: TensorQuantConfig) -> NDArray[np.float32]:
    """Quantizes values and dequantizes the integers: the values as a quantized network computes with them."""
    return _scaled(_integers(values, config), config)


def _integers(values: NDArray[np.floating], config: TensorQuantConfig) -> NDArray[np.float32]:
    """:func:`quantize`, as floats."""
    scale, offset = _parameters(values.shape, config)
    integers = round_values(values.astype(np.float32, copy=False) / scale, config.rounding)
    if offset is not None:
        integers += offset
    lowest, highest = config.quant_min, config.quant_max
    # Clipped as floats, because infinity cannot be converted to an integer.
    np.clip(integers, lowest, highest, out=integers)
    if np.isnan(integers.sum()):  # one pass tells, where two would look for each
        np.copyto(integers, min(max(0, lowest), highest), where=np.isnan(integers))
    return integers


def _scaled(integers: NDArray[np.float32], config: TensorQuantConfig) -> NDArray[np.float32]:
    """:func:`dequantize`, of integers as floats, which are changed."""
    scale, offset = _parameters(integers.shape, config)
    if offset is not None:
        integers -= offset
    integers *= scale
    return integers


def _parameters(
    shape: tuple[int, ...], config: TensorQuantConfig
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """The scale, and the offset where there is one, shaped to broadcast against a tensor of ``shape``."""
    if config.scale is None:
        raise UnsupportedError(f"the tensor is '{config.state.value}' and has no scale yet")
    offset, axis = config.offset, config.policy.axis
    if axis is None:
        return config.scale, offset
    if not -len(shape) <= axis < len(shape) or shape[axis] != len(config.scale):
        raise UnsupportedError(
            f"there are {len(config.scale)} scales for axis {axis} of a tensor of shape "
            f"{shape_text(shape)}; give one scale per channel"
        )
    broadcast = [1] * len(shape)
    broadcast[axis] = -1
    return config.scale.reshape(broadcast), None if offset is None else offset.reshape(broadcast)
