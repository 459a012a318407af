"""How one tensor is quantized, how far its quantization has come, and what backends do with it.

The terms are those of the tensor quantization config of PPQ (OpenPPL). What each backend computes with
integers is data: a further backend is a further row of :data:`ARITHMETICS`.

Functions that quantize take an array of any shape and return one of the same shape. The config must have a
scale; with one scale per channel, the array has as many entries along the config's axis as there are scales.
A config without a scale, or one that does not fit the shape, raises
:class:`~calibrators.errors.UnsupportedError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import numpy as np

from calibrators.checks import check_choice
from calibrators.data.feeds import AnyFloats, Array, Float32s
from calibrators.data.inputs import shape_text
from calibrators.errors import UnsupportedError
from calibrators.tables.choice import QMAX


def quantize(values: AnyFloats, config: TensorQuantConfig) -> Array:
    """The integers that represent values: clip(round(x / scale) + offset).

    They lie between ``quant_min`` and ``quant_max``, and are int32 where that holds both. The quotient is
    computed in float32, as hardware does; NaN becomes the offset.
    """
    integers = _integers(values, config).astype(np.int64) + config.offset
    return integers if config.quant_max > np.iinfo(np.int32).max else integers.astype(np.int32)


def fake_quantize(values: AnyFloats, config: TensorQuantConfig) -> Float32s:
    """Quantizes values and dequantizes the integers: the values as a quantized network computes with them."""
    integers = _integers(values, config)
    integers *= _scale(values.shape, config)
    return integers.astype(np.float32, copy=False)


def _integers(values: AnyFloats, config: TensorQuantConfig) -> AnyFloats:
    """:func:`quantize` without the offset, as floats that hold all integers of the config."""
    scale, values = _scale(values.shape, config), values.astype(np.float32, copy=False)
    quotients = values * (np.float32(1) / scale) if config.inverse else values / scale
    if config.bits > _FLOAT32_BITS:
        quotients = quotients.astype(np.float64)
    integers = round_values(quotients, config.rounding)
    # Clipped as floats, because infinity cannot be converted to an integer.
    np.clip(integers, config.quant_min - config.offset, config.quant_max - config.offset, out=integers)
    if np.isnan(integers.sum()):  # one pass tells, where two would look for each
        np.copyto(integers, 0, where=np.isnan(integers))
    return integers


def _scale(shape: tuple[int, ...], config: TensorQuantConfig) -> Float32s:
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


class Rounding(Enum):
    """How a value between two integers is rounded; the ``HALF`` ways differ at exact halves alone."""

    HALF_EVEN = "half even"
    HALF_UP = "half up"
    HALF_DOWN = "half down"
    HALF_TOWARD_ZERO = "half toward zero"
    HALF_AWAY_FROM_ZERO = "half away from zero"
    ADD_HALF = "add half"
    """One half is added away from zero, in the floats' own precision, and the rest cut off: C's
    ``(int)(x + 0.5)``. The largest number below one half becomes 1."""
    UP = "up"
    """To the next larger integer, however near the one below is."""


def round_values(values: AnyFloats, rounding: Rounding) -> AnyFloats:
    """Rounds to integers.

    Args:
        values: Values of any shape, float32 or float64.
        rounding: The way of rounding.

    Returns:
        The integers, of the shape and dtype of ``values``.
    """
    return _FUNCTIONS[rounding](values)


def _half_up(values: AnyFloats) -> AnyFloats:
    # floor(x + 0.5) is wrong where the sum itself rounds, as for the largest number below 0.5.
    floor = np.floor(values)
    with np.errstate(invalid="ignore"):  # infinite values have no fraction
        fraction = values - floor
    return np.where(fraction >= 0.5, floor + 1, floor).astype(values.dtype)


_FUNCTIONS: dict[Rounding, Callable[[AnyFloats], AnyFloats]] = {
    Rounding.HALF_EVEN: np.rint,
    Rounding.HALF_UP: _half_up,
    Rounding.HALF_DOWN: lambda values: -_half_up(-values),
    Rounding.HALF_TOWARD_ZERO: lambda values: np.copysign(-_half_up(-np.abs(values)), values),
    Rounding.HALF_AWAY_FROM_ZERO: lambda values: np.copysign(_half_up(np.abs(values)), values),
    Rounding.ADD_HALF: lambda values: np.trunc(values + np.copysign(values.dtype.type(0.5), values)),
    Rounding.UP: np.ceil,
}


class State(Enum):
    """How far the quantization of a tensor has come."""

    INITIAL = "initial"
    """The tensor is to be quantized and has no scale yet."""
    ACTIVATED = "activated"
    """The tensor has a scale and is quantized when it is used."""
    OVERLAPPED = "overlapped"
    """The config of another tensor counts: the tensor is never stored, or shares its dominator's scale."""
    BAKED = "baked"
    """The tensor is constant, and its values were replaced by the integers."""
    PASSIVE = "passive"
    """The tensor takes its scale from others, as the bias of a product does from what is multiplied."""
    DEQUANTIZED = "dequantized"
    """The tensor could be quantized, and its user keeps it in float."""
    DEACTIVATED = "deactivated"
    """The tensor could be quantized, and is not, because that would be slower."""
    SHAPE_OR_INDEX = "shape or index"
    """The tensor holds sizes or positions and is never quantized."""
    FLOAT = "float"
    """The tensor stays in float."""


