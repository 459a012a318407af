"""The compiled kernel of :mod:`calibrators.binning`. Importing it needs numba, the extra ``fast``.

Machine code is cached beside this file or, where that folder is read-only, in the user's cache folder;
where neither can be written it is compiled anew in every process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

#: Bins at most: their numbers are kept in 16 bits.
MOST_BINS = 1 << 16

#: Values whose bin numbers are computed at once (in vectors), before they are counted one by one.
_BLOCK = 4096

#: Counters a bin. Neighbouring values often share a bin, and an increment must wait for the one before it
#: to reach memory; with four counters it waits for the fourth before it.
_LANES = 4

#: Values a call: each counter has 32 bits.
_MOST_VALUES = 1 << 30

types: Any = numba.types  # what numba says of its own types is incomplete

_EXPONENT_BIAS, _FRACTION_BITS = 127, 23
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_ONE = np.uint32(1)


def _count_lanes(values: Any, bits: Any, limit: Any, factor: Any, bins: Any, lanes: Any, index: Any) -> Any:
    """Counts blocks until one has a value of ``limit`` (as bits) or more, or a NaN.

    The order of magnitudes is that of their bits as whole numbers, and NaN comes above infinity.
    """
    zeros, largest = 0, np.uint32(0)
    for start in range(0, values.size, _BLOCK):
        block, block_bits = values[start : start + _BLOCK], bits[start : start + _BLOCK]
        peak = np.uint32(0)
        for i in range(block.size):
            peak = max(peak, block_bits[i] & _MAGNITUDE)
        if peak >= limit:
            return start, zeros, np.int64(largest)
        largest = max(largest, peak)
        block_zeros = np.int32(0)
        for i in range(block.size):
            magnitude = abs(block[i])
            block_zeros += np.int32(magnitude == 0)
            # Multiplying by a power of two is exact, so no value is misplaced.
            index[i] = np.uint16(np.int32(magnitude * factor))
        zeros += int(block_zeros)
        even = block.size // _LANES * _LANES
        # Unsigned, because numba takes a signed index for one that may count from the end.
        for i in range(0, even, _LANES):
            for lane in range(_LANES):
                lanes[np.uint64(index[np.uint64(i + lane)]) + np.uint64(lane) * bins] += _ONE
        for i in range(even, block.size):
            lanes[np.uint64(index[np.uint64(i)])] += _ONE
    return values.size, zeros, np.int64(largest)


def _compile(signature: Any, function: Callable[..., Any]) -> Any:
    compiler: Any = numba.njit
    try:
        return compiler(signature, nogil=True, cache=True)(function)
    except (RuntimeError, OSError):  # numba found no folder that it may write to
        return compiler(signature, nogil=True)(function)


_compiled = _compile(
    types.UniTuple(types.int64, 3)(
        types.Array(types.float32, 1, "C", readonly=True),
        types.Array(types.uint32, 1, "C", readonly=True),
        types.uint32,
        types.float32,
        types.uint64,
        types.uint32[::1],
        types.uint16[::1],
    ),
    _count_lanes,
)


def count(values: NDArray[np.float32], width: float, bins: int) -> tuple[int, NDArray[np.int64], int, float]:
    """The fields of :class:`calibrators.binning.Counted`; takes 2^30 values at most, and 65,536 bins."""
    values = values[:_MOST_VALUES]
    lanes, index = np.zeros(_LANES * bins, np.uint32), np.empty(_BLOCK, np.uint16)
    # The bits of bins * width, which is a power of two and may be the first beyond float32.
    limit = np.uint32((math.frexp(bins * width)[1] - 1 + _EXPONENT_BIAS) << _FRACTION_BITS)
    taken, zeros, largest = _compiled(
        values, values.view(np.uint32), limit, np.float32(1.0 / width), np.uint64(bins), lanes, index
    )
    counts = lanes.reshape(_LANES, bins).sum(axis=0, dtype=np.int64)
    return taken, counts, zeros, float(np.uint32(largest).view(np.float32))
