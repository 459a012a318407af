import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.errors import UnsupportedError
from trtint8.quantization.config import Policy, State, TensorQuantConfig
from trtint8.quantization.integer.arithmetic import dequantize, fake_quantize, quantize
from trtint8.quantization.integer.rounding import Rounding
from trtint8.quantization.targets import TARGETS, target_named

PER_TENSOR = TensorQuantConfig()


# What a config refuses.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 1}, "bits is 1; give 2 to 32"),
        ({"bits": 33}, "bits is 33; give 2 to 32"),
        ({"quant_min": 127, "quant_max": 127}, "quant_min 127 is not below quant_max 127"),
        ({"quant_min": -129}, "-129 to 127 does not fit 8 bits"),
        ({"quant_min": -1, "quant_max": 255}, "-1 to 255 does not fit 8 bits"),
        ({"state": State.ACTIVATED}, "the state 'activated' needs a scale"),
        ({"scale": np.float32(0)}, "a scale is 0.0; scales are positive"),
        ({"scale": np.float32(math.nan)}, "a scale is nan"),
        ({"scale": np.float32(math.inf)}, "a scale is inf"),
        ({"scale": np.ones(3, np.float32)}, "the scale has 1 dimensions, and a policy for the whole tensor"),
        ({"policy": Policy(axis=0), "scale": np.float32(1)}, "per channel takes 1"),
        ({"policy": Policy(exponential=True), "scale": np.float32(0.3)}, "a scale is no power of two"),
        ({"scale": np.float32(1), "offset": np.float32(3)}, "a symmetric policy has no offset"),
    ],
)
def test_contradictions(fields, message):
    fields = {k: np.asarray(v) if k in ("scale", "offset") else v for k, v in fields.items()}
    with pytest.raises(UnsupportedError, match=message):
        TensorQuantConfig(**fields)


def test_a_power_of_two_has_no_offset():
    with pytest.raises(UnsupportedError, match="a power-of-two scale with an offset"):
        Policy(exponential=True, symmetric=False)


@pytest.mark.parametrize("offset", [256.0, -1.0, 1.5])
def test_offsets_are_integers_in_range(offset):
    uint8 = TensorQuantConfig(policy=Policy(symmetric=False), quant_min=0, quant_max=255)
    with pytest.raises(UnsupportedError, match="an offset is no integer from 0 to 255"):
        uint8.with_scale(0.1, np.asarray(offset, np.float32))


@pytest.mark.parametrize(
    ("bits", "least", "most"), [(2, -2, 1), (4, 0, 15), (16, -32768, 32767), (32, 0, 2**32 - 1)]
)
def test_other_widths(bits, least, most):
    TensorQuantConfig(bits=bits, quant_min=least, quant_max=most)


# States.

LEGAL = {
    ("initial", "activated"),
    ("initial", "overlapped"),
    ("initial", "deactivated"),
    ("initial", "float"),
    ("activated", "baked"),
    ("activated", "overlapped"),
    ("activated", "dequantized"),
    ("activated", "deactivated"),
    ("baked", "dequantized"),
    ("passive initial", "passive"),
    ("passive initial", "deactivated"),
    ("passive initial", "float"),
    ("passive", "passive baked"),
    ("passive", "dequantized"),
    ("passive", "deactivated"),
    ("passive baked", "dequantized"),
    ("dequantized", "activated"),
    ("dequantized", "baked"),
    ("dequantized", "passive"),
    ("dequantized", "passive baked"),
    ("dequantized", "deactivated"),
    ("deactivated", "activated"),
    ("deactivated", "passive"),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_legal_moves(before, after):
    config = TensorQuantConfig(state=before, scale=np.asarray(0.5, np.float32))
    if (before.value, after.value) in LEGAL:
        assert config.to(after).state is after
    else:
        with pytest.raises(
            UnsupportedError, match=f"in the state '{before.value}' cannot become '{after.value}'"
        ):
            config.to(after)


def test_a_scale_activates():
    assert PER_TENSOR.with_scale(0.5).state is State.ACTIVATED
    passive = TensorQuantConfig(state=State.PASSIVE_INITIAL)
    assert passive.with_scale(0.5).state is State.PASSIVE
    assert PER_TENSOR.with_scale(0.5).with_scale(0.25).scale == 0.25
    for state in (State.FLOAT, State.SHAPE_OR_INDEX, State.OVERLAPPED):
        with pytest.raises(UnsupportedError, match=f"in the state '{state.value}' takes no scale"):
            TensorQuantConfig(state=state).with_scale(0.5)


# Arithmetic.


def test_by_hand():
    config = PER_TENSOR.with_scale(0.5)
    values = np.array([11.75, 12.25, -11.75, 100.0, -100.0, 0.0], np.float32)
    assert quantize(values, config).tolist() == [24, 24, -24, 127, -128, 0]
    assert dequantize(np.array([24, -128]), config).tolist() == [12.0, -64.0]
    assert fake_quantize(values, config).tolist() == [12.0, 12.0, -12.0, 63.5, -64.0, 0.0]


def test_per_channel_by_hand():
    config = TensorQuantConfig(policy=Policy(axis=1)).with_scale(np.array([1.0, 0.5], np.float32))
    values = np.array([[1.4, 1.4], [-3.0, 3.0]], np.float32)
    assert quantize(values, config).tolist() == [[1, 3], [-3, 6]]
    assert fake_quantize(values, config).tolist() == [[1.0, 1.5], [-3.0, 3.0]]


def test_an_offset_by_hand():
    config = target_named("qnnpack").activations.with_scale(0.5, np.asarray(10, np.float32))
    values = np.array([-5.0, 0.0, 1.0, 1000.0, -6.0], np.float32)
    assert quantize(values, config).tolist() == [0, 10, 12, 255, 0]
    assert dequantize(np.array([0, 10, 12]), config).tolist() == [-5.0, 0.0, 1.0]


def test_what_is_not_finite():
    values = np.array([math.inf, -math.inf, math.nan], np.float32)
    assert quantize(values, PER_TENSOR.with_scale(1.0)).tolist() == [127, -128, 0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PER_TENSOR, "the tensor is 'initial' and has no scale yet"),
        (TensorQuantConfig(policy=Policy(axis=0)).with_scale(np.ones(3, np.float32)), "3 scales for axis 0"),
        (TensorQuantConfig(policy=Policy(axis=2)).with_scale(np.ones(2, np.float32)), "2 scales for axis 2"),
    ],
)
def test_scales_that_do_not_fit(config, message):
    with pytest.raises(UnsupportedError, match=message):
        quantize(np.zeros((2, 2), np.float32), config)


