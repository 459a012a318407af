"""The compiled kernel of :mod:`calibrators.histograms.binning`.

Importing it fails where trtint8 was installed from source without a C compiler.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms import _counting

#: Bins at most: the numbers of their counters, and of some more, are kept in 16 bits.
MOST_BINS = 1 << 15

#: Values a call: each counter has 32 bits.
_MOST_VALUES = 1 << 30

_EXPONENT_BIAS, _FRACTION_BITS = 127, 23


def count(values: NDArray[np.float32], width: float, bins: int) -> tuple[int, NDArray[np.int64], int, float]:
    """The fields of :class:`calibrators.histograms.binning.CountedValues`, of the first 2^30 values at most.

    Args:
        values: Contiguous, shape (n,).
        width: The width of a bin; a power of two.
        bins: How many; a power of two, ``MOST_BINS`` at most.
    """
    counts = np.empty(bins, np.int64)
    size = min(values.size, _MOST_VALUES)
    taken, zeros, largest = _counting.count_values(
        values.ctypes.data, size, _limit(width, bins), 1.0 / width, bins, counts.ctypes.data
    )
    return taken, counts, zeros, _magnitude(largest)


def count_sides(
    values: NDArray[np.float32], widths: tuple[float, float], bins: int
) -> tuple[int, NDArray[np.int64], int, tuple[float, float]]:
    """The fields of :class:`calibrators.histograms.binning.CountedSides`; the first 2^30 values at most.

    Args:
        values: Contiguous, shape (n,).
        widths: The widths of the bins for values of 0 and more, and for those below; powers of two, or 0
            where there are no bins yet.
        bins: How many of each; a power of two, half of ``MOST_BINS`` at most.
    """
    counts = np.empty((2, bins), np.int64)
    size = min(values.size, _MOST_VALUES)
    upper, lower = widths
    # Without bins only zeros are counted: the bits of all other magnitudes are 1 or more.
    taken, zeros, (largest, lowest) = _counting.count_values_of_sides(
        values.ctypes.data,
        size,
        (_limit(upper, bins) if upper else 1, _limit(lower, bins) if lower else 1),
        (1.0 / upper if upper else 0.0, 1.0 / lower if lower else 0.0),
        bins,
        counts.ctypes.data,
    )
    return taken, counts, zeros, (_magnitude(largest), _magnitude(lowest))


def _limit(width: float, bins: int) -> int:
    """The bits of ``bins * width``, which is a power of two and may be the first beyond float32."""
    return (math.frexp(bins * width)[1] - 1 + _EXPONENT_BIAS) << _FRACTION_BITS


def _magnitude(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))
