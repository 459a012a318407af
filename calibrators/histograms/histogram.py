"""Histograms of activation magnitudes that do not depend on how the data was cut into batches.

Every value is counted twice. Bins of equal width divide the range up to the largest magnitude; rules search
them. Every bin is a power of two wide. When a larger value arrives than the bins reach, the width doubles and
neighbouring bins add up. That loses nothing: the result is the histogram that would have come from all the
data at once. Where one value is a thousand times the others, all others share a bin. So octave bins
(:class:`~calibrators.histograms.binning.Octaves`) count the same values: their width grows with the
magnitude, and they are fixed for good.

So two histograms merge exactly, and neither batch size nor order leaves a trace. A tensor and what a Relu
makes of it get their histograms from one look at the tensor.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms.binning import (
    BLOCK,
    NUMPY,
    OCTAVES,
    PER_OCTAVE,
    Counts,
    Kernel,
    Octaves,
    peak,
)

_logger = logging.getLogger(__name__)

#: Bins of a histogram. The largest magnitude always falls into the upper half of them.
BINS = 2048

#: Takes values from the front of an array, and says how many.
_Taker: TypeAlias = Callable[[NDArray[np.float32]], int]

#: The most bins: sums over as many as that are exact in float64.
_MOST_BINS = 1 << 20

#: The most values of a histogram: counts fit an int64, with room to merge two.
_MOST_VALUES = 1 << 61

#: The share of the values, in one in so many, that are few.
_FEW = 500

#: The part of the range of the bins, in one in so many, in which nearly all values are crowded.
_SMALL_PART = 16

#: The share of the values, zeros apart, that are most of them, and how many times as large those near them
#: are at most. Of a Laplace distribution one value in a thousand is larger, and of normal ones hardly any.
_MOST, _NEAR = 0.9, 3.0

#: The part of the range, in one in so many, of which bins of equal width tell too little.
_TINY_PART = 128

_FLOAT32_MAX = float(np.finfo(np.float32).max)

#: Below this exponent 1/width would overflow float32.
_SMALLEST_EXPONENT = -126


@functools.cache
def kernel() -> Kernel:
    """The fastest kernel that is installed."""
    try:
        from calibrators.histograms import compiled
    except ImportError as error:
        _logger.debug("histograms are counted by NumPy: %s", error)
        return NUMPY
    return Kernel("C", compiled.count, compiled.count_sides)


@dataclass(frozen=True)
class Bins:
    """The bins of a histogram that have values, from the smallest magnitudes on.

    Attributes:
        low: Where they begin, float64, shape (n,).
        high: Where they end, float64, shape (n,).
        counts: How many values they have, int64, shape (n,).
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    counts: Counts

    def without_few(self) -> Bins:
        """The bins of all values but the largest, which are at most one in :data:`_FEW`."""
        inside = np.cumsum(self.counts)
        end = 1 + int(np.argmax((inside[-1] - inside) * _FEW <= inside[-1]))
        return Bins(self.low[:end], self.high[:end], self.counts[:end])


