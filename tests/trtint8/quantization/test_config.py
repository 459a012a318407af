"""What each backend does with ties and ranges."""

import dataclasses
import itertools
import math
from decimal import ROUND_HALF_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.errors import UnsupportedError
from trtint8.quantization.config import (
    ARITHMETICS,
    DLA,
    EXPLICIT,
    IMPLICIT,
    NCNN,
    Rounding,
    State,
    TensorQuantConfig,
    arithmetic_named,
    fake_quantize,
    quantize,
    round_values,
)

PER_TENSOR = TensorQuantConfig()

#: The ways that round to the nearest integer.
_NEAREST = [rounding for rounding in Rounding if rounding is not Rounding.UP]


@pytest.mark.parametrize(
    ("axis", "scale", "message"),
    [
        (None, 0, "a scale is 0.0; scales are positive"),
        (None, math.nan, "a scale is nan"),
        (None, math.inf, "a scale is inf"),
        (None, [1, 1, 1], "the scale has 1 dimensions, and a policy for the whole tensor"),
        (0, 1, "per channel takes 1"),
    ],
)
def test_scales_that_are_none(axis, scale, message):
    with pytest.raises(UnsupportedError, match=message):
        TensorQuantConfig(axis).with_scale(np.asarray(scale, np.float32))


def test_the_same_config_along_another_axis():
    rows = TensorQuantConfig(axis=0, quant_min=-127)
    assert rows.along(1) == TensorQuantConfig(axis=1, quant_min=-127)
    assert rows.along(None).axis is None


def test_a_scale_activates():
    assert PER_TENSOR.with_scale(0.5).state is State.ACTIVATED
    assert PER_TENSOR.with_scale(0.5).with_scale(0.25).scale == 0.25
    assert dataclasses.replace(PER_TENSOR, state=State.DEQUANTIZED).with_scale(0.5).state is State.ACTIVATED


@pytest.mark.parametrize("state", [State.FLOAT, State.SHAPE_OR_INDEX, State.OVERLAPPED])
def test_tensors_without_a_scale_of_their_own(state):
    with pytest.raises(UnsupportedError, match=f"in the state '{state.value}' takes no scale"):
        TensorQuantConfig(state=state).with_scale(0.5)


LEGAL = {
    "initial": "activated overlapped dequantized deactivated float",
    "activated": "activated overlapped baked dequantized deactivated",
    "passive": "passive baked dequantized deactivated",
    "baked": "dequantized",
    "dequantized": "activated passive baked deactivated",
    "deactivated": "activated passive",
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_legal_moves(before, after):
    config = TensorQuantConfig(state=before, scale=np.asarray(0.5, np.float32))
    if after.value in LEGAL.get(before.value, "").split():
        assert config.to(after) == dataclasses.replace(config, state=after)
    else:
        with pytest.raises(UnsupportedError, match=f"'{before.value}'.*'{after.value}'"):
            config.to(after)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"bits": 1}, "1"),
        ({"bits": 33}, "33"),
        ({"quant_min": 127}, "127"),
        ({"quant_min": -129}, "-129"),
        ({"quant_min": -1, "quant_max": 255}, "255"),
        ({"bits": 4}, "-128"),
        ({"state": State.ACTIVATED}, "activated"),
        ({"state": State.BAKED}, "baked"),
        ({"power_of_two": True, "scale": np.asarray(0.3, np.float32)}, "0.3"),
    ],
)
def test_contradictions(fields, named):
    with pytest.raises(UnsupportedError, match=named):
        TensorQuantConfig(**fields)


@pytest.mark.parametrize(
    ("bits", "low", "high"), [(2, -2, 1), (4, 0, 15), (16, -32768, 32767), (32, 0, 2**32 - 1), (8, -7, 7)]
)
def test_other_widths(bits, low, high):
    config = TensorQuantConfig(bits=bits, quant_min=low, quant_max=high).with_scale(1.0)
    values = np.array([-1e30, low, 0, 1, high, 1e30], np.float64)
    assert quantize(values, config).tolist() == [low, low, 0, 1, high, high]
    assert [float(end) for end in config.ends] == [np.float32(low), np.float32(high)]


def test_passive_configs_stay_passive():
    config = TensorQuantConfig(state=State.PASSIVE).with_scale(0.5)
    assert config.state is config.with_scale(0.25).state is State.PASSIVE


