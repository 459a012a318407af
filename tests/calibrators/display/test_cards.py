"""Cards of tensors."""

import numpy as np
import pytest

from calibrators.display.cards import card_of, chart_bars
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS


def test_chart_bars():
    counts = np.zeros(2048, np.int64)
    counts[0], counts[15], counts[16], counts[1100] = 1, 2, 4, 8
    width, bars = chart_bars(Histogram(counts, 0.5, 550.0))
    assert width == 8.0 and len(bars) == 69
    assert bars[:3] == (3, 4, 0) and bars[68] == 8 and sum(bars) == 15
    assert chart_bars(Histogram()) == (0.0, ())


@pytest.mark.parametrize(
    ("amax", "method", "used"),
    [
        (None, "mse", "mse"),
        (2.5, "mse", "as stored"),
        (2.5, "by hand", "by hand"),
        (2.5, "wide", "as stored"),
    ],
)
def test_the_range_in_use_is_named_by_how_it_was_chosen(amax, method, used):
    histogram = Histogram()
    histogram.observe(np.random.default_rng(0).laplace(0, 1, 10_000).astype(np.float32))
    amax = METHODS[method](histogram) if amax is None else amax
    card = card_of(3, "x", histogram, amax, method)
    assert (card.used.method, card.used.amax) == (used, amax)
    assert card.scale == np.float32(amax / 127) and card.index == 3
    assert {choice.method for choice in card.ranges} == {*METHODS, used}
