"""What constants and scales lose when they are rounded to FP16."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model
from trtint8.quantization.float16.rounding import loses_little, round_scale, scale_fits, within_range


@given(st.floats(1e-30, 1e4))
def test_rounded_scales_are_fp16_numbers_and_never_smaller(scale):
    rounded = float(round_scale(np.float32(scale)))
    assert float(np.float16(rounded)) == rounded
    assert rounded >= np.float32(scale)
    # A step of FP16: relative above its smallest normal number, absolute below.
    assert rounded - np.float32(scale) <= max(scale * 2.0**-10, 2.0**-24)


@pytest.mark.parametrize(
    ("array", "inside"),
    [([], True), ([65504, -65504, np.inf, np.nan], True), ([0, -65505], False), ([[1e38]], False)],
)
def test_the_range_of_fp16(array, inside):
    assert within_range(np.array(array, np.float32)) is inside


@pytest.mark.parametrize(
    ("array", "little"),
    [
        (1e-3, True),
        (-1e-9, False),
        (np.full(8, 1e-9), False),
        (np.full(8, 1e-40), False),
        ([1e-3, 1e-9, 1e-40, 0], True),
        (np.zeros(8), True),
        ([], True),
        ([np.inf, -np.inf, np.nan, 1], True),
        ([np.inf, 1e-9], False),
        # Two steps of 2**-24, and a half of a step lost.
        (np.full(3, 2.5 * 2.0**-24), False),
        (np.full(3, 60.5 * 2.0**-24), True),
    ],
)
def test_what_an_array_loses_as_a_whole(array, little):
    assert loses_little(np.array(array, np.float32)) is little


def pair(scale):
    """A QuantizeLinear and its DequantizeLinear."""
    g = Shaped(quantized=False)
    scale, zero_point = g.constant(np.float32(scale)), g.constant(np.zeros(np.shape(scale), np.int8))
    quantized = g.op("QuantizeLinear", ["x", scale, zero_point], "quantize", axis=0)
    tensor = g.op("DequantizeLinear", [quantized, scale, zero_point], "dequantize", axis=0)
    return load_model(g.model({"x": [3, 2]}, tensor)).graph_model


@pytest.mark.parametrize(
    ("scale", "fits"),
    [
        (0.02, True),
        (6e-5, True),
        (150.5 * 2.0**-24, True),
        (8 * 2.0**-24, True),
        (30.5 * 2.0**-24, False),
        (8e-10, False),
        (65504, True),
        (1e5, False),
        # A channel that training has let die, one of zeros, and others.
        ([0.02, 1e-12, 1], True),
        ([1e-10, 2e-10, 1], False),
        ([1, 1, 1], True),
    ],
)
def test_scales_that_fit(scale, fits):
    assert [scale_fits(node) for node in pair(scale).graph] == [fits, fits]


def test_scales_that_are_computed_fit():
    g = Shaped(quantized=False)
    scale, zero_point = g.op("Abs", ["s"], "scale"), g.constant(np.int8(0))
    tensor = g.op("QuantizeLinear", ["x", scale, zero_point], "quantize")
    model = g.model({"x": [3], "s": []}, g.op("DequantizeLinear", [tensor, scale, zero_point], "dequantize"))
    assert scale_fits(load_model(model).graph_model.graph[1])