def test_powers_of_two():
    config = dataclasses.replace(PER_TENSOR, power_of_two=True)
    assert [float(config.with_amax(amax).scale) for amax in (127.0, 128.0, 0.3)] == [1.0, 2.0, 2.0**-8]
    rows = config.along(0).with_amax(np.array([254.0, 0.0, 100.0]))
    assert rows.scale.tolist() == [2.0, 1.0, 1.0]
    uint8 = dataclasses.replace(config, quant_min=0, quant_max=255, symmetric=False)
    found = uint8.with_range(-1.0, 3.0)
    assert (float(found.scale), found.offset) == (2.0**-5, 32)


def test_a_symmetric_range():
    config = PER_TENSOR.with_range(-2.0, 1.0)
    assert (config.scale, config.offset) == (np.float32(2 / 127), 0)
    assert PER_TENSOR.with_range(0.0, 0.0).scale == 1


@pytest.mark.parametrize(
    ("lowest", "highest", "scale", "offset"),
    [(-1, 1.55, 0.01, 100), (0, 2.55, 0.01, 0), (1, 2.55, 0.01, 0), (-2.55, -1, 0.01, 255), (0, 0, 1, 0)],
)
def test_an_asymmetric_range(lowest, highest, scale, offset):
    config = TensorQuantConfig(quant_min=0, quant_max=255, symmetric=False).with_range(lowest, highest)
    assert config.scale == np.float32(scale)
    assert config.offset == offset


@pytest.mark.parametrize(("symmetric", "offset"), [(True, 1), (False, -1), (False, 256)])
def test_offsets_that_are_none(symmetric, offset):
    with pytest.raises(UnsupportedError, match=str(offset)):
        TensorQuantConfig(quant_min=0, quant_max=255, symmetric=symmetric, offset=offset).with_scale(0.5)


def test_ties():
    values = np.array([23.5, 24.5, -23.5], np.float32)
    to_even, away_from_zero = [24, 24, -24], [24, 25, -24]
    for arithmetic, result in (
        (EXPLICIT, to_even),
        (IMPLICIT, to_even),
        (DLA, away_from_zero),
        (NCNN, away_from_zero),
    ):
        assert quantize(values, arithmetic.activations.with_scale(1.0)).tolist() == result


def test_implicit_weights_round_half_up_and_are_symmetric():
    config = IMPLICIT.weights.along(0).with_scale(np.ones(2, np.float32))
    weights = np.array([[23.5, -23.5], [24.5, -130]], np.float32)
    assert quantize(weights, config).tolist() == [[24, -23], [25, -127]]


def test_every_arithmetic_has_a_name():
    assert [arithmetic_named(name).name for name in ARITHMETICS] == list(ARITHMETICS)
    with pytest.raises(UnsupportedError, match=r"'tflite'.*qnnpack"):
        arithmetic_named("tflite")


def test_by_hand():
    config = PER_TENSOR.with_scale(0.5)
    values = np.array([11.75, 12.25, -11.75, 100.0, -100.0, 0.0], np.float32)
    assert quantize(values, config).tolist() == [24, 24, -24, 127, -128, 0]
    assert fake_quantize(values, config).tolist() == [12.0, 12.0, -12.0, 63.5, -64.0, 0.0]


def test_per_channel_by_hand():
    config = TensorQuantConfig(axis=1).with_scale(np.array([1.0, 0.5], np.float32))
    values = np.array([[1.4, 1.4], [-3.0, 3.0]], np.float32)
    assert quantize(values, config).tolist() == [[1, 3], [-3, 6]]
    assert fake_quantize(values, config).tolist() == [[1.0, 1.5], [-3.0, 3.0]]


def test_an_offset_by_hand():
    config = TensorQuantConfig(quant_min=0, quant_max=255, symmetric=False, offset=10).with_scale(0.5)
    values = np.array([-5.0, 0.0, 1.0, 1000.0, -6.0], np.float32)
    assert quantize(values, config).tolist() == [0, 10, 12, 255, 0]
    assert fake_quantize(values, config).tolist() == [-5.0, 0.0, 1.0, 122.5, -5.0]


def test_an_inverse_scale_multiplies():
    third = TensorQuantConfig().with_scale(np.float32(1 / 3))
    values = np.linspace(-40, 40, 801, dtype=np.float32)
    inverse = dataclasses.replace(third, inverse=True)
    assert quantize(values, inverse).tolist() == np.rint(values * (np.float32(1) / third.scale)).tolist()


