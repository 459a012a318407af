"""Weights on the grid that quantization finds again."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.arithmetic import quantize
from trtint8.quantization.qdq import weight_scale
from trtint8.tuning.remedies.rounding_grid import RoundingGrid


def config(axis):
    return TensorQuantConfig(axis)


def test_neighbours():
    weights = np.array([[127.0, 0.4, -0.4, 1.6, 3.0, 126.8, -126.8]], np.float32)
    grid = RoundingGrid.of(weights, 0, config(0))
    np.testing.assert_array_equal(grid.nearest, [[127, 0, 0, 2, 3, 127, -127]])
    # The largest stays; 3 is on the grid; what is near the largest may not get larger than it.
    np.testing.assert_array_equal(grid.other, [[0, 1, -1, -1, 0, -1, 1]])
    np.testing.assert_allclose(grid.errors, [[0, -0.4, 0.4, 0.4, 0, 0.2, -0.2]], atol=1e-5)
    np.testing.assert_array_equal(grid.steps, grid.other)
    flipped = np.array([[False, True, False, True, False, False, True]])
    np.testing.assert_array_equal(grid.rounded(flipped), [[127, 1, 0, 1, 3, 127, -126]])


def test_one_scale_for_all():
    weights = np.array([[254.0, 1.2], [0.0, 3.4]], np.float32)
    grid = RoundingGrid.of(weights, None, config(None))
    np.testing.assert_array_equal(grid.scale, np.full((2, 2), 2.0))
    np.testing.assert_array_equal(grid.nearest, [[127, 1], [0, 2]])
    np.testing.assert_array_equal(grid.other, [[0, -1], [0, -1]])


def test_weights_on_the_grid_are_not_rounded_again():
    weights = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    rounded = RoundingGrid.of(weights, 0, config(0)).rounded(np.zeros((4, 50), bool))
    again = RoundingGrid.of(rounded, 0, config(0))
    assert not again.other.any()
    np.testing.assert_array_equal(again.rounded(np.ones((4, 50), bool)), rounded)


#: Large ones, ordinary ones, and such as have hardly a scale that is a normal float32.
finite = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32)
finite |= st.floats(-(2.0**-118), 2.0**-118, width=32)


@settings(max_examples=60)
@given(arrays(np.float32, (3, 6), elements=finite), st.sampled_from([None, 0, 1]), arrays(bool, (3, 6)))
def test_quantization_gives_back_the_chosen_numbers_and_the_scale(weights, axis, flipped):
    grid = RoundingGrid.of(weights, axis, config(axis))
    rounded = grid.rounded(flipped)
    scale = weight_scale(rounded, axis)
    normal = weight_scale(weights, axis) > np.finfo(np.float32).tiny
    # Below that, weights may all become zeros, whose scale may be any.
    np.testing.assert_array_equal(scale[normal], weight_scale(weights, axis)[normal])
    whole = quantize(rounded, config(axis).with_scale(scale))
    np.testing.assert_array_equal(whole, grid.nearest + np.where(flipped, grid.other, 0))