#: State to the states that may follow it.
_FOLLOWING: Mapping[State, frozenset[State]] = {
    State.INITIAL: frozenset(
        {State.ACTIVATED, State.OVERLAPPED, State.DEQUANTIZED, State.DEACTIVATED, State.FLOAT}
    ),
    State.ACTIVATED: frozenset(
        {State.ACTIVATED, State.OVERLAPPED, State.BAKED, State.DEQUANTIZED, State.DEACTIVATED}
    ),
    State.PASSIVE: frozenset({State.PASSIVE, State.BAKED, State.DEQUANTIZED, State.DEACTIVATED}),
    State.BAKED: frozenset({State.DEQUANTIZED}),
    State.DEQUANTIZED: frozenset({State.ACTIVATED, State.PASSIVE, State.BAKED, State.DEACTIVATED}),
    State.DEACTIVATED: frozenset({State.ACTIVATED, State.PASSIVE}),
    State.OVERLAPPED: frozenset(),
    State.SHAPE_OR_INDEX: frozenset(),
    State.FLOAT: frozenset(),
}

#: States in which a tensor is quantized, and so has a scale.
_SCALED = frozenset({State.ACTIVATED, State.BAKED})

#: The numbers of bits that integers may have, and those of which float32 holds all.
_FEWEST_BITS, _MOST_BITS, _FLOAT32_BITS = 2, 32, 24

