"""Histograms of many tensors, counted by several threads, or on the GPU where activations stay there.

Of a GPU's tensors only the counts come back. That part uses what CuPy, PyTorch and NumPy call by the same
names. So one text serves the first two and is tested with the last two. The result is bit for bit that of
``Histogram.observe``.
"""

from __future__ import annotations

import functools
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms.binning import Counts, folded, shift_for
from calibrators.histograms.histogram import BINS, Histogram, SignedHistogram, bin_width_for

#: Values that a thread takes at once: enough to be worth it, few enough to share a large tensor.
_PIECE = 1 << 20


class ParallelHistograms:
    """Counts arrays in pieces, each thread into histograms of its own, which merge exactly.

    A context manager, for its threads. Only ``observe_in_thread`` and ``first_with_nan`` may be called while
    another call runs.
    """

    def __init__(
        self, histograms: Mapping[str, Histogram], threads: int, rectified: Mapping[str, str] | None = None
    ) -> None:
        """Begins with what was counted before.

        Args:
            histograms: Tensor name to histogram; they are not changed.
            threads: How many count at once, the caller's among them.
            rectified: Outputs of Relu to their inputs, each of another input. They are counted with their
                inputs, and not given to ``observe``.
        """
        self._rectified = dict(rectified or {})
        self._parts = [{name: found.copy() for name, found in histograms.items()}]
        self._parts += [
            {name: Histogram(np.zeros_like(found.counts)) for name, found in histograms.items()}
            for _ in range(threads - 1)
        ]
        self._signed = [
            {name: SignedHistogram.of_bins(len(histograms[name].counts)) for name in self._rectified.values()}
            for _ in range(threads)
        ]
        self._pool = ThreadPoolExecutor(max(1, threads - 1), "trtint8-count")

    def __enter__(self) -> ParallelHistograms:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown()

    def observe(self, arrays: Iterable[tuple[str, NDArray[np.floating]]]) -> None:
        """Counts every element of arrays of any shape; returns when all are counted.

        Args:
            arrays: Tensor names and their values, taken as float32.
        """
        pieces = deque(
            (name, flat[start : start + _PIECE])
            for name, values in arrays
            for flat in [np.ascontiguousarray(values).reshape(-1)]
            for start in range(0, flat.size, _PIECE)
        )
        first, *others = (self._of_thread(number) for number in range(len(self._parts)))
        waiting = [self._pool.submit(_count, pieces, part) for part in others[: len(pieces) - 1]]
        _count(pieces, first)
        for future in waiting:
            future.result()

    def observe_in_thread(self, number: int, arrays: Iterable[tuple[str, NDArray[np.floating]]]) -> None:
        """Counts every element in the calling thread; others may call this with other numbers meanwhile.

        Args:
            number: Which of the threads it is, from 0.
            arrays: Tensor names and their values, taken as float32.
        """
        histograms = self._of_thread(number)
        for name, values in arrays:
            histograms[name].observe(values)

    def _of_thread(self, number: int) -> Mapping[str, Histogram | SignedHistogram]:
        """Tensor name to what one of the threads counts into."""
        maps: tuple[dict[str, Any], ...] = (self._signed[number], self._parts[number])
        return ChainMap(*maps)

    def first_with_nan(self) -> str | None:
        """The first tensor that held NaN so far; None where none did."""
        for name in self._parts[0]:
            signed = any(part[name].upper.nans for part in self._signed if name in part)
            if signed or any(part[name].nans for part in self._parts):
                return name
        return None

    def merged(self) -> dict[str, Histogram]:
        """New histograms of all that was counted so far."""
        merged = {
            name: functools.reduce(Histogram.merge, (part[name] for part in self._parts[1:]), found.copy())
            for name, found in self._parts[0].items()
        }
        for output, source in self._rectified.items():
            for part in self._signed:
                merged[source] = merged[source].merge(part[source].magnitudes)
                merged[output] = merged[output].merge(part[source].rectified)
        return merged


def _count(
    pieces: deque[tuple[str, NDArray[np.floating]]], histograms: Mapping[str, Histogram | SignedHistogram]
) -> None:
    while True:
        try:
            name, values = pieces.popleft()
        except IndexError:
            return
        histograms[name].observe(values)


#: Values that are counted at once: their temporary arrays take 50 MB on the GPU, whatever the tensor's size.
_DEVICE_PIECE = 1 << 22

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
    pieces = (flat[start : start + _DEVICE_PIECE] for start in range(0, len(flat), _DEVICE_PIECE))
    counted = (_count_on_device(library, piece, bins) for piece in pieces)
    return functools.reduce(Histogram.merge, counted, Histogram(np.zeros(bins, np.int64)))


def _count_on_device(library: Any, flat: Any, bins: int) -> Histogram:
    # Integers alone: CuPy compiles its kernels with -ftz=true, so that subnormal floats would count as
    # zeros (cupy/cuda/compiler.py). PyTorch's kernels keep them by default.
    signed = flat.view(library.int32)
    bits = signed & _MAGNITUDE
    largest, nans, infs = int(bits.max()), 0, 0
    if largest >= _INFINITY:
        infs, nans = int((bits == _INFINITY).sum()), int((bits > _INFINITY).sum())
        signed, bits = signed[bits < _INFINITY], bits[bits < _INFINITY]
        largest = int(bits.max()) if len(bits) else 0
    zeros = len(bits) - int(library.count_nonzero(bits))
    if not largest:
        return Histogram(np.zeros(bins, np.int64), zeros=zeros, nans=nans, infs=infs)
    # With their magnitudes turned round, the least value of all is the least integer. It is below 0 where the
    # integer is, and what is left of it without its sign is then the magnitude, turned round.
    turned, highest = int((signed ^ _MAGNITUDE).min()), int(signed.max())
    ends = (
        0.0 - _float_of(turned & _MAGNITUDE ^ _MAGNITUDE if turned < 0 else 0),
        _float_of(max(highest, 0)),
    )
    amax = _float_of(largest)
    width = bin_width_for(amax, bins)
    numbers = (bits[bits != 0] if zeros else bits) >> shift_for(bins)
    first = int(numbers.min())
    counts, octaves = folded(_on_host(library.bincount(numbers - first)), first, width, bins)
    return Histogram(counts, width, amax, zeros, nans, infs, octaves, ends)


def _float_of(bits: int) -> float:
    """The float32 of 32 bits."""
    return float(np.uint32(bits).view(np.float32))


def _on_host(array: Any) -> Counts:
    """An array of any of the libraries as one of NumPy's."""
    move = getattr(array, "get", None) or getattr(array, "cpu", None)  # CuPy's and PyTorch's
    return np.asarray(move() if move else array, np.int64)
