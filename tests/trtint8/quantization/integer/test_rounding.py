import math
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.quantization.integer.rounding import Rounding, round_values

VALUES = [23.5, 24.5, -23.5, -24.5, 0.5, -0.5, 0.2, -0.2, 0.7, -0.7, 3.0, -3.0]


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [
        (Rounding.HALF_EVEN, [24, 24, -24, -24, 0, 0, 0, 0, 1, -1, 3, -3]),
        (Rounding.HALF_UP, [24, 25, -23, -24, 1, 0, 0, 0, 1, -1, 3, -3]),
        (Rounding.HALF_AWAY_FROM_ZERO, [24, 25, -24, -25, 1, -1, 0, 0, 1, -1, 3, -3]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(rounding, wanted, dtype):
    got = round_values(np.array(VALUES, dtype), rounding)
    assert got.dtype == dtype
    assert got.tolist() == wanted


def test_every_rounding_is_tested_by_hand():
    assert len(Rounding) == 3


DECIMAL = {
    Rounding.HALF_EVEN: lambda d: d.quantize(Decimal(1), ROUND_HALF_EVEN),
    Rounding.HALF_AWAY_FROM_ZERO: lambda d: d.quantize(Decimal(1), ROUND_HALF_UP),
    Rounding.HALF_UP: lambda d: (d + Decimal("0.5")).to_integral_value("ROUND_FLOOR"),
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
