"""The compiled kernel of :mod:`calibrators.histograms.binning`.

Importing it fails where trtint8 was installed from source without a C compiler.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms import _counting

#: Bins at most: their numbers are kept in 16 bits.
MOST_BINS = 1 << 16

#: Counters a bin, as in ``_counting.c``.
_LANES = 4

#: Values a call: each counter has 32 bits.
_MOST_VALUES = 1 << 30

_EXPONENT_BIAS, _FRACTION_BITS = 127, 23


def count(values: NDArray[np.float32], width: float, bins: int) -> tuple[int, NDArray[np.int64], int, float]:
    """The fields of :class:`calibrators.histograms.binning.Counted`; counts the first 2^30 values at most.

    Args:
        values: Contiguous, shape (n,).
        width: The width of a bin; a power of two.
        bins: How many; a power of two, ``MOST_BINS`` at most.
    """
    lanes = np.zeros((_LANES, bins), np.uint32)
    # The bits of bins * width, which is a power of two and may be the first beyond float32.
    limit = (math.frexp(bins * width)[1] - 1 + _EXPONENT_BIAS) << _FRACTION_BITS
    size = min(values.size, _MOST_VALUES)
    taken, zeros, largest = _counting.count(
        values.ctypes.data, size, limit, 1.0 / width, bins, lanes.ctypes.data
    )
    return taken, lanes.sum(axis=0, dtype=np.int64), zeros, float(np.uint32(largest).view(np.float32))
