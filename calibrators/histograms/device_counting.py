"""Histograms of activations that stay on a GPU: counted there, and only the counts come back.

Written against what CuPy, PyTorch and NumPy call by the same names, so that one text serves the first two
and is tested with the last two. The result is bit for bit that of ``Histogram.observe``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms.binning import folded, shift_for
from calibrators.histograms.counting import ParallelHistograms
from calibrators.histograms.histogram import BINS, Histogram, bin_width_for

#: Values that are counted at once: their temporary arrays take 50 MB on the GPU, whatever the tensor's size.
_PIECE = 1 << 22

#: float32 as integers: all bits but the sign, and infinity. NaN comes above it.
_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000


@dataclass(frozen=True, eq=False)
class OnDevice:
    """A tensor that stays where it is.

    Attributes:
        values: The array of the library that counts it, float32, contiguous.
    """

    values: Any


class DeviceHistograms(ParallelHistograms):
    """Counts tensors that stay on a GPU there, and all others as its base does."""

    def __init__(
        self, histograms: Mapping[str, Histogram], threads: int, count: Callable[[Any, int], Histogram]
    ) -> None:
        """Begins with what was counted before.

        Args:
            histograms: Tensor name to histogram; they are not changed.
            threads: How many count at once on the host.
            count: Makes a histogram of so many bins of an array on the GPU.
        """
        super().__init__(histograms, threads)
        self._count_there = count

    def observe(self, arrays: Iterable[tuple[str, NDArray[np.floating] | OnDevice]]) -> None:
        """Counts every element of tensors of any shape; returns when all are counted.

        Args:
            arrays: Tensor names and their values.
        """
        here, part = [], self._parts[0]
        for name, values in arrays:
            if isinstance(values, OnDevice):
                found = self._count_there(values.values, len(part[name].counts))
                part[name] = part[name].merge(found)
            else:
                here.append((name, values))
        super().observe(here)


def histogram_of(library: Any, values: Any, bins: int = BINS) -> Histogram:
    """Counts every element of an array where it lies.

    Args:
        library: The module that the array is of: ``cupy``, ``torch`` or ``numpy``.
        values: A float32 array of any shape.
        bins: How many bins; a power of two.

    Returns:
        Its histogram. It is there, so nothing on the GPU reads the array any more.
    """
    flat = values.reshape(-1)
    pieces = (flat[start : start + _PIECE] for start in range(0, len(flat), _PIECE))
    counted = (_count(library, piece, bins) for piece in pieces)
    return functools.reduce(Histogram.merge, counted, Histogram(np.zeros(bins, np.int64)))


def _count(library: Any, flat: Any, bins: int) -> Histogram:
    # Integers alone: CuPy compiles its kernels with -ftz=true, so that subnormal floats would count as
    # zeros (cupy/cuda/compiler.py). PyTorch's kernels keep them by default.
    bits = flat.view(library.int32) & _MAGNITUDE
    largest, nans, infs = int(bits.max()), 0, 0
    if largest >= _INFINITY:
        infs, nans = int((bits == _INFINITY).sum()), int((bits > _INFINITY).sum())
        bits = bits[bits < _INFINITY]
        largest = int(bits.max()) if len(bits) else 0
    zeros = len(bits) - int(library.count_nonzero(bits))
    amax = float(np.uint32(largest).view(np.float32))
    if not largest:
        return Histogram(np.zeros(bins, np.int64), zeros=zeros, nans=nans, infs=infs)
    width = bin_width_for(amax, bins)
    numbers = (bits[bits != 0] if zeros else bits) >> shift_for(bins)
    first = int(numbers.min())
    counts, octaves = folded(_on_host(library.bincount(numbers - first)), first, width, bins)
    return Histogram(counts, width, amax, zeros, nans, infs, octaves)


def _on_host(array: Any) -> NDArray[np.int64]:
    """An array of any of the libraries as one of NumPy's."""
    move = getattr(array, "get", None) or getattr(array, "cpu", None)  # CuPy's and PyTorch's
    return np.asarray(move() if move else array, np.int64)
