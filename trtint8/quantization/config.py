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
    BAKED = "baked"
    """The tensor is a parameter whose values were replaced by quantized ones."""
    OVERLAPPED = "overlapped"
    """The config of another tensor counts: the tensor is never stored, or shares its dominator's scale."""
    PASSIVE_INITIAL = "passive initial"
    """The tensor takes its scale from others, as a bias does, and their scales are not known yet."""
    PASSIVE = "passive"
    """The tensor has taken its scale from others."""
    PASSIVE_BAKED = "passive baked"
    """The tensor has taken its scale from others, and its values were replaced by quantized ones."""
    DEQUANTIZED = "dequantized"
    """The tensor could be quantized, and stays in float for now."""
    DEACTIVATED = "deactivated"
    """The tensor was quantized, and no longer is."""
    SHAPE_OR_INDEX = "shape or index"
    """The tensor holds sizes or positions and is never quantized."""
    FLOAT = "float"
    """The tensor stays in float."""


#: State to the states that may follow it.
_TRANSITIONS: dict[State, frozenset[State]] = {
    State.INITIAL: frozenset({State.ACTIVATED, State.OVERLAPPED, State.DEACTIVATED, State.FLOAT}),
    State.ACTIVATED: frozenset({State.BAKED, State.OVERLAPPED, State.DEQUANTIZED, State.DEACTIVATED}),
    State.BAKED: frozenset({State.DEQUANTIZED}),
    State.OVERLAPPED: frozenset(),
    State.PASSIVE_INITIAL: frozenset({State.PASSIVE, State.DEACTIVATED, State.FLOAT}),
    State.PASSIVE: frozenset({State.PASSIVE_BAKED, State.DEQUANTIZED, State.DEACTIVATED}),
    State.PASSIVE_BAKED: frozenset({State.DEQUANTIZED}),
    State.DEQUANTIZED: frozenset(
        {State.ACTIVATED, State.BAKED, State.PASSIVE, State.PASSIVE_BAKED, State.DEACTIVATED}
    ),
    State.DEACTIVATED: frozenset({State.ACTIVATED, State.PASSIVE}),
    State.SHAPE_OR_INDEX: frozenset(),
    State.FLOAT: frozenset(),
}

#: States that need a scale.
_SCALED = frozenset({State.ACTIVATED, State.BAKED, State.PASSIVE, State.PASSIVE_BAKED})

_FEWEST_BITS, _MOST_BITS = 2, 32


@dataclass(frozen=True)
class Policy:
    """The form of a scale.

    Attributes:
        axis: The axis of the channels, for one scale per channel; None for one scale for the whole tensor.
        exponential: Whether scales are powers of two; else they are any positive numbers.
        symmetric: Whether the value zero becomes the integer 0; else it becomes an offset.

    Raises:
        UnsupportedError: The policy is both exponential and asymmetric.
    """

    axis: int | None = None
    exponential: bool = False
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.exponential and not self.symmetric:
            raise UnsupportedError(
                "a power-of-two scale with an offset is no policy of any target; make it symmetric or linear"
            )


