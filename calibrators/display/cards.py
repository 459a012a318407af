"""Cards of tensors, from which histograms are drawn: the values, and the range that every method gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.losses import range_sqnr
from calibrators.histograms.thresholds import METHODS

#: The most bars of a chart; at least half of them are used.
CHART_BINS = 128


#: Names of ranges that no method gives.
BY_HAND, AS_STORED = "by hand", "as stored"


@dataclass(frozen=True)
class Range:
    """The range of one tensor by one method.

    Attributes:
        method: A key of ``METHODS``, or ``by hand`` or ``as stored`` for a range that no method gives.
        amax: The range.
        clipped: Share of all values that lie beyond the range, in [0, 1].
        sqnr_db: SQNR in decibels of the tensor quantized with this range; see :func:`range_sqnr`.
        in_use: Whether it is the range in the table.
    """

    method: str
    amax: float
    clipped: float
    sqnr_db: float
    in_use: bool


@dataclass(frozen=True)
class Card:
    """One tensor.

    Attributes:
        index: Position of the tensor in the table, from 0.
        name: The tensor's name.
        ranges: The ranges by every method; the one in use is among them.
        scale: amax / 127 of the range in use.
        total: Number of finite values that were counted, zeros included.
        largest: The largest magnitude.
        zeros: Share of values that are exactly zero, in [0, 1].
        bar_width: Width of each bar of the chart, in the tensor's unit.
        bar_counts: Number of values in each bar, from 0 up to the largest magnitude; zeros are not counted.
    """

    index: int
    name: str
    ranges: tuple[Range, ...]
    scale: float
    total: int
    largest: float
    zeros: float
    bar_width: float
    bar_counts: tuple[int, ...]

    @property
    def used(self) -> Range:
        """The range in use."""
        return next(choice for choice in self.ranges if choice.in_use)


def chart_bars(histogram: Histogram) -> tuple[float, tuple[int, ...]]:
    """Merges the bins of a histogram into the bars of a chart.

    Args:
        histogram: A histogram of magnitudes.

    Returns:
        The width of a bar in the tensor's unit, and the counts up to the last bar that is not empty.
    """
    filled = np.flatnonzero(histogram.counts)
    if not len(filled):
        return 0.0, ()
    group = max(1, len(histogram.counts) // CHART_BINS)
    counts = histogram.counts.reshape(-1, group).sum(axis=1)
    last = int(np.flatnonzero(counts)[-1])
    return histogram.bin_width * group, tuple(int(count) for count in counts[: last + 1])


def card_of(index: int, name: str, histogram: Histogram, amax: float, method: str) -> Card:
    """Makes the card of one tensor.

    Args:
        index: Position of the tensor in its table, from 0.
        name: The tensor's name.
        histogram: The histogram of the tensor's magnitudes, with at least one value.
        amax: The tensor's range.
        method: How the range was chosen.
    """
    proposed = {method: threshold(histogram) for method, threshold in METHODS.items()}
    # A file of an older version may have a range that its method no longer gives.
    known = proposed.get(method) == amax
    used = method if known else (BY_HAND if method == BY_HAND else AS_STORED)
    if not known:
        proposed[used] = amax
    ranges = tuple(
        Range(
            proposal,
            value,
            histogram.above(value) / histogram.total,
            range_sqnr(histogram, value),
            proposal == used,
        )
        for proposal, value in proposed.items()
    )
    bar_width, bar_counts = chart_bars(histogram)
    return Card(
        index,
        name,
        ranges,
        float(np.float32(amax / 127)),
        histogram.total,
        histogram.amax,
        histogram.zeros / histogram.total,
        bar_width,
        bar_counts,
    )
