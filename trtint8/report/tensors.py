"""A card a tensor: its histogram, and what every method would make of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.table import QMAX, CalibrationTable
from trtint8.validation.fidelity import decibels

#: Bars of a chart at most; at least half of them are in use.
CHART_BINS = 128

#: Points that stand for the values of a bin.
_POINTS = 8

#: What a range is called that no method gives.
BY_HAND, AS_STORED = "by hand", "as stored"


@dataclass(frozen=True)
class Range:
    """One tensor under one method.

    Attributes:
        method: A key of ``METHODS``, or ``by hand`` or ``as stored`` for a range that is none of theirs.
        amax: The range.
        clipped: Share of all values that it cuts off.
        sqnr_db: Of the tensor once it is quantized so, see :func:`range_sqnr`.
        in_use: Whether the table has it.
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
        index: Its place in the graph, from 0.
        name: Its name.
        ranges: Under every method; the one in use is among them.
        scale: amax / 127 of the range in use.
        total: How many finite values were seen, zeros included.
        largest: The largest magnitude.
        zeros: Share of values that were exactly zero.
        bar_width: Width of a bar of the chart, in the tensor's unit.
        bar_counts: Values in each bar, from 0 up to the largest magnitude; zeros are in none.
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
        return next(one for one in self.ranges if one.in_use)


def cards(table: CalibrationTable) -> tuple[Card, ...]:
    """One a tensor that has a histogram, those first that lose most to rounding and clipping.

    Args:
        table: With histograms; tensors without one, such as those of imported ranges, are left out.
    """
    found = [
        _card(index, name, table)
        for index, name in enumerate(table.amax)
        if name in table.histograms and table.histograms[name].total
    ]
    return tuple(sorted(found, key=lambda card: (card.used.sqnr_db, card.index)))


def range_sqnr(histogram: Histogram, amax: float) -> float:
    """Signal to noise of a tensor that is rounded to 127 steps up to ``amax`` and clipped there.

    The values of a bin are taken to lie evenly across it.

    Args:
        histogram: Of its magnitudes.
        amax: The range.

    Returns:
        10 log10(sum(x^2) / sum((x - q(x))^2)) in decibels; infinite where all values are zero.
    """
    filled = np.flatnonzero(histogram.counts)
    if not len(filled):
        return math.inf
    points = (filled[:, None] + (np.arange(_POINTS) + 0.5) / _POINTS) * histogram.bin_width
    points = np.minimum(points, histogram.amax)
    scale = amax / QMAX
    rounded = scale * np.minimum(np.rint(points / scale), QMAX) if scale else np.zeros_like(points)
    weights = histogram.counts[filled][:, None] / _POINTS
    noise = float((weights * (points - rounded) ** 2).sum())
    return decibels(float((weights * points**2).sum()), noise)


def chart_bars(histogram: Histogram) -> tuple[float, tuple[int, ...]]:
    """A histogram with fewer bins, for a chart.

    Args:
        histogram: Of the magnitudes.

    Returns:
        Width of a bar, and the counts up to the last that holds something.
    """
    filled = np.flatnonzero(histogram.counts)
    if not len(filled):
        return 0.0, ()
    group = max(1, len(histogram.counts) // CHART_BINS)
    counts = histogram.counts.reshape(-1, group).sum(axis=1)
    last = int(np.flatnonzero(counts)[-1])
    return histogram.bin_width * group, tuple(int(count) for count in counts[: last + 1])


def _card(index: int, name: str, table: CalibrationTable) -> Card:
    histogram, amax = table.histograms[name], table.amax[name]
    proposed = {method: threshold(histogram) for method, threshold in METHODS.items()}
    # Files of older versions may hold what a method no longer gives.
    known = name not in table.overridden and proposed.get(table.method) == amax
    used = table.method if known else (BY_HAND if name in table.overridden else AS_STORED)
    if not known:
        proposed[used] = amax
    ranges = tuple(
        Range(
            method,
            value,
            histogram.above(value) / histogram.total,
            range_sqnr(histogram, value),
            method == used,
        )
        for method, value in proposed.items()
    )
    bar_width, bar_counts = chart_bars(histogram)
    return Card(
        index,
        name,
        ranges,
        float(table.scale(name)),
        histogram.total,
        histogram.amax,
        histogram.zeros / histogram.total,
        bar_width,
        bar_counts,
    )
