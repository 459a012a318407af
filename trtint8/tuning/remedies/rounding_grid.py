"""The grid of values that quantized weights can take, and the two nearest of them for each weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.tables.scales import QMAX
from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.arithmetic import quantize
from trtint8.quantization.qdq import weight_scale

#: In steps of the grid: weights that are closer to the grid than this differ from it only by float32's
#: rounding, and have no other neighbour.
_ON_GRID = 1e-4


@dataclass(frozen=True)
class RoundingGrid:
    """Constant weights and the integers near them; all arrays have the weights' shape.

    Attributes:
        weights: The weights, float32.
        scale: The distance between neighbouring values of the grid, float32.
        peak: The largest magnitude among the weights that share the scale, float32.
        nearest: The integer that quantization rounds to, int32.
        other: What leads from ``nearest`` to the integer on the other side of the weight, int32: 1 or -1. It
            is 0 where there is none, and where the weight determines the scale.
    """

    weights: NDArray[np.float32]
    scale: NDArray[np.float32]
    peak: NDArray[np.float32]
    nearest: NDArray[np.int32]
    other: NDArray[np.int32]

    @classmethod
    def of(cls, weights: NDArray[np.float32], axis: int | None, config: TensorQuantConfig) -> RoundingGrid:
        """The grid on which a placement's config puts weights.

        Args:
            weights: The weights, float32.
            axis: The axis of the output channels, or None for one scale per tensor.
            config: How the weights are quantized, without scale.
        """
        scale = weight_scale(weights, axis)
        nearest = quantize(weights, config.with_scale(scale))
        others = tuple(other for other in range(weights.ndim) if other != axis)
        peak = np.broadcast_to(np.abs(weights).max(axis=others, keepdims=True), weights.shape)
        if axis is not None:
            scale = np.expand_dims(scale, others)
        scale = np.broadcast_to(scale, weights.shape)
        rest = weights.astype(np.float64) / scale - nearest
        other = np.where(np.abs(rest) < _ON_GRID, 0, np.sign(rest)).astype(np.int32)
        # The largest weight determines the scale, so it is not changed, and no weight may become larger.
        fixed = (np.abs(weights) == peak) | (np.abs(nearest + other) > QMAX)
        return cls(weights, scale, peak, nearest, np.where(fixed, 0, other))

    @property
    def errors(self) -> NDArray[np.float64]:
        """What rounding to nearest adds to each weight, float64."""
        return np.asarray(self.nearest * self.scale.astype(np.float64) - self.weights, np.float64)

    @property
    def steps(self) -> NDArray[np.float64]:
        """What taking the other neighbour in place of the nearest adds to each weight, float64."""
        return np.asarray(self.other * self.scale.astype(np.float64), np.float64)

    def rounded(self, flipped: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Weights on the grid, which give the same scale and are quantized to exactly these integers.

        Args:
            flipped: The weights that take their other neighbour, bool of the weights' shape.

        Returns:
            Integer multiples of the scale, float32. In place of ±127 times the scale stands the largest
            weight itself, so that the scale of the new weights is the same to the last bit.
        """
        integers = self.nearest + np.where(flipped, self.other, 0)
        values = np.where(np.abs(integers) == QMAX, np.sign(integers) * self.peak, integers * self.scale)
        return values.astype(np.float32)
