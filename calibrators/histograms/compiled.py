"""The compiled kernel of :mod:`calibrators.histograms.binning`.

Importing it fails where trtint8 was installed from source without a C compiler.
"""

from __future__ import annotations

import math
import threading

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms import _counting
from calibrators.histograms.binning import NUMPY, OCTAVES, PER_OCTAVE, CountedSides, CountedValues, Octaves

#: Which arguments the functions take and what they return, as in ``_counting.c``.
_INTERFACE = 2

# An installation from source keeps what it compiled when its sources change, and addresses that are taken for
# others would end the process.
if getattr(_counting, "INTERFACE", None) != _INTERFACE:
    raise ImportError("the compiled counting is of another version of trtint8; install trtint8 again")

#: Bins of equal width at most: each thread keeps counters for all that it has met.
MOST_BINS = 1 << 15

#: Values a call: each counter has 32 bits.
_MOST_VALUES = 1 << 30

_EXPONENT_BIAS, _FRACTION_BITS = 127, 23

#: Rows of counters, and counters in a row besides those of bins of equal width, as in ``_counting.c``.
_LANES, _MORE = 4, OCTAVES * PER_OCTAVE + 64


class _Counters(threading.local):
    """Counters of one thread, of which only the pages that are used take memory.

    Attributes:
        octaves: What a call has counted in octave bins, for both sides.
        address: Where that is.
    """

    def __init__(self) -> None:
        self.octaves = np.empty((2, OCTAVES, PER_OCTAVE), np.uint32)
        self.address = self.octaves.ctypes.data
        self._lanes, self._lanes_address = np.zeros(0, np.uint32), 0

    def lanes(self, size: int) -> int:
        """The address of so many counters, which are all 0 between two calls."""
        if self._lanes.size < size:
            self._lanes = np.zeros(size, np.uint32)
            self._lanes_address = self._lanes.ctypes.data
        return self._lanes_address


_counters = _Counters()


def count(values: NDArray[np.float32], width: float, bins: int) -> CountedValues:
    """Counts the first 2^30 values at most: see :class:`calibrators.histograms.binning.Kernel`.

    Args:
        values: Contiguous, shape (n,).
        width: The width of a bin; a power of two.
        bins: How many; a power of two. More than ``MOST_BINS`` are left to NumPy.
    """
    if bins > MOST_BINS:
        return NUMPY.count(values, width, bins)
    counts = np.empty(bins, np.int64)
    taken, zeros, least, (lowest, highest) = _counting.count_values(
        values.ctypes.data,
        min(values.size, _MOST_VALUES),
        _limit(width, bins),
        1.0 / width,
        bins,
        _counters.lanes(_LANES * (_MORE + bins)),
        counts.ctypes.data,
        _counters.address,
    )
    octaves = _octaves(taken, _counters.octaves[0], least, max(lowest, highest))
    ends = (0.0 - _magnitude(lowest), _magnitude(highest))
    return CountedValues(taken, counts, zeros, ends, octaves)


def count_sides(values: NDArray[np.float32], widths: tuple[float, float], bins: int) -> CountedSides:
    """Counts the first 2^30 values at most: see :class:`calibrators.histograms.binning.Kernel`.

    Args:
        values: Contiguous, shape (n,).
        widths: The widths of the bins for values of 0 and more, and for those below; powers of two, or 0
            where there are no bins yet.
        bins: How many of each; a power of two, ``MOST_BINS`` at most.
    """
    counts = np.empty((2, bins), np.int64)
    upper, lower = widths
    # Without bins only zeros are counted: the bits of all other magnitudes are 1 or more.
    taken, zeros, least, largest = _counting.count_values_of_sides(
        values.ctypes.data,
        min(values.size, _MOST_VALUES),
        (_limit(upper, bins) if upper else 1, _limit(lower, bins) if lower else 1),
        (1.0 / upper if upper else 0.0, 1.0 / lower if lower else 0.0),
        bins,
        _counters.lanes(2 * _LANES * (_MORE + bins)),
        counts.ctypes.data,
        _counters.address,
    )
    upper_octaves, lower_octaves = map(_octaves, (taken, taken), _counters.octaves, least, largest)
    peaks = _magnitude(largest[0]), _magnitude(largest[1])
    return CountedSides(taken, counts, zeros, peaks, (upper_octaves, lower_octaves))


def _octaves(taken: int, counts: NDArray[np.uint32], least: int, largest: int) -> Octaves:
    """Those that were written: from the one of the least bits to that of the largest."""
    if not largest:
        return Octaves(0, counts[:0])
    first = least >> _FRACTION_BITS
    return Octaves(first, counts[first : (largest >> _FRACTION_BITS) + 1], taken)


def _limit(width: float, bins: int) -> int:
    """The bits of ``bins * width``, which is a power of two and may be the first beyond float32."""
    return (math.frexp(bins * width)[1] - 1 + _EXPONENT_BIAS) << _FRACTION_BITS


def _magnitude(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))
