"""From a histogram of |x| to amax, the positive end of the range that INT8 will cover.

All methods are pure functions of one stored histogram, so changing the method never runs the model again.

Why the entropy search here is not the literal one. NVIDIA's slides (S. Migacz, "8-bit Inference with
TensorRT", GTC 2017, S7310) bin everything, zeros included. After a ReLU half of all values are zero: one
bin outweighs the rest, every candidate that keeps this bin to itself looks almost perfect, and the search
ends at the smallest candidate (for a half-normal distribution with outliers at 20 it gives 1.25, where
99.99 % of the values reach to 3.8). Signed histograms put the same spike into the middle. Networks that
were calibrated so lose most of their accuracy. Two things prevent it, as in NVIDIA's later
pytorch-quantization: magnitudes instead of signed values, so that all 128 levels serve one side; and the
first bin, where exact and almost exact zeros gather that every scale represents equally well, takes the
count of its neighbour. Further, Q is built from the bins inside the range only and P keeps the clipped
mass in its last bin, so that clipping costs divergence; where the last bin of a candidate is empty and
mass is clipped, the divergence is infinite.

Where a few values are so large that nearly all others share a few bins of equal width
(:meth:`Histogram.crowded`), these bins say nothing of the others, and the methods read octave bins.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms.binning import PER_OCTAVE, Counts
from calibrators.histograms.histogram import Bins, Histogram

#: Magnitudes that symmetric INT8 tells apart: 0..127.
LEVELS = 128

#: The share of all values, in percent, that :func:`percentile` keeps unclipped.
_PERCENTILE = 99.99

#: The share of the non-zero values that :func:`entropy` clips at most.
_MOST_CLIPPED = 0.001

#: Candidates that are judged at once: what is computed for them stays in the processor's cache.
_ROWS = 128

#: Of the ranges among which the one of least error is searched, every so many say how small it is at most.
_COARSE = 16

#: How far errors and divergences are off at most by rounding; errors relative to the sum of all squares.
_ROUNDING = 1e-9

_Floats = NDArray[np.float64]


def minmax(histogram: Histogram) -> float:
    """The largest finite magnitude observed: nothing is clipped."""
    return histogram.amax


def percentile(histogram: Histogram, percent: float = _PERCENTILE) -> float:
    """The highest bin edge below which at most ``percent`` per cent of all values lie, zeros among them.

    Where values are crowded it is NumPy's percentile, interpolated within a bin and between two values. Where
    zeros are so many that this is 0, it is the percentile of the other values.

    Args:
        histogram: The histogram of the tensor's magnitudes.
        percent: In (0, 100]; 100 is :func:`minmax`.

    Returns:
        That edge, or the first bin's upper edge where it would be zero; never more than the largest
        magnitude.

    Raises:
        ValueError: ``percent`` is not in (0, 100].
    """
    if not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} is not in (0, 100]; try {_PERCENTILE}")
    if percent == 100 or not histogram.amax:
        return histogram.amax
    if histogram.crowded():
        return _interpolated(histogram, percent)
    # Whole numbers throughout: ties are common in the thin tail, and rounding would move the edge.
    allowed = math.floor(Fraction(str(percent)) * histogram.total / 100)
    index = int(np.searchsorted(np.cumsum(histogram.counts) + histogram.zeros, allowed, side="right"))
    return min(max(index, 1) * histogram.bin_width, histogram.amax)


def _interpolated(histogram: Histogram, percent: float) -> float:
    """A percentile as NumPy's default method takes it; the values of a bin are spread evenly over it."""
    bins = histogram.filled()
    for zeros in (histogram.zeros, 0):
        behind = zeros + np.cumsum(bins.counts)  # so many values lie up to the end of each bin
        rank = percent / 100 * (float(behind[-1]) - 1)
        if rank >= zeros:
            break
    ranks = np.array([math.floor(rank), math.ceil(rank)])
    numbers = np.searchsorted(behind, ranks, side="right")
    low, high, counts = bins.low[numbers], bins.high[numbers], bins.counts[numbers]
    first, second = low + (ranks - behind[numbers] + counts + 0.5) / counts * (high - low)
    return min(float(first + rank % 1 * (second - first)), histogram.amax)


