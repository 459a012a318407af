"""Histograms in the height of a line."""

import re

import numpy as np
import pytest

from calibrators.display.sparkline import BARS, HEIGHT, bar_counts, sparkline
from calibrators.histograms.histogram import Histogram


def histogram_of(values):
    histogram = Histogram()
    histogram.observe(np.asarray(values, np.float32))
    return histogram


def test_bars_hold_every_value():
    values = np.abs(np.random.default_rng(0).standard_normal(10_000)).astype(np.float32)
    histogram = histogram_of(values)
    counts = bar_counts(histogram)
    assert len(counts) == BARS and sum(counts) == 10_000
    wanted = np.histogram(values, BARS, (0, values.max()))[0]
    # A bin of the histogram counts for the bar that its centre is in.
    assert np.abs(np.cumsum(counts) - np.cumsum(wanted)).max() < 10_000 * 0.005


def test_a_line_stands_at_the_range_and_what_is_beyond_is_faint():
    histogram = histogram_of([0.5] * 100 + [4.0] * 25)
    found = sparkline(histogram, 2.0).html
    bars = re.findall(
        r'<rect x="([\d.]+)" y="[\d.]+" width="4.0" height="([\d.]+)" opacity="([\d.]+)"', found
    )
    assert [(float(x), float(height), opacity) for x, height, opacity in bars] == [
        (16.0, HEIGHT, "0.6"),
        (124.0, HEIGHT / 2, "0.2"),
    ]
    assert '<rect x="62.5" width="1.5"' in found  # half of 128, less the line's own width


def test_a_range_beyond_all_values_makes_room_for_itself():
    found = sparkline(histogram_of([1.0]), 2.0).html
    x, width = map(float, re.search(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', found).groups())
    assert x + width == pytest.approx(64)
    assert '<rect x="126.5"' in found


def test_nothing_is_drawn_without_values():
    assert sparkline(Histogram(), 1.0).html == ""
    assert sparkline(histogram_of([0.0, 0.0]), 1.0).html == ""
