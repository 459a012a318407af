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
    """How one tensor is quantized, to integers whose largest is 127. Frozen: changes are new configs.

    Attributes:
        axis: The axis of the channels, for one scale per channel; None for one scale for the whole tensor.
        rounding: How values are rounded to integers.
        quant_min: The smallest integer.
        state: How far the quantization has come.
        scale: Positive float32 of shape () for one scale, or (channels,) for one scale per channel; None
            before it is known.

    Raises:
        UnsupportedError: The scale does not fit the axis, or is not positive and finite.
    """

    axis: int | None = None
    rounding: Rounding = Rounding.HALF_EVEN
    quant_min: int = -128
    state: State = State.INITIAL
    scale: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
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