def entropy(histogram: Histogram) -> float:
    """The range whose quantized distribution diverges least from the original one.

    Minimizes the Kullback-Leibler divergence over all ranges of at least :data:`LEVELS` bins that clip at
    most :data:`_MOST_CLIPPED` of the non-zero values (S7310; see the module's text for where this departs
    from the slides). Of ranges with the same divergence the widest is taken. Where values are crowded, the
    bins are 512 that reach two to four times as far as all but the clipped ones, and the others lie beyond.

    Args:
        histogram: The histogram of the tensor's magnitudes.

    Returns:
        The upper edge of the last bin in range; never more than the largest magnitude.
    """
    counts, width = occupied(histogram), histogram.bin_width
    if len(counts) <= LEVELS:
        return histogram.amax
    candidates = np.arange(LEVELS, len(counts) + 1)
    beyond = counts.sum() - np.cumsum(counts)
    candidates = candidates[beyond[candidates - 1] <= _MOST_CLIPPED * counts.sum()]
    if candidates[0] == LEVELS and histogram.crowded(zeros=False):
        counts, width, candidates = _magnified(histogram)
    counts[0] = counts[1]
    divergence = least_divergences(counts, candidates)
    best = candidates[len(candidates) - 1 - int(np.argmin(divergence[::-1]))]
    return min(float(best) * width, histogram.amax)


def _magnified(histogram: Histogram) -> tuple[_Floats, float, Counts]:
    """Bins of equal width for values that are crowded: as narrow as octave bins, with all that lies beyond.

    Args:
        histogram: A histogram whose values are crowded, zeros aside.

    Returns:
        Counts, float64, shape (bins,), of which the last has what lies beyond the others; the width of these;
        and how many of them the candidates have that clip at most :data:`_MOST_CLIPPED` of the values.
    """
    bins = histogram.filled()
    inside = np.cumsum(bins.counts)
    first = bins.high[int(np.argmax(inside[-1] - inside <= _MOST_CLIPPED * inside[-1]))]
    # They reach from two to four times as far as the first candidate. The upper half of them is an octave.
    number = 2 * PER_OCTAVE
    width = 2.0 ** (math.ceil(math.log2(first)) + 1) / number
    numbers = np.minimum(bins.low / width, number).astype(np.intp)
    counts: _Floats = np.bincount(numbers, bins.counts, number + 1).astype(np.float64)
    return counts, width, np.arange(math.ceil(first / width), number + 1)


def least_divergences(counts: _Floats, candidates: Counts, levels: int = LEVELS) -> _Floats:
    """The divergences of :meth:`Sums.divergence`, as far as they may be the least of them.

    Merging bins never makes two distributions diverge more, so a candidate diverges at least as much as P
    and Q do where only the last bin and all others together are told apart. That is quickly computed, and
    candidates for which it is more than the divergence of another one are left out.

    Args:
        counts: h, shape (bins,), float64, not negative.
        candidates: As for :meth:`Sums.divergence`; at least one.
        levels: Groups of bins in Q.

    Returns:
        Divergences, shape (n,); infinite for some of the candidates whose divergence is not the least.
    """
    sums = Sums.of(counts)
    divergence = np.full(len(candidates), np.inf)
    divergence[::_COARSE] = sums.divergence(candidates[::_COARSE], levels)
    most = divergence.min() + _ROUNDING
    kept = np.isinf(divergence) & (sums.divergence_of_last(candidates, levels) <= most)
    divergence[kept] = sums.divergence(candidates[kept], levels)
    return divergence


