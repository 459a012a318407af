"""Quantizing and dequantizing values, by hand and by property."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrators.errors import UnsupportedError
from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.arithmetic import fake_quantize, quantize
from trtint8.quantization.integer.rounding import Rounding

PER_TENSOR = TensorQuantConfig()


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
    st.sampled_from(Rounding),
)
def test_half_a_step_at_most_is_lost_within_the_range(values, scale, rounding):
    config = dataclasses.replace(PER_TENSOR, rounding=rounding).with_scale(scale)
    inside = np.clip(values, -127 * np.float32(scale), 127 * np.float32(scale))
    error = np.abs(fake_quantize(inside, config).astype(np.float64) - inside)
    assert (error <= scale * (0.5 + 1e-4)).all()


@given(st.integers(-128, 127), st.floats(2**-20, 2**20, width=32), st.sampled_from(Rounding))
def test_quantized_values_stay_what_they_are(whole, scale, rounding):
    config = dataclasses.replace(PER_TENSOR, rounding=rounding).with_scale(scale)
    values = np.array([whole], np.float32) * np.float32(scale)
    assert quantize(values, config).tolist() == [whole]
    assert fake_quantize(values, config).tolist() == values.tolist()
