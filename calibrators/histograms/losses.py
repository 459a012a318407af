"""What a range costs the values of its tensor, and whether that is more than it should be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import LEVELS, least_errors, occupied

#: A range that clips a larger share of the values than this loses more than it should, unless its SQNR is
#: within so many decibels of the best range's: values that few steps tell apart may be best clipped.
MOST_CLIPPED, NEARLY_BEST_DB = 0.01, 0.5

#: So does a range whose SQNR lies this far below that of the best range, in decibels.
MOST_BELOW_BEST_DB = 6.0

#: Of the ranges that are searched for the best, every so many; the error changes slowly between them.
_STRIDE = 8


@dataclass(frozen=True)
class RangeLoss:
    """What one range costs the values of its tensor.

    Attributes:
        clipped: The share of the finite values, in [0, 1], that lose more to clipping than rounding can cost:
            those more than half a step beyond the range.
        sqnr_db: Signal to quantization noise of the tensor's own values, in decibels; infinite where nothing
            was observed.
        best_db: The same with the range of least squared error.
    """

    clipped: float
    sqnr_db: float
    best_db: float

    @property
    def excessive(self) -> bool:
        """Whether the range loses more than it should."""
        below_best_db = self.best_db - self.sqnr_db
        clips = self.clipped > MOST_CLIPPED and below_best_db > NEARLY_BEST_DB
        return clips or below_best_db > MOST_BELOW_BEST_DB


def range_loss(histogram: Histogram, amax: float) -> RangeLoss:
    """What a range costs.

    Args:
        histogram: The histogram of the tensor's magnitudes.
        amax: The range, positive.

    Returns:
        The loss.
    """
    counts = occupied(histogram)
    if len(counts) < 2 or not amax:
        return RangeLoss(0.0, math.inf, math.inf)
    candidates = np.append(np.arange(1, len(counts) - 1, _STRIDE), len(counts) - 1)
    best = candidates[int(np.argmin(least_errors(counts, candidates)))]
    clipped = histogram.above(amax * (1 + 0.5 / (LEVELS - 1))) / histogram.total
    spread = _Spread.of(histogram)
    own, least = spread.sqnr(amax), spread.sqnr((float(best) + 0.5) * histogram.bin_width)
    return RangeLoss(clipped, own, max(own, least))


def range_sqnr(histogram: Histogram, amax: float) -> float:
    """SQNR of a tensor that is rounded to 127 steps up to ``amax`` and clipped there.

    The values of a bin are assumed to be spread evenly over it.

    Args:
        histogram: The histogram of the tensor's magnitudes.
        amax: The range.

    Returns:
        10 log10(sum(x^2) / sum((x - q(x))^2)) in decibels; infinite where all values are zero.
    """
    return _Spread.of(histogram).sqnr(amax)


@dataclass(frozen=True)
class _Spread:
    """The values of a histogram, spread evenly over their bins.

    Attributes:
        edges: The lower and the upper end of every non-empty bin, float64, shape (2, non-empty bins).
        counts: How many values each of these bins has, float64, shape (non-empty bins,).
        signal: The sum of squares of all values.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.float64]
    signal: float

    @classmethod
    def of(cls, histogram: Histogram) -> _Spread:
        filled = np.flatnonzero(histogram.counts)
        edges = np.stack([filled, filled + 1]).astype(np.float64) * histogram.bin_width
        # Nothing lies beyond the largest magnitude, which may begin its bin.
        edges[1, -1:] = max(histogram.amax, (1 + 1e-9) * edges[0, -1]) if len(filled) else 0.0
        counts = histogram.counts[filled].astype(np.float64)
        low, high = edges
        signal = float(counts @ (low * low + low * high + high * high)) / 3
        return cls(edges, counts, signal)

    def sqnr(self, amax: float) -> float:
        """SQNR of the values with a range, in decibels."""
        scale = amax / (LEVELS - 1)
        if not scale:
            return decibels(self.signal, self.signal)
        steps = self.edges / scale
        low, high = _error_up_to(steps)
        return decibels(self.signal, scale**2 * float(self.counts @ ((high - low) / (steps[1] - steps[0]))))


def _error_up_to(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The integral of the squared error from 0 to some magnitudes, everything in steps of the scale."""
    level = np.minimum(np.rint(steps), LEVELS - 1)
    # Each level takes in the values half a step to both sides: 1/12 in all, 1/24 of it below the level.
    off = steps - level
    error: NDArray[np.float64] = level / 12 + off * off * off / 3
    return error


def excessive_losses(histograms: Mapping[str, Histogram], amax: Mapping[str, float]) -> dict[str, RangeLoss]:
    """The ranges that lose more than they should.

    Args:
        histograms: Tensor name to the histogram of its magnitudes.
        amax: Tensor name to range; tensors without a histogram are left out.

    Returns:
        Tensor name to loss, those first that lie furthest below the best range.
    """
    losses = {name: range_loss(histograms[name], value) for name, value in amax.items() if name in histograms}
    excessive = {name: loss for name, loss in losses.items() if loss.excessive}
    return dict(sorted(excessive.items(), key=lambda item: item[1].sqnr_db - item[1].best_db))


def decibels(signal: float, noise: float) -> float:
    """A ratio of two powers in decibels.

    Args:
        signal: The power of the signal, 0 or more.
        noise: The power of the noise, in the same unit.

    Returns:
        10 log10(signal / noise); infinite without noise, minus infinite with noise alone.
    """
    if noise == 0:
        return math.inf
    ratio = float(signal) / float(noise)  # which may be too small, or too large, for a number
    return 10 * math.log10(ratio) if ratio else -math.inf