@dataclass(frozen=True)
class Sums:
    """A histogram and sums over its bins before each one, float64, shape (bins + 1,).

    Attributes:
        counts: h, shape (bins,).
        mass: The sums of h.
        filled: The sums of [h > 0].
        h_ln_h: The sums of h ln h.
    """

    counts: _Floats
    mass: _Floats
    filled: _Floats
    h_ln_h: _Floats

    @classmethod
    def of(cls, counts: _Floats) -> Sums:
        """The sums of h, shape (bins,), float64, not negative."""
        filled = (counts > 0).astype(np.float64)
        return cls(counts, _prefix_sums(counts), _prefix_sums(filled), _prefix_sums(_x_ln_x(counts)))

    def divergence(self, candidates: Counts, levels: int = LEVELS) -> _Floats:
        """KL(P || Q) in nats of every candidate range.

        P is the first ``i`` bins with all that lies beyond added to the last of them; Q is these bins without
        the addition, merged to ``levels`` groups whose mean is spread back over their non-empty bins. With
        the sums a candidate takes one look-up a level.

        Args:
            candidates: Bins in range, int64, shape (n,), each at least 1 and at most ``len(counts)``.
            levels: Groups of bins in Q; group k holds the bins from ceil(k*i/levels) on.

        Returns:
            Divergences, shape (n,); infinite where Q has nothing and P has something.
        """
        last, clipped = self._last(candidates)
        divergence = np.full(len(candidates), np.inf)
        finite = np.flatnonzero((last > 0) | (clipped == 0))
        all_edges = _level_edges(_round_up(len(self.counts)), levels)
        for start in range(0, len(finite), _ROWS):
            rows = finite[start : start + _ROWS]
            edges = all_edges[candidates[rows]]
            group_mass = np.diff(self.mass.take(edges), axis=1)
            group_filled = np.diff(self.filled.take(edges), axis=1)
            np.maximum(group_filled, 1.0, out=group_filled)
            # Empty groups take part with 0 ln 1.
            mean = np.divide(group_mass, group_filled, out=group_filled)
            ln_q = np.log(mean, out=mean, where=group_mass > 0)
            p_ln_p = self.h_ln_h[candidates[rows]] - _x_ln_x(last[rows]) + _x_ln_x(last[rows] + clipped[rows])
            p_ln_q = np.einsum("ij,ij->i", group_mass, ln_q) + clipped[rows] * ln_q[:, -1]
            inside = np.maximum(self.mass[candidates[rows]], 1.0)
            divergence[rows] = (p_ln_p - p_ln_q) / self._total - np.log(self._total) + np.log(inside)
        return divergence

    def divergence_of_last(self, candidates: Counts, levels: int) -> _Floats:
        """KL(P || Q) where all bins but the last are one; 0 where the last is empty or holds everything."""
        last, clipped = self._last(candidates)
        group = -(-(levels - 1) * candidates // levels)  # where the last level begins
        filled = np.maximum(self.filled[candidates] - self.filled[group], 1.0)
        inside = np.maximum(self.mass[candidates], 1.0)
        q = (self.mass[candidates] - self.mass[group]) / filled / inside
        p = (last + clipped) / self._total
        usable = (last > 0) & (q > 0) & (q < 1)
        p, q = np.where(usable, p, 0.5), np.where(usable, q, 0.5)
        divergence: _Floats = _x_ln_x(p) + _x_ln_x(1 - p) - p * np.log(q) - (1 - p) * np.log1p(-q)
        return divergence

    def _last(self, candidates: Counts) -> tuple[_Floats, _Floats]:
        """What the last bins in range hold, and what lies beyond them."""
        return self.counts[candidates - 1], self._total - self.mass[candidates]

    @property
    def _total(self) -> np.float64:
        total: np.float64 = self.mass[-1]
        return total


def mse(histogram: Histogram) -> float:
    """The range with the least mean squared error of quantizing and clipping.

    Args:
        histogram: The histogram of the tensor's magnitudes.

    Returns:
        The centre of the bin that ends the range; never more than the largest magnitude.
    """
    return ranges_of_least_error(histogram)[0]


def ranges_of_least_error(histogram: Histogram, factor: float = 1.0) -> tuple[float, float]:
    """The range whose mean squared error is the least, and the widest whose error is close to that.

    Args:
        histogram: The histogram of the tensor's magnitudes.
        factor: How many times the least error is still close to it, 1 or more.

    Returns:
        Two ranges that end at the centre of a bin, or, where values are crowded, at an end of one; never more
        than the largest magnitude.
    """
    if histogram.crowded(zeros=False):
        ends, error = _least_errors_of_crowded(histogram.filled(), factor)
    else:
        counts = occupied(histogram)
        if len(counts) < 2:
            return histogram.amax, histogram.amax
        candidates = np.arange(1, len(counts))
        error = least_errors(counts, candidates, factor=factor)
        ends = np.minimum((candidates + 0.5) * histogram.bin_width, histogram.amax)
    return float(ends[int(np.argmin(error))]), float(ends[error <= error.min() * factor][-1])


def range_of_least_error(bins: Bins) -> float:
    """The range that :func:`mse` gives for bins that are narrow beside the magnitudes in them.

    Args:
        bins: Octave bins.
    """
    ends, error = _least_errors_of_crowded(bins, 1.0)
    return float(ends[int(np.argmin(error))])


def _least_errors_of_crowded(bins: Bins, factor: float) -> tuple[_Floats, _Floats]:
    """Ranges and their errors, as far as these are close to the least of them.

    What a range clips, and what is less than half a step and so becomes 0, is a part of its error and quickly
    computed. So ranges for which that is too much are left out.

    Args:
        bins: Octave bins.
        factor: As in :func:`ranges_of_least_error`.

    Returns:
        Ranges, float64, shape (n,), increasing, and their sums of squared errors.
    """
    spread = Spread.of(bins)
    octaves = 2.0 ** np.arange(math.floor(math.log2(bins.high[0])) - 1, math.log2(bins.high[-1]))
    # Between the values there are ranges as well, each half a per cent beyond the one before.
    ranges = (octaves[:, None] * (1 + np.arange(PER_OCTAVE) / PER_OCTAVE)).reshape(-1)
    ranges = np.append(ranges[(ranges > bins.low[0]) & (ranges < bins.high[-1])], bins.high[-1])
    bounds = spread.least_error(ranges)
    most = factor * spread.error(float(ranges[int(np.argmin(bounds))]))
    for every in (_COARSE, 2):  # the error hardly changes in a per cent
        ranges, bounds = ranges[bounds <= most], bounds[bounds <= most]
        tried = ranges[::-every][::-1]
        errors = np.array([spread.error(float(end)) for end in tried])
        most = min(most, factor * float(errors.min()))
    return tried, errors


@dataclass(frozen=True)
class Spread:
    """The values of a histogram, spread evenly over their bins.

    Attributes:
        low: Where the non-empty bins begin, float64, shape (n,).
        high: Where they end, float64, shape (n,).
        counts: How many values each of them has, float64, shape (n,).
        moments: The sums of 1, x and x^2 over all values before each bin, float64, shape (3, n + 1).
    """

    low: _Floats
    high: _Floats
    counts: _Floats
    moments: _Floats

    @classmethod
    def of(cls, bins: Bins) -> Spread:
        """The values of bins."""
        low, high, counts = bins.low, bins.high, bins.counts.astype(np.float64)
        squares = counts * (low * low + low * high + high * high) / 3
        sums = [_prefix_sums(moment) for moment in (counts, counts * (low + high) / 2, squares)]
        return cls(low, high, counts, np.stack(sums))

    @property
    def signal(self) -> float:
        """The sum of squares of all values."""
        return float(self.moments[2, -1])

    def error(self, amax: float) -> float:
        """The sum of squared errors of a range, positive."""
        scale = amax / (LEVELS - 1)
        first, end = np.searchsorted(self.high, scale / 2), np.searchsorted(self.low, amax)
        ends = np.stack([self.low[first:end], self.high[first:end]]) / scale
        low, high = _error_up_to(ends)
        inside = scale**2 * float(self.counts[first:end] @ ((high - low) / (ends[1] - ends[0])))
        return float(self.moments[2, first]) + inside + float(self._clipping_error(amax, end))

    def least_error(self, ranges: _Floats) -> _Floats:
        """The parts of the errors that come from values beyond a range, and from those that become 0."""
        to_zero = np.searchsorted(self.high, ranges / (2 * (LEVELS - 1)), side="right")
        beyond = self._clipping_error(ranges, np.searchsorted(self.low, ranges))
        found: _Floats = self.moments[2, to_zero] + beyond
        return found

    def _clipping_error(self, ranges: Any, beyond: Any) -> Any:
        """The sums of squared distances of the values of the bins from ``beyond`` on to the ranges."""
        number, sums, squares = self.moments[:, -1:] - self.moments[:, beyond].reshape(3, -1)
        error = squares - 2 * ranges * sums + ranges * ranges * number
        return np.maximum(error, 0.0) if np.ndim(ranges) else max(float(error[0]), 0.0)


def _error_up_to(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The integral of the squared error from 0 to some magnitudes, everything in steps of the scale."""
    level = np.minimum(np.rint(steps), LEVELS - 1)
    # Each level takes in the values half a step to both sides: 1/12 in all, 1/24 of it below the level.
    off = steps - level
    error: NDArray[np.float64] = level / 12 + off * off * off / 3
    return error


def least_errors(counts: _Floats, candidates: Counts, *, factor: float = 1.0) -> _Floats:
    """The errors of :meth:`Moments.quantization_error`, as far as they are close to the least of them.

    What a range clips is a part of its error and quickly computed, so ranges that clip too much are left out.

    Args:
        counts: h, shape (bins,), float64, not negative.
        candidates: The last bin in range, int64, shape (n,), increasing; at least one.
        factor: How many times the least error is still close to it, 1 or more.

    Returns:
        Errors, shape (n,); infinite for some of the ranges whose error is more than ``factor`` times the
        least.
    """
    moments = Moments.of(counts)
    errors = np.full(len(candidates), np.inf)
    coarse = moments.quantization_error(candidates[::_COARSE])
    most = factor * float(coarse.min()) + _ROUNDING * float(moments.second[0])
    kept = moments.clipping_error(candidates) <= most
    errors[kept] = moments.quantization_error(candidates[kept])
    return errors


@dataclass(frozen=True)
class Moments:
    """Sums of h, h c and h c^2 over the bins from each one on, where c is a bin's centre in bin widths.

    Attributes:
        lower: The sums of h (real part) and of h c (imaginary part), so that one look-up finds both;
            complex128, shape (bins + 1,).
        second: The sums of h c^2, float64, shape (bins + 1,).
    """

    lower: NDArray[np.complex128]
    second: _Floats

    @classmethod
    def of(cls, counts: _Floats) -> Moments:
        """The sums of h, shape (bins,), float64, not negative."""
        centres = np.arange(len(counts)) + 0.5
        first = counts * centres
        lower = np.empty(len(counts) + 1, np.complex128)
        lower.real, lower.imag = _suffix_sums(counts), _suffix_sums(first)
        return cls(lower, _suffix_sums(first * centres))

    def quantization_error(self, candidates: Counts, levels: int = LEVELS) -> _Floats:
        """Sum of squared errors, in squared bin widths, of ranges that end at the centre of a bin.

        Every value stands at its bin's centre. With the sums a candidate takes one look-up a level.

        Args:
            candidates: The last bin in range, int64, shape (n,).
            levels: How many magnitudes the quantized type tells apart.

        Returns:
            Errors, shape (n,).
        """
        step = (candidates + 0.5) / (levels - 1)
        all_bounds = _rounding_bounds(_round_up(len(self.second) - 1), levels)
        # The bins that round to level k or more begin at bound k. So sum_k k s1[k], where s1[k] is the sum of
        # h c over level k alone, adds up h c from every bound on; sum_k k^2 s0[k] adds up h, 2k - 1 times.
        weights = np.zeros((2 * (levels - 1), 2))
        weights[0::2, 0] = 2.0 * np.arange(1, levels) - 1
        weights[1::2, 1] = 1.0
        sums = np.empty((len(candidates), 2))
        for start in range(0, len(candidates), _ROWS):
            rows = slice(start, start + _ROWS)
            sums[rows] = self.lower.take(all_bounds[candidates[rows]]).view(np.float64) @ weights
        square, linear = sums.T
        error: _Floats = self.second[0] - 2 * step * linear + step**2 * square
        # Of values that a range holds exactly, rounding leaves a little more or less than nothing.
        return np.maximum(error, 0.0)

    def clipping_error(self, candidates: Counts) -> _Floats:
        """The part of the errors that lies beyond the ranges."""
        ends, lower = candidates + 0.5, self.lower[candidates]
        error: _Floats = self.second[candidates] - 2 * ends * lower.imag + ends**2 * lower.real
        return error


#: Names of all methods. ``auto`` chooses ranges by what they cost the network, which takes the model as well.
Method: TypeAlias = Literal["auto", "entropy", "percentile", "mse", "minmax"]

#: The methods that are functions of one histogram.
METHODS: Mapping[str, Callable[[Histogram], float]] = {
    "entropy": entropy,
    "percentile": percentile,
    "mse": mse,
    "minmax": minmax,
}


def occupied(histogram: Histogram) -> _Floats:
    """The counts of a histogram up to its last non-empty bin.

    Args:
        histogram: The histogram.

    Returns:
        float64, shape (bins,); empty where nothing but zeros was observed.
    """
    filled = np.flatnonzero(histogram.counts)
    return histogram.counts[: filled[-1] + 1 if len(filled) else 0].astype(np.float64)


@functools.lru_cache(maxsize=4)
def _level_edges(bins: int, levels: int) -> NDArray[np.intp]:
    """For ranges of 0 to ``bins`` bins, where levels begin and the last ends: (bins + 1, levels + 1)."""
    return -(-np.arange(levels + 1) * np.arange(bins + 1)[:, None] // levels)


@functools.lru_cache(maxsize=4)
def _rounding_bounds(bins: int, levels: int) -> NDArray[np.intp]:
    """For ranges that end at each bin's centre, the first bin that rounds to 1, 2, …: (bins, levels - 1).

    These are the bins whose centre is (k - 1/2) steps or more.
    """
    step = (np.arange(bins)[:, None] + 0.5) / (levels - 1)
    return np.ceil((np.arange(1, levels) - 0.5) * step - 0.5).astype(np.intp)


def _round_up(bins: int) -> int:
    """To a power of two, so that histograms of one size share what is kept for it."""
    return 1 << (bins - 1).bit_length()


def _prefix_sums(values: _Floats) -> _Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _suffix_sums(values: _Floats) -> _Floats:
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def _x_ln_x(x: _Floats) -> _Floats:
    product: _Floats = x * np.log(np.where(x > 0, x, 1.0))
    return product
