"""What each layer costs, as bars."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.report.layers import weights_part


@pytest.mark.parametrize(
    ("weights", "activations"),
    [(None, None), (math.inf, math.inf), (-math.inf, 3.0), (-4000.0, -4000.0), (-4000.0, 20.0)],
)
def test_noise_without_parts(weights, activations):
    assert weights_part(weights, activations) is None
    assert weights_part(20.0, None) == 1.0


@given(st.floats(-50, 100), st.floats(-50, 100))
def test_the_parts_add_up(weights, activations):
    assert weights_part(weights, activations) + weights_part(activations, weights) == pytest.approx(1)
