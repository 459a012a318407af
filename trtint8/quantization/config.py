"""How one tensor is quantized, and in which state of being quantized it is.

The vocabulary is that of PPQ's tensor quantization config (OpenPPL), in types.
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
    """Where a tensor stands on its way to being quantized."""

    INITIAL = "initial"
    """Is to be quantized, has no scale yet."""
    ACTIVATED = "activated"
    """Has a scale and is quantized when it is used."""
    BAKED = "baked"
    """A parameter whose values were replaced by quantized ones."""
    OVERLAPPED = "overlapped"
    """Another config stands for it: fused away, or of one scale with its dominator."""
    PASSIVE_INITIAL = "passive initial"
    """Takes its scale from others, as a bias does, which are not known yet."""
    PASSIVE = "passive"
    """Took its scale from others."""
    PASSIVE_BAKED = "passive baked"
    """The same, with values replaced."""
    DEQUANTIZED = "dequantized"
    """Quantized in principle, in float for the moment."""
    DEACTIVATED = "deactivated"
    """Was quantized, and no longer is."""
    SHAPE_OR_INDEX = "shape or index"
    """Whole numbers that mean sizes or positions: never quantized."""
    FLOAT = "float"
    """Stays in float."""


_MOVES: dict[State, frozenset[State]] = {
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

#: States in which a scale must be there.
_SCALED = frozenset({State.ACTIVATED, State.BAKED, State.PASSIVE, State.PASSIVE_BAKED})

_FEWEST_BITS, _MOST_BITS = 2, 32


@dataclass(frozen=True)
class Policy:
    """The form of a scale.

    Attributes:
        axis: The channels' axis, with a scale for each; None for one scale for the whole tensor.
        exponential: Whether scales are powers of two; else they are any positive numbers.
        symmetric: Whether zero is at 0; else an offset says where it is.
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
        policy: The form of its scale.
        rounding: How values become whole numbers.
        quant_min: The least whole number.
        quant_max: The largest.
        bits: Bits of the whole numbers, 2 to 32.
        observer: How the range is found, a calibration method like "entropy"; None where it is given.
        state: Where it stands.
        scale: Positive float32: shape () for one, (channels,) for one a channel; None before it is known.
        offset: The whole number that stands for zero, float32 of the scale's shape; None for 0.

    Raises:
        UnsupportedError: The parts contradict each other.
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
        """The same in another state.

        Raises:
            UnsupportedError: No tensor goes that way, or the state needs a scale.
        """
        if state not in _MOVES[self.state]:
            allowed = ", ".join(f"'{other.value}'" for other in State if other in _MOVES[self.state])
            raise UnsupportedError(
                f"a tensor in the state '{self.state.value}' cannot become '{state.value}'"
                + (f"; it can become {allowed}" if allowed else "")
            )
        return dataclasses.replace(self, state=state)

    def with_scale(
        self, scale: NDArray[np.float32] | np.float32 | float, offset: NDArray[np.float32] | None = None
    ) -> TensorQuantConfig:
        """The same with a scale, activated (or passive, where it takes it from others).

        Raises:
            UnsupportedError: The scale does not fit the policy, or the state takes none.
        """
        passive = self.state in (State.PASSIVE_INITIAL, State.PASSIVE)
        wanted = State.PASSIVE if passive else State.ACTIVATED
        if self.state is not wanted and wanted not in _MOVES[self.state]:
            raise UnsupportedError(f"a tensor in the state '{self.state.value}' takes no scale")
        return dataclasses.replace(self, state=wanted, scale=np.asarray(scale, np.float32), offset=offset)

    def scale_of(self, amax: NDArray[np.floating] | float) -> NDArray[np.float32]:
        """The scale for a symmetric range.

        Args:
            amax: The largest magnitude that is to be represented, for the tensor or for each channel.

        Returns:
            ``amax / quant_max``, or the next larger power of two.
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
        raise UnsupportedError(f"an offset is no whole number from {config.quant_min} to {config.quant_max}")