def test_what_is_not_finite():
    values = np.array([math.inf, -math.inf, math.nan], np.float32)
    assert quantize(values, PER_TENSOR.with_scale(1.0)).tolist() == [127, -128, 0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PER_TENSOR, "the tensor is 'initial' and has no scale yet"),
        (TensorQuantConfig(axis=0).with_scale(np.ones(3, np.float32)), "3 scales for axis 0"),
        (TensorQuantConfig(axis=2).with_scale(np.ones(2, np.float32)), "2 scales for axis 2"),
    ],
)
def test_scales_that_do_not_fit(config, message):
    with pytest.raises(UnsupportedError, match=message):
        quantize(np.zeros((2, 2), np.float32), config)


@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-1e3, 1e3, width=32)),
    st.floats(2**-10, 8, width=32),
    st.sampled_from(_NEAREST),
)
def test_half_a_step_at_most_is_lost_within_the_range(values, scale, rounding):
    config = dataclasses.replace(PER_TENSOR, rounding=rounding).with_scale(scale)
    inside = np.clip(values, -127 * np.float32(scale), 127 * np.float32(scale))
    error = np.abs(fake_quantize(inside, config).astype(np.float64) - inside)
    assert (error <= scale * (0.5 + 1e-4)).all()


@given(st.integers(-128, 127), st.floats(2**-20, 2**20, width=32), st.sampled_from(_NEAREST))
def test_quantized_values_stay_what_they_are(whole, scale, rounding):
    config = dataclasses.replace(PER_TENSOR, rounding=rounding).with_scale(scale)
    values = np.array([whole], np.float32) * np.float32(scale)
    assert quantize(values, config).tolist() == [whole]
    assert fake_quantize(values, config).tolist() == values.tolist()


VALUES = [23.5, 24.5, -23.5, -24.5, 0.5, -0.5, 0.2, -0.2, 0.7, -0.7, 3.0, -3.0]


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [
        (Rounding.HALF_EVEN, [24, 24, -24, -24, 0, 0, 0, 0, 1, -1, 3, -3]),
        (Rounding.HALF_UP, [24, 25, -23, -24, 1, 0, 0, 0, 1, -1, 3, -3]),
        (Rounding.HALF_DOWN, [23, 24, -24, -25, 0, -1, 0, 0, 1, -1, 3, -3]),
        (Rounding.HALF_TOWARD_ZERO, [23, 24, -23, -24, 0, 0, 0, 0, 1, -1, 3, -3]),
        (Rounding.ADD_HALF, [24, 25, -24, -25, 1, -1, 0, 0, 1, -1, 3, -3]),
        (Rounding.UP, [24, 25, -23, -24, 1, 0, 1, 0, 1, 0, 3, -3]),
        (Rounding.HALF_AWAY_FROM_ZERO, [24, 25, -24, -25, 1, -1, 0, 0, 1, -1, 3, -3]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_by_hand(rounding, wanted, dtype):
    got = round_values(np.array(VALUES, dtype), rounding)
    assert got.dtype == dtype
    assert got.tolist() == wanted


def test_every_rounding_is_tested_by_hand():
    assert len(Rounding) == 7


DECIMAL = {
    Rounding.HALF_EVEN: lambda d: d.quantize(Decimal(1), ROUND_HALF_EVEN),
    Rounding.HALF_AWAY_FROM_ZERO: lambda d: d.quantize(Decimal(1), ROUND_HALF_UP),
    Rounding.HALF_UP: lambda d: (d + Decimal("0.5")).to_integral_value("ROUND_FLOOR"),
    Rounding.HALF_DOWN: lambda d: (d - Decimal("0.5")).to_integral_value("ROUND_CEILING"),
    Rounding.HALF_TOWARD_ZERO: lambda d: d.quantize(Decimal(1), ROUND_HALF_DOWN),
    Rounding.UP: lambda d: d.to_integral_value("ROUND_CEILING"),
}


@given(st.floats(-1e6, 1e6) | st.integers(-1000, 1000).map(lambda n: n / 2), st.sampled_from(list(DECIMAL)))
def test_against_exact_decimals(value, rounding):
    got = round_values(np.array([value]), rounding)[0]
    assert got == float(DECIMAL[rounding](Decimal(value)))


@pytest.mark.parametrize("rounding", [Rounding.HALF_UP, Rounding.HALF_AWAY_FROM_ZERO])
def test_the_largest_number_below_a_half_rounds_down(rounding):
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert round_values(np.array([below]), rounding)[0] == 0


def test_infinities_and_nan_stay():
    for rounding in Rounding:
        got = round_values(np.array([math.inf, -math.inf, math.nan]), rounding)
        assert got[0] == math.inf and got[1] == -math.inf and math.isnan(got[2])
