"""Ranges of many widths for one tensor, from which a choice is made by what they cost the network.

Each rule is a function of the stored histogram alone: the four calibration methods, the geometric means of
pairs of them, and the ends of the interval in which the squared error is close to the least.
"""

from __future__ import annotations

import math

import numpy as np

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS, occupied, quantization_error

#: How far the squared error of the narrow and of the wide range may lie above the least, in decibels.
NEAR_LEAST_DB = 0.5

#: Rule to the pair of methods that it is the geometric mean of.
_MEANS = {
    "entropy-percentile": ("entropy", "percentile"),
    "entropy-mse": ("entropy", "mse"),
    "percentile-mse": ("percentile", "mse"),
}

#: The names of all rules. ``narrow`` and ``wide`` are the ends of the interval around the range of ``mse``.
RULES = (*METHODS, *_MEANS, "narrow", "wide")


def ranges(histogram: Histogram) -> dict[str, float]:
    """The range that each rule gives.

    Args:
        histogram: The histogram of a tensor's magnitudes.

    Returns:
        Rule to amax, for all of :data:`RULES`.
    """
    found = {rule: METHODS[rule](histogram) for rule in ("entropy", "percentile", "minmax")}
    found["narrow"], found["mse"], found["wide"] = near_least_error(histogram)
    for rule, (first, second) in _MEANS.items():
        found[rule] = math.sqrt(found[first] * found[second])
    return found


def range_of(histogram: Histogram, rule: str) -> float:
    """The range that one rule gives, without those of the others.

    Args:
        histogram: The histogram of a tensor's magnitudes.
        rule: One of :data:`RULES`.
    """
    if rule in _MEANS:
        return math.sqrt(math.prod(METHODS[method](histogram) for method in _MEANS[rule]))
    if rule in METHODS:
        return METHODS[rule](histogram)
    narrow, _, wide = near_least_error(histogram)
    return narrow if rule == "narrow" else wide


def near_least_error(histogram: Histogram, decibels: float = NEAR_LEAST_DB) -> tuple[float, float, float]:
    """The ranges whose mean squared error is close to the least: the narrowest, the best and the widest.

    Args:
        histogram: The histogram of a tensor's magnitudes.
        decibels: How far the error may lie above the least.

    Returns:
        Three ranges that end at the centre of a bin; never more than the largest magnitude. The second is
        that of the method ``mse``.
    """
    counts = occupied(histogram)
    if len(counts) < 2:
        return histogram.amax, histogram.amax, histogram.amax
    candidates = np.arange(1, len(counts))
    error = quantization_error(counts, candidates)
    close = candidates[error <= error.min() * 10 ** (decibels / 10)]
    ends = (close[0], candidates[int(np.argmin(error))], close[-1])
    narrow, best, wide = (min((float(end) + 0.5) * histogram.bin_width, histogram.amax) for end in ends)
    return narrow, best, wide
