"""Ranges of many widths for one tensor, and what a range costs the values of its tensor.

The method ``auto`` tries such ranges and takes those that cost the network least. Each rule is a function of
the stored histogram alone: calibration methods, the range that nearly all of the largest values lie in, the
widest range whose squared error is close to the least, and one that cuts off more than all of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from calibrators.histograms.histogram import Bins, Histogram
from calibrators.histograms.thresholds import (
    LEVELS,
    METHODS,
    Spread,
    least_errors,
    occupied,
    percentile,
    range_of_least_error,
    ranges_of_least_error,
)

#: How far the squared error of the wide range may lie above the least, in decibels.
_NEAR_LEAST_DB = 0.5

#: The rule that cuts off so few values that the largest ones of most samples are kept.
TAILS = "tails"

#: The rule that is compared where ranges narrower than those of least squared error are better.
TIGHT = "tight"

#: The rule of a broken sample, which makes many values of every tensor huge: it is compared where TIGHT is.
NEAR = "near"

#: How many percent of the magnitudes lie within the ranges of these rules.
_PERCENT = {TAILS: 99.999, TIGHT: 99.9}

#: The rules that are compared at first, to what each takes as the range, in words; those first that take
#: little time. A rule that is no method has its range in :func:`range_of`.
RULES = {
    "minmax": "largest value",
    TAILS: "all but one value in a hundred thousand",
    "percentile": "nearly all values",
    "entropy": "least divergence",
    "mse": "least squared error",
    "wide": "widest of about the least squared error",
}

#: Rule to what it takes as the range, in words.
MEANINGS = {
    **RULES,
    TIGHT: "all but one value in a thousand",
    NEAR: "least squared error of the values that are not far larger than most",
}


def ranges_by_rule(histograms: Mapping[str, Histogram]) -> Iterator[tuple[str, dict[str, float]]]:
    """The ranges that each rule gives, computed when they are asked for.

    Args:
        histograms: Tensor name to the histogram of its magnitudes.

    Yields:
        A rule, and tensor name to amax; all of :data:`RULES`, ``mse`` and ``wide`` last.
    """
    # Rule by rule: the bounds that a rule looks up for each tensor fill a processor's cache.
    for rule in RULES:
        if rule not in ("mse", "wide"):
            yield rule, {name: range_of(histogram, rule) for name, histogram in histograms.items()}
    # One search finds both.
    errors = {name: near_least_error(histogram) for name, histogram in histograms.items()}
    yield "mse", {name: least for name, (least, _) in errors.items()}
    yield "wide", {name: widest for name, (_, widest) in errors.items()}


def range_of(histogram: Histogram, rule: str) -> float:
    """The range that one rule gives, without those of the others.

    Args:
        histogram: The histogram of a tensor's magnitudes.
        rule: One of :data:`MEANINGS`.
    """
    if rule in METHODS:
        return METHODS[rule](histogram)
    if rule in _PERCENT:
        return percentile(histogram, _PERCENT[rule])
    if rule == NEAR:
        return range_of_least_error(histogram.near()) if histogram.has_far() else METHODS["mse"](histogram)
    return near_least_error(histogram)[1]


def near_least_error(histogram: Histogram) -> tuple[float, float]:
    """The range whose mean squared error is the least, and the widest whose error is close to that.

    Args:
        histogram: The histogram of a tensor's magnitudes.

    Returns:
        Two ranges, never more than the largest magnitude. The first is that of the method ``mse``; the error
        of the second is at most :data:`_NEAR_LEAST_DB` more.
    """
    return ranges_of_least_error(histogram, 10 ** (_NEAR_LEAST_DB / 10))


#: A range that clips a larger share of the values than this loses more than it should, unless its SQNR is
#: within so many decibels of the best range's: values that few steps tell apart may be best clipped.
_MOST_CLIPPED, _NEARLY_BEST_DB = 0.01, 0.5

#: So does a range whose SQNR lies this far below that of the best range, in decibels.
_MOST_BELOW_BEST_DB = 6.0

#: No range loses too much that leaves the values of its tensor this SQNR, in decibels.
_ENOUGH_DB = 40.0

#: Values of a lower SQNR, in decibels, are lost: that of values that all become 0 is 0.
_LOST_DB = 3.0

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
        most: The same of all values but the few largest, where these are so large that no range serves them
            and the others, and outweigh all others; else None.
    """

    clipped: float
    sqnr_db: float
    best_db: float
    most: RangeLoss | None = None

    @property
    def excessive(self) -> bool:
        """Whether the range loses more than it should."""
        clips = self.clipped > _MOST_CLIPPED and self.below_best_db > _NEARLY_BEST_DB
        loses = (clips or self.below_best_db > _MOST_BELOW_BEST_DB) and self.sqnr_db < _ENOUGH_DB
        if self.most is None:
            return loses
        # Whether the few or the others matter, their values do not tell. So a range may lose either.
        return self.most.excessive and (loses or self.most.sqnr_db < _LOST_DB)

    @property
    def below_best_db(self) -> float:
        """How far the SQNR lies below that of the best range, in decibels."""
        return self.best_db - self.sqnr_db


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
    clipped = histogram.above(amax * (1 + 0.5 / (LEVELS - 1))) / histogram.total
    if histogram.crowded(zeros=False):
        bins = histogram.filled()
        most = bins.without_few()
        ends = [range_of_least_error(found) for found in (bins, most)]
        return _loss(clipped, bins, amax, ends[0], _loss(clipped, most, amax, ends[1]))
    candidates = np.append(np.arange(1, len(counts) - 1, _STRIDE), len(counts) - 1)
    best = float(candidates[int(np.argmin(least_errors(counts, candidates)))] + 0.5) * histogram.bin_width
    return _loss(clipped, histogram.filled(), amax, best)


def _loss(clipped: float, bins: Bins, amax: float, best: float, most: RangeLoss | None = None) -> RangeLoss:
    spread = Spread.of(bins)
    own = _sqnr(spread, amax)
    return RangeLoss(clipped, own, max(own, _sqnr(spread, best)), most)


def range_sqnr(histogram: Histogram, amax: float) -> float:
    """SQNR of a tensor that is rounded to 127 steps up to ``amax`` and clipped there.

    The values of a bin are assumed to be spread evenly over it.

    Args:
        histogram: The histogram of the tensor's magnitudes.
        amax: The range.

    Returns:
        10 log10(sum(x^2) / sum((x - q(x))^2)) in decibels; infinite where all values are zero.
    """
    return _sqnr(Spread.of(histogram.filled()), amax)


def _sqnr(spread: Spread, amax: float) -> float:
    return decibels(spread.signal, spread.error(amax) if amax / (LEVELS - 1) else spread.signal)


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
    return dict(sorted(excessive.items(), key=lambda item: -(item[1].most or item[1]).below_best_db))


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
