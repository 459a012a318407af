"""How one tensor is quantized, and how far its quantization has come.

The terms are those of the tensor quantization config of PPQ (OpenPPL).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import UnsupportedError
from calibrators.tables.scales import QMAX
from trtint8.quantization.integer.rounding import Rounding


class State(Enum):
    """How far the quantization of a tensor has come."""

    INITIAL = "initial"
    """The tensor is to be quantized and has no scale yet."""
    ACTIVATED = "activated"
    """The tensor has a scale and is quantized when it is used."""
    OVERLAPPED = "overlapped"
    """The config of another tensor counts: the tensor is never stored, or shares its dominator's scale."""
    DEQUANTIZED = "dequantized"
    """The tensor could be quantized, and stays in float for now."""
    SHAPE_OR_INDEX = "shape or index"
    """The tensor holds sizes or positions and is never quantized."""
    FLOAT = "float"
    """The tensor stays in float."""


#: States of tensors that have no scale of their own.
_UNSCALED = frozenset({State.OVERLAPPED, State.SHAPE_OR_INDEX, State.FLOAT})


@dataclass(frozen=True)
class TensorQuantConfig:
    """How one tensor is quantized. Frozen: changes are new configs.

    Attributes:
        axis: The axis of the channels, for one scale per channel; None for one scale for the whole tensor.
        rounding: How values are rounded to integers.
        quant_min: The smallest integer.
        state: How far the quantization has come.
        scale: Positive float32 of shape () for one scale, or (channels,) for one scale per channel; None
            before it is known.
        quant_max: The largest integer.
        symmetric: Whether the value zero becomes the integer 0; else it becomes ``offset``.
        inverse: Whether values are multiplied by 1 / scale, in place of being divided by the scale.
        offset: The integer of the value zero.

    Raises:
        UnsupportedError: The scale does not fit the axis, or is not positive and finite; or an offset is
            given that the integers cannot hold, or that a symmetric config has no use for.
    """

    axis: int | None = None
    rounding: Rounding = Rounding.HALF_EVEN
    quant_min: int = -128
    state: State = State.INITIAL
    scale: NDArray[np.float32] | None = None
    quant_max: int = QMAX
    symmetric: bool = True
    inverse: bool = False
    offset: int = 0

    def __post_init__(self) -> None:
        lowest, highest = (0, 0) if self.symmetric else (self.quant_min, self.quant_max)
        if self.scale is not None and not lowest <= self.offset <= highest:
            raise UnsupportedError(f"the offset is {self.offset}; give one from {lowest} to {highest}")
        if self.scale is None:
            return
        rank = 0 if self.axis is None else 1
        if self.scale.ndim != rank:
            raise UnsupportedError(
                f"the scale has {self.scale.ndim} dimensions, and a policy "
                f"{'for the whole tensor' if rank == 0 else 'per channel'} takes {rank}"
            )
        bad = ~((self.scale > 0) & np.isfinite(self.scale))
        if bad.any():
            raise UnsupportedError(
                f"a scale is {np.asarray(self.scale)[bad].flat[0]}; scales are positive and finite"
            )

    def overlapped(self) -> TensorQuantConfig:
        """The same config of a tensor for which that of another one counts."""
        return dataclasses.replace(self, state=State.OVERLAPPED)

    def along(self, axis: int | None) -> TensorQuantConfig:
        """The same config, without scale yet, for scales along another axis.

        Args:
            axis: The axis of the channels that have one scale each; None for one scale.
        """
        return dataclasses.replace(self, axis=axis)

    def with_scale(self, scale: NDArray[np.float32] | np.float32 | float) -> TensorQuantConfig:
        """The same config with a scale, activated.

        Args:
            scale: Positive, of shape () for one scale, or (channels,) for one scale per channel.

        Raises:
            UnsupportedError: The scale does not fit the axis, or a tensor in the present state takes no
                scale.
        """
        if self.state in _UNSCALED:
            raise UnsupportedError(f"a tensor in the state '{self.state.value}' takes no scale")
        return dataclasses.replace(self, state=State.ACTIVATED, scale=np.asarray(scale, np.float32))

    def with_range(self, lowest: float, highest: float) -> TensorQuantConfig:
        """The same config with the scale, and the offset, of a range; activated.

        A symmetric config takes the larger magnitude of the two ends. Another one takes the ends themselves,
        and 0 where both lie on one side of it, because the value zero has to be an integer. A range without
        an extent is that of zeros, which any scale represents: it gets 1.

        Args:
            lowest: The lower end of the range.
            highest: The upper end.

        Raises:
            UnsupportedError: A tensor in the present state takes no scale.
        """
        if self.symmetric:
            amax = max(abs(lowest), abs(highest))
            scale = np.float32(amax / self.quant_max) or np.float32(1)
            return self.with_scale(scale)
        low, high = min(lowest, 0.0), max(highest, 0.0)
        scale = np.float32((high - low) / (self.quant_max - self.quant_min)) or np.float32(1)
        offset = int(np.clip(np.rint(self.quant_min - low / scale), self.quant_min, self.quant_max))
        return dataclasses.replace(self, offset=offset).with_scale(scale)