#: Scales of ranges are no smaller: TensorRT rejects those below the smallest normal float32, or takes them
#: for zero.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


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
        bits: The number of bits of the integers, 2 to 32.
        power_of_two: Whether scales are powers of two; else they are any positive numbers.
        observer: How the range was found: a calibration method, or ``by hand``; None where nobody observes.

    Raises:
        UnsupportedError: The integers do not fit their bits; the scale does not fit the axis or the policy,
            or is not positive and finite; the state needs a scale; or an offset is given that the integers
            cannot hold, or that a symmetric config has no use for.
    """

    axis: int | None = None
    rounding: Rounding = Rounding.HALF_EVEN
    quant_min: int = -128
    state: State = State.INITIAL
    scale: Float32s | None = None
    quant_max: int = QMAX
    symmetric: bool = True
    inverse: bool = False
    offset: int = 0
    bits: int = 8
    power_of_two: bool = False
    observer: str | None = None

    def __post_init__(self) -> None:
        if not _FEWEST_BITS <= self.bits <= _MOST_BITS:
            raise UnsupportedError(f"integers have {self.bits} bits; give {_FEWEST_BITS} to {_MOST_BITS}")
        half, low, high = 1 << (self.bits - 1), self.quant_min, self.quant_max
        if not (low < high and (-half <= low <= high < half or 0 <= low <= high < 2 * half)):
            raise UnsupportedError(
                f"integers from {low} to {high} are none of {self.bits} bits, signed or unsigned"
            )
        if self.state in _SCALED and self.scale is None:
            raise UnsupportedError(f"a tensor that is '{self.state.value}' needs a scale")
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
        if self.power_of_two and (np.frexp(self.scale)[0] != 0.5).any():
            raise UnsupportedError(f"a scale of {self.scale} is no power of two, which the config asks for")

    @property
    def ends(self) -> tuple[Float32s, Float32s]:
        """The smallest value and the largest that integers represent, of the shape of the scale.

        Raises:
            UnsupportedError: There is no scale yet.
        """
        if self.scale is None:
            raise UnsupportedError(f"the tensor is '{self.state.value}' and has no scale yet")
        low, high = (np.float32(end - self.offset) for end in (self.quant_min, self.quant_max))
        return np.asarray(low * self.scale), np.asarray(high * self.scale)

    def to(self, state: State) -> TensorQuantConfig:
        """The same config in another state.

        Raises:
            UnsupportedError: The state may not follow the present one, or needs a scale.
        """
        if state not in _FOLLOWING[self.state]:
            following = ", ".join(f"'{one.value}'" for one in State if one in _FOLLOWING[self.state])
            raise UnsupportedError(
                f"a tensor that is '{self.state.value}' cannot become '{state.value}'"
                + (f"; it may become {following}" if following else "")
            )
        return dataclasses.replace(self, state=state)

    def along(self, axis: int | None) -> TensorQuantConfig:
        """The same config, without scale yet, for scales along another axis.

        Args:
            axis: The axis of the channels that have one scale each; None for one scale.
        """
        return dataclasses.replace(self, axis=axis)

    def with_scale(self, scale: Float32s | np.float32 | float) -> TensorQuantConfig:
        """The same config with a scale: activated, or passive as it was.

        Args:
            scale: Positive, of shape () for one scale, or (channels,) for one scale per channel.

        Raises:
            UnsupportedError: The scale does not fit the axis, or a tensor in the present state takes no
                scale.
        """
        scaled = State.PASSIVE if self.state is State.PASSIVE else State.ACTIVATED
        if scaled not in _FOLLOWING[self.state]:
            raise UnsupportedError(f"a tensor in the state '{self.state.value}' takes no scale")
        return dataclasses.replace(self, state=scaled, scale=np.asarray(scale, np.float32))

    def with_amax(self, amax: AnyFloats | float) -> TensorQuantConfig:
        """The same config with the scale of a range that is the same on both sides; activated.

        Args:
            amax: The largest magnitude, of shape () or (channels,). Where it is 0, any scale represents all
                values, and 1 is taken.

        Raises:
            UnsupportedError: A tensor in the present state takes no scale.
        """
        return self.with_scale(self._scale_of(np.asarray(amax, np.float64) / self.quant_max))

    def _scale_of(self, step: AnyFloats | float) -> Float32s:
        """The scale of which a step is at least as large; 1 where it is 0."""
        scale = np.where(np.asarray(step) == 0, 1.0, np.maximum(step, SMALLEST_SCALE))
        if self.power_of_two:
            scale = np.exp2(np.ceil(np.log2(scale)))
        return scale.astype(np.float32)

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
            return self.with_amax(max(abs(lowest), abs(highest)))
        low, high = min(lowest, 0.0), max(highest, 0.0)
        scale = self._scale_of((high - low) / (self.quant_max - self.quant_min))
        offset = int(np.clip(np.rint(self.quant_min - low / scale), self.quant_min, self.quant_max))
        return dataclasses.replace(self, offset=offset).with_scale(scale)


#: The names of the arithmetics.
ArithmeticName = Literal["explicit", "implicit", "dla", "ncnn", "qnnpack"]


class Storage(Enum):
    """Which activations become integers."""

    PAIRS = "pairs"
    """Those that would get a Q/DQ pair, for the nodes that would read it."""
    GROUPS = "groups"
    """The outputs of fused groups that lie between operators with integer kernels, for all who read them."""
    INPUTS = "inputs"
    """What products with constant weights read, for those products."""


@dataclass(frozen=True)
class Arithmetic:
    """How a backend turns activations and weights into integers, and computes with them.

    Attributes:
        activations: The config of an activation, with one scale per tensor.
        weights: The config of weights, without the axis of their channels.
        biases: The config of a bias, whose scale is that of the sums; None where biases are floats.
        name: The name by which users choose the backend.
        storage: Which activations become integers.
        target: The name of the target whose placement says which products run on integers; None where
            ``products`` says so.
        products: Operators that run on integers where their weights are constant; images have two spatial
            dimensions.
        per_channel: Whether weights have one scale per output channel.
        fused: Operators that become a part of the product before them, so that nothing is stored in between.
        fuses_elementwise: Whether elementwise operators in a row are one kernel.
        fixed_point: Whether sums become the integers of the output by a multiplier of 31 bits and a rounding
            shift; else sums become float32 and are scaled.
        output_ranges: Operator to the ends of what its kernel writes, whatever a table says.
        largest_sum: The largest magnitude that an accumulator holds.
    """

    activations: TensorQuantConfig
    weights: TensorQuantConfig
    name: str
    storage: Storage = Storage.PAIRS
    target: str | None = None
    products: frozenset[str] = frozenset()
    per_channel: bool = True
    fused: frozenset[str] = frozenset()
    fuses_elementwise: bool = False
    fixed_point: bool = False
    biases: TensorQuantConfig | None = None
    output_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    largest_sum: int = 2**31 - 1


def _int8(rounding: Rounding, quant_min: int = -128) -> TensorQuantConfig:
    return TensorQuantConfig(rounding=rounding, quant_min=quant_min)


_UINT8 = TensorQuantConfig(quant_min=0, quant_max=255, symmetric=False)

_INT32 = TensorQuantConfig(quant_min=-(2**31), quant_max=2**31 - 1, bits=32, state=State.PASSIVE)

_NCNN = TensorQuantConfig(rounding=Rounding.HALF_AWAY_FROM_ZERO, quant_min=-127, inverse=True)

#: Activation functions that every TensorRT computes in the kernel of the product before them.
FUSED_ACTIVATIONS = frozenset(
    {"Clip", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Tanh"}
)

#: The layers that ncnn and QNNPACK run on integers.
_MOBILE = frozenset({"Conv", "Gemm", "MatMul"})

#: TensorRT on a GPU, from Q/DQ pairs in the graph.
EXPLICIT = Arithmetic(
    _int8(Rounding.HALF_EVEN),
    _int8(Rounding.HALF_EVEN),
    "explicit",
    target="tensorrt",
    fused=FUSED_ACTIVATIONS,
)

#: TensorRT on a GPU, from calibrators or dynamic ranges.
IMPLICIT = Arithmetic(
    _int8(Rounding.HALF_EVEN),
    _int8(Rounding.HALF_UP, -127),
    "implicit",
    Storage.GROUPS,
    "tensorrt",
    fused=FUSED_ACTIVATIONS | {"Add"},
    fuses_elementwise=True,
)

#: NVIDIA's deep learning accelerator.
DLA = Arithmetic(
    _int8(Rounding.HALF_AWAY_FROM_ZERO),
    _int8(Rounding.HALF_AWAY_FROM_ZERO, -127),
    "dla",
    Storage.GROUPS,
    "dla",
    fused=FUSED_ACTIVATIONS | {"Add"},
    fuses_elementwise=True,
)

#: ncnn on a CPU: ``float2int8`` of its sources adds one half away from zero and clips to 127 on both sides.
NCNN = Arithmetic(_NCNN, _NCNN, "ncnn", Storage.INPUTS, products=_MOBILE, fused=FUSED_ACTIVATIONS)

#: QNNPACK on a CPU: ``pytorch_qnnp_q31_requantize`` of its sources. Sums are followed exactly up to 2^29,
#: which a product of 8,000 pairs of the largest integers reaches.
_QNNPACK = Arithmetic(
    _UINT8,
    _UINT8,
    "qnnpack",
    Storage.GROUPS,
    products=_MOBILE,
    per_channel=False,
    fused=frozenset({"Clip", "Relu"}),
    fixed_point=True,
    biases=_INT32,
    # The kernels take no other scales: 1/256 without an offset, and 1/128 with 128.
    output_ranges={"Sigmoid": (0.0, 255 / 256), "Tanh": (-1.0, 127 / 128)},
    largest_sum=2**29 - 1,
)

#: Name to arithmetic.
ARITHMETICS = {one.name: one for one in (EXPLICIT, IMPLICIT, DLA, NCNN, _QNNPACK)}


def arithmetic_named(name: str) -> Arithmetic:
    """Finds an arithmetic by its name.

    Args:
        name: A key of :data:`ARITHMETICS`.

    Raises:
        UnsupportedError: There is none of that name.
    """
    check_choice("arithmetic", name, tuple(ARITHMETICS))
    return ARITHMETICS[name]
