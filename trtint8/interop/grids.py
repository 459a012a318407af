"""What a pair of QuantizeLinear and DequantizeLinear computes, and which of it a pair of TensorRT can.

A pair rounds to multiples of its scale and clips at its ends. Counted in steps from the value 0, there is
neither a zero point nor an element type: a pair is a scale, a lowest and a highest number of steps. A Clip of
the integers between both nodes moves the ends. TensorRT has one kind of pair, from -128 to 127 steps. A pair
whose ends lie within these is that pair behind a Clip in float. All others have more steps than TensorRT, or
one scale per channel: their steps cannot be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.errors import ModelError
from trtint8.interop.pairs import quantized_type
from trtint8.models.graph_constants import read_constant

#: The ends of TensorRT's pairs, in steps.
LOWEST, HIGHEST = -128, 127

#: By how much of a step weights may lie beside it: some roundings to float32 of up to 127 steps.
_NEAR = 5e-4

#: Values of a channel that are looked at before all of them are.
_GLANCE = 64


@dataclass(frozen=True)
class Grid:
    """What a pair computes: ``scale * clip(round(x / scale), low, high)``.

    Attributes:
        scale: Positive, flat float32: one, or one per channel.
        low: The lowest number of steps, flat int64, as many as there are scales.
        high: The highest number of steps.
    """

    scale: NDArray[np.float32]
    low: NDArray[np.int64]
    high: NDArray[np.int64]

    @property
    def fits(self) -> bool:
        """Whether a pair of TensorRT has all these steps."""
        return self.scale.size == 1 and bool((self.low >= LOWEST).all() and (self.high <= HIGHEST).all())

    @property
    def ends(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The lowest and the highest values, each flat, in float64."""
        scale = self.scale.astype(np.float64)
        return self.low * scale, self.high * scale

    @property
    def amax(self) -> float:
        """The range of the pair of TensorRT that has these ends, or these steps where that is possible."""
        if self.fits:
            return HIGHEST * float(self.scale[0])
        low, high = self.ends
        return float(max(-low.min(), high.max()))

    def within(self, low: float, high: float) -> Grid:
        """The pair for values between two ends; what is less than half a step outside is rounded inside."""
        scale = self.scale.astype(np.float64)
        least, most = (np.clip(np.rint(end / scale), self.low, self.high) for end in (low, high))
        return Grid(self.scale, least.astype(np.int64), most.astype(np.int64))


def grid_of(node: ir.Node) -> Grid:
    """What the pair of a QuantizeLinear computes.

    Raises:
        ModelError: The scale or zero point is not constant, a scale is 0 or not finite, or the node quantizes
            to no integer type.
    """
    scale, point = parameters(node)
    if not scale.all():
        raise ModelError(f"a scale of node '{node.name}' is 0; only weights that are 0 can have such a scale")
    low, high = (end - np.broadcast_to(point, scale.shape) for end in integer_ends(node))
    low, high = np.where(scale < 0, -high, low), np.where(scale < 0, -low, high)
    scale = np.abs(scale)
    if all((part == part[0]).all() for part in (scale, low, high)):
        scale, low, high = scale[:1], low[:1], high[:1]
    return Grid(scale, low, high)


