"""The grid that quantization puts weights on, and which of its two neighbours each of them may take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.tables.table import QMAX
from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.arithmetic import quantize
from trtint8.quantization.qdq import weight_scale

#: Steps; weights that lie on the grid but for float32's rounding have no other neighbour.
_ON_GRID = 1e-4


@dataclass(frozen=True)
class RoundingGrid:
    """Constant weights and the whole numbers near them; all arrays have the weights' shape.

    Attributes:
        weights: Float32.
        scale: The distance of neighbours, float32.
        peak: The largest magnitude that shares the scale, float32.
        nearest: What quantization rounds to, int32.
        other: 1 or -1 to the neighbour on the weight's other side, int32; 0 where it has none, or where the
            scale hangs on it.
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
            weights: Float32.
            axis: The output channels' axis, or None for one scale.
            config: Of the weights, without scale.
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
        # The largest weight decides the scale, so it stays; and none may become larger than it.
        fixed = (np.abs(weights) == peak) | (np.abs(nearest + other) > QMAX)
        return cls(weights, scale, peak, nearest, np.where(fixed, 0, other))

    @property
    def errors(self) -> NDArray[np.float64]:
        """What rounding to nearest adds to each weight."""
        return np.asarray(self.nearest * self.scale.astype(np.float64) - self.weights, np.float64)

    @property
    def steps(self) -> NDArray[np.float64]:
        """What going to the other neighbour adds to each weight."""
        return np.asarray(self.other * self.scale.astype(np.float64), np.float64)

    def rounded(self, flipped: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Weights on the grid, which have the same scale and are quantized to the same whole numbers.

        Args:
            flipped: Those that take their other neighbour.

        Returns:
            Whole multiples of the scale; ±127 of it are the largest weight itself, so that a scale found
            from them is equal to the last bit.
        """
        whole = self.nearest + np.where(flipped, self.other, 0)
        values = np.where(np.abs(whole) == QMAX, np.sign(whole) * self.peak, whole * self.scale)
        return values.astype(np.float32)
