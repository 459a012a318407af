"""Cards of tensors for notebooks: the values, the range that every method gives, and a small histogram.

They are HTML and bring no styles of their own.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.rules import range_sqnr
from calibrators.histograms.thresholds import METHODS

#: The most bars of a chart; at least half of them are used.
_CHART_BINS = 128


#: Names of ranges that no method gives.
_BY_HAND, _AS_STORED = "by hand", "as stored"


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
    group = max(1, len(histogram.counts) // _CHART_BINS)
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
    used = method if known else (_BY_HAND if method == _BY_HAND else _AS_STORED)
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


#: Bars, and the height of the highest, in units of the SVG.
BARS, HEIGHT = 32, 20

#: Width of a bar, in units of the SVG.
_BAR = 4


def sparkline(histogram: Histogram, amax: float) -> Markup:
    """The histogram with a line at the range; what lies beyond it is faint.

    The height of a bar is the square root of its count, so that thin tails are visible.

    Args:
        histogram: The histogram of a tensor's magnitudes.
        amax: The tensor's range.

    Returns:
        An SVG element; empty where the histogram has no values but zeros.
    """
    counts = bar_counts(histogram)
    if not counts:
        return Markup("")
    right = max(histogram.amax, amax)
    used = BARS * _BAR * amax / right
    scale = histogram.amax / right
    top = math.sqrt(max(counts))
    bars = []
    for index, count in enumerate(counts):
        if count:
            height = max(1.0, HEIGHT * math.sqrt(count) / top)
            left, width = index * _BAR * scale, _BAR * scale
            opacity = 0.6 if left < used else 0.2
            bars.append(
                f'<rect x="{left:.1f}" y="{HEIGHT - height:.1f}" width="{width:.1f}" height="{height:.1f}" '
                f'opacity="{opacity}"/>'
            )
    return Markup(
        f'<svg viewBox="0 0 {BARS * _BAR} {HEIGHT}" width="{BARS * _BAR}" height="{HEIGHT}" '
        f'fill="currentColor" aria-hidden="true">{"".join(bars)}'
        f'<rect x="{max(0.0, used - 1.5):.1f}" width="1.5" height="{HEIGHT}"/></svg>'
    )


def bar_counts(histogram: Histogram) -> tuple[int, ...]:
    """The number of values in each of :data:`BARS` bars from 0 to the largest magnitude.

    Args:
        histogram: A histogram of magnitudes.

    Returns:
        The counts, which add up to those of all bins; empty where no bin has a value.
    """
    if not histogram.amax:
        return ()
    centres = (np.arange(len(histogram.counts)) + 0.5) * histogram.bin_width
    bars = np.minimum((centres * (BARS / histogram.amax)).astype(np.int64), BARS - 1)
    return tuple(int(count) for count in np.bincount(bars, histogram.counts, BARS))


#: How many rows a table shows; what is left out is counted below it.
MOST_ROWS = 40


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already, such as an SVG element.

    Attributes:
        html: The HTML.
    """

    html: str


#: What a cell holds: text, which is escaped, or HTML.
Cell = str | Markup


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], notes: Iterable[str] = ()
) -> str:
    """A table whose first column is aligned left and whose other columns are aligned right.

    Args:
        title: The title above the table.
        columns: The headings of the columns; no row of headings where all are empty.
        rows: The rows, one cell per column; the first :data:`MOST_ROWS` of them are shown.
        notes: Sentences below the table.

    Returns:
        One HTML element.
    """
    listed = list(rows)
    left_out = len(listed) - MOST_ROWS
    below = [f"… and {left_out} more"] if left_out > 0 else []
    heading = f"<thead><tr>{_cells('th', columns)}</tr></thead>" if any(columns) else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in listed[:MOST_ROWS])
    paragraphs = "".join(f"<div>{html.escape(note)}</div>" for note in (*below, *notes))
    return (
        f"<div><div><b>{html.escape(title)}</b></div>"
        f"<table>{heading}<tbody>{body}</tbody></table>{paragraphs}</div>"
    )


def bar(share: float) -> Markup:
    """A horizontal bar in the colour of the text.

    Args:
        share: Its length as a share of the longest, in [0, 1].
    """
    width = round(100 * share, 1)
    return Markup(
        '<svg viewBox="0 0 100 10" width="100" height="10" aria-hidden="true">'
        f'<rect width="{width:g}" height="10" fill="currentColor" opacity="0.5"/></svg>'
    )


def _cells(tag: str, cells: Sequence[Cell]) -> str:
    sides = ["left", *["right"] * (len(cells) - 1)]
    return "".join(
        f'<{tag} style="text-align:{side};padding:0 0.5em">{_content(cell)}</{tag}>'
        for side, cell in zip(sides, cells, strict=True)
    )


def _content(cell: Cell) -> str:
    return cell.html if isinstance(cell, Markup) else html.escape(cell)