@dataclass(eq=False)
class Histogram:
    """Counts of |x| over bins of equal width, starting at 0, and over octave bins.

    Zeros, NaNs and infinities are counted apart and are in no bin.

    Attributes:
        counts: Values per bin, int64, shape (bins,); bin ``i`` holds ``i * width <= |x| < (i + 1) * width``.
        bin_width: Width of a bin; a power of two once a value was observed, 0.0 before.
        amax: The largest finite |x| observed, exact; 0.0 where there was none.
        zeros: How many values were exactly zero.
        nans: How many were NaN.
        infs: How many were infinite, of either sign.
        octaves: The values that are in bins once more, in octave bins; None where that is not known.
        ends: The least finite value observed and the largest, exact, with 0 counted among them, so that the
            one is at most 0 and the other at least 0; None where that is not known, as in files of version
            0.2.
    """

    counts: Counts = field(default_factory=lambda: np.zeros(BINS, np.int64))
    bin_width: float = 0.0
    amax: float = 0.0
    zeros: int = 0
    nans: int = 0
    infs: int = 0
    octaves: Octaves | None = None
    ends: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.amax:  # nothing was observed
            self.octaves = Octaves() if self.octaves is None else self.octaves
            self.ends = (0.0, 0.0) if self.ends is None else self.ends

    @property
    def total(self) -> int:
        """How many finite values were observed, zeros included."""
        return int(self.counts.sum()) + self.zeros

    def above(self, amax: float) -> int:
        """How many values a range cuts off: those in bins beyond it.

        Args:
            amax: The range.

        Returns:
            The number of values in bins that begin at ``amax`` or later.
        """
        if amax >= self.amax:  # the largest value itself begins a bin, where it is a round number
            return 0
        bins = self.filled()
        return int(bins.counts[bins.low >= amax].sum())

    def crowded(self, *, zeros: bool = True) -> bool:
        """True if nearly all values share so few bins of equal width that these say little of them.

        These are all but one in :data:`_FEW`, in the lowest part of the range, one in :data:`_SMALL_PART`.
        Octave bins tell them apart.

        Args:
            zeros: Whether zeros are values, too.
        """
        if self.octaves is None or not self.amax:
            return False
        beyond = int(self.counts[len(self.counts) // _SMALL_PART :].sum())
        return beyond * _FEW <= self.total - (0 if zeros else self.zeros)

    def has_far(self, part: int = _SMALL_PART) -> bool:
        """True if nine in ten values, zeros apart, lie in the lowest part of the range, one in so many."""
        inside = int(self.counts[: len(self.counts) // part].sum())
        return bool(self.amax) and inside >= _MOST * (self.total - self.zeros)

    def near(self) -> Bins:
        """The bins of the values that are not far larger than nine in ten of them, zeros apart."""
        bins = self.filled(crowded=self.octaves is not None and self.has_far(_TINY_PART))
        inside = np.cumsum(bins.counts)
        near = bins.low < _NEAR * bins.high[int(np.searchsorted(inside, _MOST * inside[-1]))]
        return Bins(bins.low[near], bins.high[near], bins.counts[near])

    def filled(self, *, crowded: bool | None = None) -> Bins:
        """The bins that have values: octave bins where values are crowded, else those of equal width.

        Args:
            crowded: Whether they are; None decides by what was observed.
        """
        if (crowded := self.crowded() if crowded is None else crowded) and self.octaves is not None:
            edges, all_counts = self.octaves.edges, self.octaves.counts.reshape(-1).astype(np.int64)
        else:
            all_counts = self.counts
            edges = np.arange(len(all_counts) + 1, dtype=np.float64) * self.bin_width
        filled = np.flatnonzero(all_counts)
        low, high, counts = edges[filled], edges[filled + 1], all_counts[filled]
        if crowded:
            # The last one is narrow, and what it has may well be one value, or one that stands many times.
            low[-1], high[-1] = (1 - 1e-9) * self.amax, self.amax
        elif len(filled):
            # Nothing lies beyond the largest magnitude, which may begin its bin.
            high[-1] = max(self.amax, (1 + 1e-9) * low[-1])
        return Bins(low, high, counts)

    def kept(self) -> Histogram:
        """The same as a table keeps it: without octave bins, unless a rule needs them.

        Every rule gives the same range of it.
        """
        return (
            self
            if self.octaves is None or not self.amax or self.crowded() or self.has_far(_TINY_PART)
            else replace(self, octaves=None)
        )

    def observe(self, values: NDArray[np.floating]) -> None:
        """Adds every element of an array of any shape.

        Args:
            values: Floating-point array; taken as float32.
        """
        _count_all(values, self._count, self._make_room)

    def _count(self, flat: NDArray[np.float32]) -> int:
        """Counts values up to the first block that has one in no bin; returns how many."""
        if not self.bin_width:
            return 0
        found = kernel().count(flat, self.bin_width, len(self.counts))
        self.add(found.counts, found.zeros, found.ends, found.octaves)
        return found.taken

    def _make_room(self, block: NDArray[np.float32]) -> int:
        """Widens the bins for a block, or takes values from it that are never in a bin; returns how many."""
        largest = peak(block)
        if not math.isfinite(largest):
            finite = block[np.isfinite(block)]
            nans = int(np.isnan(block).sum())
            self.nans += nans
            self.infs += block.size - finite.size - nans
            self.observe(finite)
            return block.size
        if not largest and not self.bin_width:
            self.zeros += block.size
            return block.size
        self.reach(largest)
        return 0

    def add(self, counts: Counts, zeros: int, ends: tuple[float, float], octaves: Octaves) -> None:
        """Adds values that were counted into bins of the same width.

        Args:
            counts: Values per bin, zeros included, int64, shape (bins,).
            zeros: How many of them were exactly zero.
            ends: The least of them and the largest, 0 among them; the bins reach both.
            octaves: Values per octave bin, without zeros.
        """
        self.counts += counts
        self.counts[0] -= zeros
        self.zeros += zeros
        self.amax = max(self.amax, -ends[0], ends[1])
        self.ends = _both_ends(self.ends, ends)
        if self.octaves is not None:
            self.octaves.add(octaves)

    def merge(self, other: Histogram) -> Histogram:
        """A new histogram of everything that either of the two has observed.

        Args:
            other: A histogram with the same number of bins.

        Returns:
            What observing both sets of values in one histogram would have given, exactly.

        Raises:
            ValueError: The numbers of bins differ.
        """
        if len(self.counts) != len(other.counts):
            raise ValueError(f"cannot merge histograms of {len(self.counts)} and {len(other.counts)} bins")
        merged = self.copy()
        merged.reach(other.amax)
        if other.bin_width:
            merged.counts += _widened(other.counts, other.bin_width, merged.bin_width)
        merged.zeros += other.zeros
        merged.nans += other.nans
        merged.infs += other.infs
        merged.octaves = self.octaves.merge(other.octaves) if self.octaves and other.octaves else None
        merged.ends = _both_ends(self.ends, other.ends)
        return merged

    def coarsened(self, bins: int) -> Histogram:
        """What observing the same values into fewer bins would have given, exactly.

        Args:
            bins: How many bins; a power of two, at most as many as there are.
        """
        if not self.amax:
            return replace(self, counts=self.counts[:bins].copy())
        width = bin_width_for(self.amax, bins)
        return replace(self, counts=_widened(self.counts, self.bin_width, width)[:bins], bin_width=width)

    def check(self) -> None:
        """Refuses numbers that no observation leaves, such as those of a file that was changed.

        Whoever decodes a histogram calls this: counts beyond what arithmetic holds would fail later, and
        others would lead to another range without a word.

        Raises:
            ValueError: Says what is wrong.
        """
        counts, bins = self.counts, self.counts.size
        if counts.dtype != np.int64 or counts.ndim != 1 or not bins:
            raise ValueError(f"its counts are {counts.dtype} of shape {counts.shape}")
        if counts.min() < 0 or not all(map(_is_count, (self.zeros, self.nans, self.infs))):
            raise ValueError("a count is negative, or no number")
        if float(counts.sum(dtype=np.float64)) + self.zeros + self.nans + self.infs > _MOST_VALUES:
            raise ValueError("its counts are more than any calibration counts")
        if bins > _MOST_BINS or bins & (bins - 1):
            raise ValueError(f"it has {bins} bins, which is no power of two, or more than {_MOST_BINS}")
        if not all(isinstance(number, (float, int)) for number in (self.bin_width, self.amax)):
            raise ValueError(f"its width and its largest value are {self.bin_width!r} and {self.amax!r}")
        if not 0 <= self.amax <= _FLOAT32_MAX or float(np.float32(self.amax)) != self.amax:
            raise ValueError(f"its largest value, {self.amax}, is no float32")
        if self.bin_width != (bin_width_for(self.amax, bins) if self.amax else 0.0):
            raise ValueError(
                f"its bins have the width {self.bin_width}, which is not that of their largest value"
            )
        filled = np.flatnonzero(counts)
        last = [int(self.amax / self.bin_width)] if self.amax else []
        if filled[-1:].tolist() != last:
            raise ValueError("its largest value is not in the last bin that has any")
        if self.ends is not None:
            low, high = self.ends
            fit = low <= 0 <= high and max(-low, high) == self.amax
            if not (fit and all(float(np.float32(end)) == end for end in self.ends)):
                raise ValueError(f"its values lie between {low} and {high}, against its largest magnitude")
        if self.octaves is not None:
            self._check_octaves(self.octaves)

    def _check_octaves(self, octaves: Octaves) -> None:
        """Refuses octave bins that do not hold the values of the bins of equal width."""
        found = octaves.counts
        if found.dtype.kind != "u" or found.ndim != 2 or found.shape[1] != PER_OCTAVE:
            raise ValueError(f"its octaves are {found.dtype} of shape {found.shape}")
        if octaves.first < 0 or octaves.first + len(found) > OCTAVES:
            raise ValueError("its octaves are none of float32")
        if len(found) and not (found[0].any() and found[-1].any()):
            raise ValueError("its octaves begin or end with one that has no values")
        # As many bins of equal width as an octave has are wider than octave bins, all others narrower.
        edges, sums = octaves.edges[:-1], found.reshape(-1)
        lower, beyond = (
            edges < PER_OCTAVE * self.bin_width,
            np.flatnonzero(self.counts[PER_OCTAVE:]) + PER_OCTAVE,
        )
        equal = np.bincount((edges[lower] / (self.bin_width or 1.0)).astype(np.intp), sums[lower])
        numbers = np.searchsorted(edges, beyond * self.bin_width, side="right") - 1
        last = np.searchsorted(edges, self.amax, side="right") - 1
        if not (
            np.array_equal(np.flatnonzero(sums)[-1:], [last] if self.amax else [])
            and (numbers >= 0).all()
            and np.array_equal(np.trim_zeros(equal, "b"), np.trim_zeros(self.counts[:PER_OCTAVE], "b"))
            and np.array_equal(np.bincount(numbers, self.counts[beyond], len(sums))[~lower], sums[~lower])
        ):
            raise ValueError("its octaves do not hold the values of its bins")

    def copy(self) -> Histogram:
        """An independent copy."""
        return replace(self, counts=self.counts.copy(), octaves=self.octaves.copy() if self.octaves else None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        mine, theirs = (
            (h.bin_width, h.amax, h.ends, h.zeros, h.nans, h.infs, len(h.counts), h.octaves)
            for h in (self, other)
        )
        return mine == theirs and bool(np.array_equal(self.counts, other.counts))

    __hash__ = None  # type: ignore[assignment]  # it grows with each observation

    def reach(self, amax: float) -> None:
        """Widens the bins until they hold a magnitude, and counts it as seen.

        Args:
            amax: The magnitude, finite; that of a value that is counted next.
        """
        self.amax = max(self.amax, amax)
        if self.amax:
            width = bin_width_for(self.amax, len(self.counts))
            if self.bin_width and width != self.bin_width:
                self.counts = _widened(self.counts, self.bin_width, width)
            self.bin_width = width


def _count_all(values: NDArray[np.floating], count: _Taker, make_room: _Taker) -> None:
    """Counts every element of an array.

    Args:
        values: Floating-point array of any shape; taken as float32.
        count: Counts flat values up to the first block that has one in no bin, and gives their number.
        make_room: Widens the bins for such a block, or counts it by itself, and gives the number of values
            that it has counted.
    """
    flat: NDArray[np.float32] = np.require(values, np.float32, ["C", "A"]).reshape(-1)
    while flat.size:
        flat = flat[count(flat) :]
        if flat.size:  # its first block has a value that is in no bin
            flat = flat[make_room(flat[:BLOCK]) :]


def bin_width_for(amax: float, bins: int) -> float:
    """The narrowest power of two for which ``amax`` falls into one of ``bins`` bins (a power of two)."""
    _, exponent = math.frexp(amax)  # 2 ** (exponent - 1) <= amax < 2 ** exponent
    return math.ldexp(1.0, max(exponent - (bins.bit_length() - 1), _SMALLEST_EXPONENT))


#: The bytes of the count of a bin.
_COUNT_BYTES = 8


def bins_within(nbytes: int, histograms: int) -> int:
    """The most bins that histograms may have to fit into so many bytes.

    Args:
        nbytes: Bytes for the counts of all histograms.
        histograms: How many there are.

    Returns:
        As many as a calibration counts into, or a smaller power of two.
    """
    bins = BINS
    while bins > 1 and histograms * bins * _COUNT_BYTES > nbytes:
        bins //= 2
    return bins


def _both_ends(
    one: tuple[float, float] | None, other: tuple[float, float] | None
) -> tuple[float, float] | None:
    """The least and the largest of two sets of values; None where those of either are not known."""
    return (min(one[0], other[0]), max(one[1], other[1])) if one and other else None


def _is_count(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and bool(number >= 0)


def _widened(counts: Counts, width: float, new_width: float) -> Counts:
    """The same counts over bins that are ``new_width / width`` (a power of two) times as wide."""
    group = min(int(new_width / width), len(counts))
    wide = np.zeros_like(counts)
    wide[: len(counts) // group] = counts.reshape(-1, group).sum(axis=1)
    return wide


@dataclass(eq=False)
class SignedHistogram:
    """Counts the values of a tensor by their sign.

    Attributes:
        upper: The values of 0 and more, and those that are not a number.
        lower: The values below zero.
    """

    upper: Histogram
    lower: Histogram

    @classmethod
    def of_bins(cls, bins: int) -> SignedHistogram:
        """One that has observed nothing.

        Args:
            bins: How many bins each side has; a power of two.
        """
        return cls(Histogram(np.zeros(bins, np.int64)), Histogram(np.zeros(bins, np.int64)))

    def observe(self, values: NDArray[np.floating]) -> None:
        """Adds every element of an array of any shape.

        Args:
            values: Floating-point array; taken as float32.
        """
        _count_all(values, self._count, self._make_room)

    @property
    def magnitudes(self) -> Histogram:
        """What one histogram of all values would have counted."""
        return self.upper.merge(self.lower)

    @property
    def rectified(self) -> Histogram:
        """What one histogram of max(x, 0) would have counted."""
        found = self.upper.copy()
        found.zeros += self.lower.total + self.lower.infs
        return found

    def _count(self, flat: NDArray[np.float32]) -> int:
        """Counts values up to the first block that has one in no bin; returns how many."""
        count_sides = kernel().count_sides
        if count_sides is None:
            return 0
        widths = (self.upper.bin_width, self.lower.bin_width)
        found = count_sides(flat, widths, len(self.upper.counts))
        self.upper.add(found.counts[0], found.zeros, (0.0, found.peaks[0]), found.octaves[0])
        self.lower.add(found.counts[1], 0, (0.0 - found.peaks[1], 0.0), found.octaves[1])
        return found.taken

    def _make_room(self, block: NDArray[np.float32]) -> int:
        """Widens the bins for a block, or counts it side by side; returns how many values were counted."""
        highest, lowest = float(block.max()), float(block.min())
        if kernel().count_sides and math.isfinite(highest) and math.isfinite(lowest):
            self.upper.reach(max(highest, 0.0))
            self.lower.reach(max(-lowest, 0.0))
            return 0
        below = block < 0
        self.upper.observe(block[~below])
        self.lower.observe(block[below])
        return block.size
