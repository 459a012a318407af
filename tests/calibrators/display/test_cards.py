"""Cards of tensors."""

import re

import numpy as np
import pytest

from calibrators.display.cards import (
    BARS,
    HEIGHT,
    MOST_ROWS,
    Markup,
    bar,
    bar_counts,
    card_of,
    chart_bars,
    html_table,
    sparkline,
)
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from tests.calibrators.histograms.kernels import whole


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
    histogram = whole(np.random.default_rng(0).laplace(0, 1, 10_000).astype(np.float32))
    amax = METHODS[method](histogram) if amax is None else amax
    card = card_of(3, "x", histogram, amax, method)
    assert (card.used.method, card.used.amax) == (used, amax)
    assert card.scale == np.float32(amax / 127) and card.index == 3
    assert {choice.method for choice in card.ranges} == {*METHODS, used}


def histogram_of(values):
    return whole(np.asarray(values, np.float32))


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


def test_text_is_escaped_and_markup_is_not():
    found = html_table("<b>", ("a", "b & c"), [("<i>", Markup("<svg/>"))], ["1 < 2"])
    assert found == (
        "<div><div><b>&lt;b&gt;</b></div><table><thead><tr>"
        '<th style="text-align:left;padding:0 0.5em">a</th>'
        '<th style="text-align:right;padding:0 0.5em">b &amp; c</th></tr></thead><tbody><tr>'
        '<td style="text-align:left;padding:0 0.5em">&lt;i&gt;</td>'
        '<td style="text-align:right;padding:0 0.5em"><svg/></td></tr></tbody></table>'
        "<div>1 &lt; 2</div></div>"
    )


def test_long_tables_say_what_they_leave_out():
    found = html_table("t", ("", ""), [(str(row), "x") for row in range(MOST_ROWS + 3)])
    assert found.count("<tr>") == MOST_ROWS and "<thead>" not in found
    assert "<div>… and 3 more</div>" in found


def test_a_bar_is_as_long_as_its_share():
    assert '<rect width="33.3" height="10"' in bar(1 / 3).html