def parameters(node: ir.Node) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The scales and zero points of a QuantizeLinear or DequantizeLinear.

    Returns:
        Scales, float32, and zero points, int64, both flat; the zero points are 0 where the node gives none.

    Raises:
        ModelError: They are not constant, a scale is not finite, or there is no scale, or another number of
            zero points.
    """
    constants = [read_constant(value) for value in node.inputs[1:3]]
    if constants[0] is None or (len(node.inputs) > 2 and node.inputs[2] is not None and constants[1] is None):
        raise ModelError(f"the scale or zero point of node '{node.name}' is computed at run time")
    scale = np.asarray(constants[0], np.float32).reshape(-1)
    if not np.isfinite(scale).all():
        bad = scale[~np.isfinite(scale)][0]
        raise ModelError(f"a scale of node '{node.name}' is {bad}; scales must be finite")
    zero = constants[1] if len(constants) > 1 else None
    point = np.zeros(scale.shape, np.int64) if zero is None else zero.reshape(-1).astype(np.int64)
    if not scale.size or point.size not in (1, scale.size):
        name = node.inputs[1].name if node.inputs[1] is not None else ""
        raise ModelError(
            f"node '{node.name}' has {scale.size} scales in the tensor '{name}' and {point.size} zero "
            "points; give one of each, or one of each per channel"
        )
    return scale, point


def integer_ends(node: ir.Node) -> tuple[int, int]:
    """The smallest and the largest integer that a QuantizeLinear writes.

    Raises:
        ModelError: The node quantizes to no integer type.
    """
    dtype = quantized_type(node)
    assert dtype is not None, "a QuantizeLinear has a type"
    if not dtype.is_integer():
        raise ModelError(
            f"node '{node.name}' quantizes to {dtype.name}, which is no integer type; export the model with "
            "int8 or uint8"
        )
    return type_ends(dtype)


def type_ends(dtype: ir.DataType) -> tuple[int, int]:
    """The smallest and the largest integer of an integer type."""
    smallest = -(2 ** (dtype.bitwidth - 1)) if dtype.is_signed() else 0
    return smallest, smallest + 2**dtype.bitwidth - 1


def weight_grid(
    weights: NDArray[np.floating], axis: int | None, scales: Iterable[NDArray[np.float32]] = ()
) -> NDArray[np.float32] | None:
    """Finds scales of which weights are whole multiples, of up to 127, so that INT8 keeps them as they are.

    It does not matter what made the weights: pairs of any kind, movements and products of constants, or an
    exporter that computed the pairs and left floats.

    Args:
        weights: Weights of any shape.
        axis: The axis of the channels that may have a scale each; None where there can be one scale only.
        scales: Scales that the model gives for the weights, each flat, which are taken where they fit.

    Returns:
        Scales, float32, of shape (channels,), or () without an axis; None where there are none.
    """
    if not weights.size:
        return None
    rows = weights.reshape(1, -1) if axis is None else np.moveaxis(weights, axis, 0)
    rows = rows.reshape(len(rows), -1)
    found = next((scale for scale in map(np.abs, scales) if _lie_on(rows, scale)), None)
    if found is None:
        found = _greatest_step(rows.reshape(1, -1))
    if found is None and axis is not None:
        found = _greatest_step(rows)
    if found is None:
        return None
    # Of a channel that is 0 any scale is right.
    found = np.where(found == 0, np.float32(1), found)
    return np.broadcast_to(found, (len(rows),)).copy() if axis is not None else found.reshape(())


def _lie_on(rows: NDArray[np.floating], scale: NDArray[np.float32]) -> bool:
    """Whether each row holds whole multiples of its scale that int8 has; a scale of 0 fits zeros."""
    if scale.size not in (1, len(rows)):
        return False
    return bool(_near(rows, scale.reshape(-1, 1)).all())


def _near(rows: NDArray[np.floating], scale: NDArray[np.floating]) -> NDArray[np.bool_]:
    """True for each row whose values are whole multiples; scales have the shape (rows, 1) or (1, 1)."""
    with np.errstate(all="ignore"):
        steps = rows / np.where(scale < np.finfo(np.float32).tiny, np.nan, scale)
        whole = np.rint(steps)
        near = (np.abs(steps - whole) <= _NEAR) & (whole >= LOWEST) & (whole <= HIGHEST)
    fitting: NDArray[np.bool_] = (near | (rows == 0)).all(axis=1)
    return fitting


def _greatest_step(rows: NDArray[np.floating]) -> NDArray[np.float32] | None:
    """The greatest scale of each row of which all its values are multiples; None where a row has none."""
    ends = np.abs(rows).max(axis=1, keepdims=True)
    if not np.isfinite(ends).all():
        return None
    found = np.where(ends == 0, np.float32(1), np.float32(0)).astype(np.float32)
    for steps in range(1, -LOWEST + 1):
        open_rows = np.flatnonzero(found == 0)
        scale = (ends[open_rows] / steps).astype(np.float32)
        fit = _near(rows[open_rows, :_GLANCE], scale)
        open_rows, scale = open_rows[fit], scale[fit]
        fit = _near(rows[open_rows], scale)
        found[open_rows[fit]] = scale[fit]
        if found.all():
            return found.reshape(-1)
    return None
