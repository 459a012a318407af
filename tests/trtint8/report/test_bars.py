"""What each layer costs, as bars."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trtint8.report.samples import HOSTILE, SENSITIVITY
from trtint8.report.layers import make_bars, weights_part


class TestBars:
    def test_values(self):
        worst, second, add = make_bars(SENSITIVITY)
        assert [bar.layer.node for bar in (worst, second, add)] == [HOSTILE, "second", "add"]
        assert worst.width == 1.0
        assert second.width == pytest.approx(0.2 / 0.75)
        assert worst.alone_half_db == 0.5
        assert worst.weights_part == pytest.approx(10 / 11)
        assert add.alone_half_db is None and add.weights_part == 0.0

    def test_noise_without_either(self):
        assert weights_part(None, None) is None
        assert weights_part(math.inf, math.inf) is None
        assert weights_part(20.0, None) == 1.0
        assert weights_part(-math.inf, 3.0) is None

    @given(st.floats(-50, 100), st.floats(-50, 100))
    def test_the_parts_add_up(self, weights, activations):
        assert weights_part(weights, activations) + weights_part(activations, weights) == pytest.approx(1)


def test_noise_that_no_float_holds_has_no_parts():
    assert weights_part(-4000.0, -4000.0) is None
    assert weights_part(-4000.0, 20.0) is None
