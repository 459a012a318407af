"""Rounding to integers, in every way that TensorRT's backends use."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.floating]


class Rounding(Enum):
    """How a value between two integers is rounded to the nearest; the ways differ at exact halves."""

    HALF_EVEN = "half even"
    HALF_UP = "half up"
    HALF_AWAY_FROM_ZERO = "half away from zero"


def round_values(values: _Floats, rounding: Rounding) -> _Floats:
    """Rounds to integers.

    Args:
        values: Values of any shape, float32 or float64.
        rounding: The way of rounding.

    Returns:
        The integers, of the shape and dtype of ``values``.
    """
    return _FUNCTIONS[rounding](values)


def _half_up(values: _Floats) -> _Floats:
    # floor(x + 0.5) is wrong where the sum itself rounds, as for the largest number below 0.5.
    floor = np.floor(values)
    with np.errstate(invalid="ignore"):  # infinite values have no fraction
        fraction = values - floor
    return np.where(fraction >= 0.5, floor + 1, floor).astype(values.dtype)


def _half_away_from_zero(values: _Floats) -> _Floats:
    return np.copysign(_half_up(np.abs(values)), values)


_FUNCTIONS: dict[Rounding, Callable[[_Floats], _Floats]] = {
    Rounding.HALF_EVEN: np.rint,
    Rounding.HALF_UP: _half_up,
    Rounding.HALF_AWAY_FROM_ZERO: _half_away_from_zero,
}
