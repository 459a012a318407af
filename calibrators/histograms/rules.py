"""Ranges of many widths for one tensor, from which a choice is made by what they cost the network.

Each rule is a function of the stored histogram alone: the four calibration methods, the widest range whose
squared error is close to the least, and one that cuts off more than these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS, percentile, ranges_of_least_error

#: How far the squared error of the wide range may lie above the least, in decibels.
NEAR_LEAST_DB = 0.5

#: The rules that are compared at first.
RULES = (*METHODS, "wide")

#: The rule that is compared where ranges narrower than those of least squared error are better.
TIGHT = "tight"

#: How many percent of the magnitudes lie within its range.
TIGHT_PERCENT = 99.9

#: Rule to what it takes as the range, in words.
MEANINGS = {
    "entropy": "least divergence",
    "percentile": "nearly all values",
    "mse": "least squared error",
    "minmax": "largest value",
    "wide": "widest of about the least squared error",
    TIGHT: "all but one value in a thousand",
}


def ranges_by_rule(histograms: Mapping[str, Histogram]) -> Iterator[tuple[str, dict[str, float]]]:
    """The ranges that each rule gives, computed when they are asked for.

    Args:
        histograms: Tensor name to the histogram of its magnitudes.

    Yields:
        A rule, and tensor name to amax; all of :data:`RULES`, those first that take little time.
    """
    # Rule by rule: the bounds that a rule looks up for each tensor fill a processor's cache.
    for rule in ("minmax", "percentile", "entropy"):
        yield rule, {name: METHODS[rule](histogram) for name, histogram in histograms.items()}
    errors = {name: near_least_error(histogram) for name, histogram in histograms.items()}
    yield "mse", {name: least for name, (least, _) in errors.items()}
    yield "wide", {name: widest for name, (_, widest) in errors.items()}


def range_of(histogram: Histogram, rule: str) -> float:
    """The range that one rule gives, without those of the others.

    Args:
        histogram: The histogram of a tensor's magnitudes.
        rule: One of :data:`RULES`, or :data:`TIGHT`.
    """
    if rule in METHODS:
        return METHODS[rule](histogram)
    if rule == TIGHT:
        return percentile(histogram, TIGHT_PERCENT)
    return near_least_error(histogram)[1]


def near_least_error(histogram: Histogram) -> tuple[float, float]:
    """The range whose mean squared error is the least, and the widest whose error is close to that.

    Args:
        histogram: The histogram of a tensor's magnitudes.

    Returns:
        Two ranges, never more than the largest magnitude. The first is that of the method ``mse``; the error
        of the second is at most :data:`NEAR_LEAST_DB` more.
    """
    return ranges_of_least_error(histogram, 10 ** (NEAR_LEAST_DB / 10))