@dataclass(frozen=True)
class TensorQuantConfig:
    """How one tensor is quantized. Frozen: changes are new configs.

    Attributes:
        policy: The form of the scale.
        rounding: How values are rounded to integers.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        bits: Number of bits of the integers, 2 to 32.
        observer: The calibration method that finds the range, like "entropy"; None where the range is given.
        state: How far the quantization has come.
        scale: Positive float32 of shape () for one scale, or (channels,) for one scale per channel; None
            before it is known.
        offset: The integer that represents the value zero, float32 of the scale's shape; None for 0.

    Raises:
        UnsupportedError: The attributes contradict each other.
    """

    policy: Policy = Policy()
    rounding: Rounding = Rounding.HALF_EVEN
    quant_min: int = -128
    quant_max: int = 127
    bits: int = 8
    observer: str | None = None
    state: State = State.INITIAL
    scale: NDArray[np.float32] | None = None
    offset: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if not _FEWEST_BITS <= self.bits <= _MOST_BITS:
            raise UnsupportedError(f"bits is {self.bits}; give {_FEWEST_BITS} to {_MOST_BITS}")
        if not self.quant_min < self.quant_max:
            raise UnsupportedError(f"quant_min {self.quant_min} is not below quant_max {self.quant_max}")
        signed = -(1 << (self.bits - 1)) <= self.quant_min and self.quant_max < 1 << (self.bits - 1)
        unsigned = self.quant_min >= 0 and self.quant_max < 1 << self.bits
        if not (signed or unsigned):
            raise UnsupportedError(
                f"{self.quant_min} to {self.quant_max} does not fit {self.bits} bits, signed or unsigned"
            )
        if self.state in _SCALED and self.scale is None:
            raise UnsupportedError(f"the state '{self.state.value}' needs a scale")
        if self.scale is not None:
            _check_scale(self.scale, self.policy)
        if self.offset is not None:
            _check_offset(self.offset, self)

    def to(self, state: State) -> TensorQuantConfig:
        """The same config in another state.

        Raises:
            UnsupportedError: The state cannot follow the present one, or it needs a scale.
        """
        if state not in _TRANSITIONS[self.state]:
            allowed = ", ".join(f"'{other.value}'" for other in State if other in _TRANSITIONS[self.state])
            raise UnsupportedError(
                f"a tensor in the state '{self.state.value}' cannot become '{state.value}'"
                + (f"; it can become {allowed}" if allowed else "")
            )
        return dataclasses.replace(self, state=state)

    def along(self, axis: int | None) -> TensorQuantConfig:
        """The same config, without scale yet, for scales along another axis.

        Args:
            axis: The axis of the channels that have one scale each; None for one scale.
        """
        return dataclasses.replace(self, policy=dataclasses.replace(self.policy, axis=axis))

    def with_scale(
        self, scale: NDArray[np.float32] | np.float32 | float, offset: NDArray[np.float32] | None = None
    ) -> TensorQuantConfig:
        """The same config with a scale: activated, or passive where the scale is taken from other tensors.

        Args:
            scale: Positive, of shape () for one scale, or (channels,) for one scale per channel.
            offset: The integer that represents the value zero, of the scale's shape; None for 0.

        Raises:
            UnsupportedError: The scale does not fit the policy, or a tensor in the present state takes no
                scale.
        """
        passive = self.state in (State.PASSIVE_INITIAL, State.PASSIVE)
        scaled = State.PASSIVE if passive else State.ACTIVATED
        if self.state is not scaled and scaled not in _TRANSITIONS[self.state]:
            raise UnsupportedError(f"a tensor in the state '{self.state.value}' takes no scale")
        return dataclasses.replace(self, state=scaled, scale=np.asarray(scale, np.float32), offset=offset)

    def scale_of(self, amax: NDArray[np.floating] | float) -> NDArray[np.float32]:
        """The scale for a symmetric range.

        Args:
            amax: The largest magnitude that is to be represented, of the whole tensor or per channel.

        Returns:
            ``amax / quant_max`` in float32, rounded up to a power of two where the policy is exponential.
        """
        scale = np.asarray(np.asarray(amax, np.float64) / self.quant_max)
        if self.policy.exponential:
            scale = np.exp2(np.ceil(np.log2(scale)))
        return scale.astype(np.float32)


def _check_scale(scale: NDArray[np.float32], policy: Policy) -> None:
    rank = 0 if policy.axis is None else 1
    if scale.ndim != rank:
        raise UnsupportedError(
            f"the scale has {scale.ndim} dimensions, and a policy "
            f"{'for the whole tensor' if rank == 0 else 'per channel'} takes {rank}"
        )
    bad = ~((scale > 0) & np.isfinite(scale))
    if bad.any():
        raise UnsupportedError(f"a scale is {np.asarray(scale)[bad].flat[0]}; scales are positive and finite")
    if policy.exponential and (np.frexp(scale)[0] != 0.5).any():
        raise UnsupportedError("a scale is no power of two, which the policy asks for")


def _check_offset(offset: NDArray[np.float32], config: TensorQuantConfig) -> None:
    if config.policy.symmetric and offset.any():
        raise UnsupportedError("a symmetric policy has no offset; leave it out or make it asymmetric")
    if config.scale is not None and offset.shape != config.scale.shape:
        raise UnsupportedError(f"the offset has shape {offset.shape} and the scale {config.scale.shape}")
    if (offset != np.rint(offset)).any() or ((offset < config.quant_min) | (offset > config.quant_max)).any():
        raise UnsupportedError(f"an offset is no integer from {config.quant_min} to {config.quant_max}")