@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-1e3, 1e3, width=32)),
    st.floats(2**-10, 8, width=32),
    st.sampled_from([r for r in Rounding if r is not Rounding.UP]),
)
def test_half_a_step_at_most_is_lost_within_the_range(values, scale, rounding):
    config = dataclasses.replace(PER_TENSOR, rounding=rounding).with_scale(scale)
    inside = np.clip(values, -127 * np.float32(scale), 127 * np.float32(scale))
    error = np.abs(fake_quantize(inside, config).astype(np.float64) - inside)
    assert (error <= scale * (0.5 + 1e-4)).all()


@given(st.integers(-128, 127), st.floats(2**-20, 2**20, width=32), st.sampled_from(list(Rounding)))
def test_quantized_values_stay_what_they_are(whole, scale, rounding):
    config = dataclasses.replace(PER_TENSOR, rounding=rounding).with_scale(scale)
    if rounding is Rounding.UP:
        return  # the quotient may lie just above an integer
    assert quantize(dequantize(np.array([whole]), config), config).tolist() == [whole]


# Targets.


def test_ties_by_target():
    values = np.array([23.5, 24.5, -23.5], np.float32)
    wanted = {
        "tensorrt-gpu": [24, 24, -24],
        "tensorrt-gpu-implicit": [24, 24, -24],
        "dla": [24, 25, -24],
        "ncnn": [24, 25, -24],
    }
    for name, result in wanted.items():
        assert quantize(values, target_named(name).activations.with_scale(1.0)).tolist() == result


def test_implicit_weights_round_half_up_and_are_symmetric():
    config = target_named("tensorrt-gpu-implicit").weights_along(0).with_scale(np.ones(2, np.float32))
    weights = np.array([[23.5, -23.5], [24.5, -130]], np.float32)
    assert quantize(weights, config).tolist() == [[24, -23], [25, -127]]


def test_scales_from_ranges():
    assert PER_TENSOR.scale_of(127.0) == 1
    power_of_two = TensorQuantConfig(policy=Policy(exponential=True))
    assert power_of_two.scale_of(127.0) == 1
    assert power_of_two.scale_of(128.0) == 2
    assert power_of_two.scale_of(0.3) == 2.0**-8
    per_channel = TARGETS["tensorrt-gpu"].weights_along(0)
    assert per_channel.scale_of(np.array([127.0, 254.0])).tolist() == [1, 2]


def test_one_scale_where_the_target_has_no_channels():
    assert target_named("qnnpack").weights_along(0).policy.axis is None
    assert target_named("dla").weights_along(1).policy.axis == 1


def test_no_such_target():
    with pytest.raises(UnsupportedError, match="there is no target 'tpu'; use one of tensorrt-gpu, "):
        target_named("tpu")
