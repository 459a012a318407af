"""A histogram in the height of a line of text."""

from __future__ import annotations

import math

import numpy as np

from calibrators.display.html import Markup
from calibrators.histograms.histogram import Histogram

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
