"""The cards of tensors: ranges, histograms and what they clip."""

import dataclasses
import math

import numpy as np
import pytest

import tests.trtint8.report.extra  # noqa: F401
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.table import CalibrationTable
from tests.trtint8.report.samples import HOSTILE, table
from trtint8.report.facts import gather
from trtint8.report.files import ReportFiles
from trtint8.report.tensors import chart_bars, make_cards, range_sqnr


class TestTensors:
    def test_rounding_noise_of_uniform_values(self):
        uniform = Histogram(np.full(2048, 10, np.int64), 2.0**-11, 1.0)
        # A step of d makes noise of d^2 / 12, and the signal is 1/3.
        assert range_sqnr(uniform, 1.0) == pytest.approx(10 * math.log10(4 * 127**2), abs=0.02)

    def test_clipping_noise_of_uniform_values(self):
        uniform = Histogram(np.full(2048, 10, np.int64), 2.0**-11, 1.0)
        noise = 1 / 24 + 0.5 * (0.5 / 127) ** 2 / 12
        assert range_sqnr(uniform, 0.5) == pytest.approx(10 * math.log10(1 / 3 / noise), abs=0.001)

    def test_levels_at_the_ends(self):
        assert range_sqnr(Histogram(), 1.0) == math.inf
        assert range_sqnr(Histogram(np.full(2048, 1, np.int64), 1.0, 2048.0), 0.0) == 0.0

    def test_it_agrees_with_the_values_themselves(self):
        values = np.random.default_rng(0).laplace(0, 1, 200_000).astype(np.float32)
        histogram = Histogram()
        histogram.observe(values)
        for amax in (3.0, 6.0, histogram.amax):
            scale = amax / 127
            error = np.abs(values) - scale * np.minimum(np.rint(np.abs(values) / scale), 127)
            wanted = 10 * math.log10(float((values.astype(np.float64) ** 2).sum() / (error**2).sum()))
            assert range_sqnr(histogram, amax) == pytest.approx(wanted, abs=0.1)

    def test_chart_bars(self):
        counts = np.zeros(2048, np.int64)
        counts[0], counts[15], counts[16], counts[1100] = 1, 2, 4, 8
        width, bars = chart_bars(Histogram(counts, 0.5, 550.0))
        assert width == 8.0 and len(bars) == 69
        assert bars[:3] == (3, 4, 0) and bars[68] == 8 and sum(bars) == 15
        assert chart_bars(Histogram()) == (0.0, ())

    def test_cards(self):
        ranges = table()
        by_name = {card.name: card for card in make_cards(ranges)}
        assert set(by_name) == {"images", HOSTILE, "silent"}
        card, histogram = by_name[HOSTILE], ranges.histograms[HOSTILE]
        assert [one.method for one in card.ranges] == ["entropy", "percentile", "mse", "minmax"]
        for one in card.ranges:
            assert one.amax == METHODS[one.method](histogram)
            assert one.clipped == histogram.above(one.amax) / 100_000
            assert one.sqnr_db == range_sqnr(histogram, one.amax)
            assert one.in_use == (one.method == "entropy")
        assert card.used.amax == ranges.amax[HOSTILE] and card.scale == float(ranges.scale(HOSTILE))
        assert (card.index, card.total, card.zeros) == (1, 100_000, 0.5)
        assert card.largest == histogram.amax and sum(card.bar_counts) == 50_000
        assert by_name["silent"].zeros == 1.0 and by_name["silent"].used.sqnr_db == math.inf

    def test_the_noisiest_come_first(self):
        levels = [card.used.sqnr_db for card in make_cards(table())]
        assert levels == sorted(levels) and levels[-1] == math.inf

    def test_ranges_that_no_method_gives(self):
        changed = table().override({"images": 3.5})
        (card,) = [card for card in make_cards(changed) if card.name == "images"]
        assert (card.used.method, card.used.amax) == ("by hand", 3.5) and len(card.ranges) == 5
        stale = dataclasses.replace(table(), amax={**table().amax, "images": 3.25})
        (card,) = [card for card in make_cards(stale) if card.name == "images"]
        assert (card.used.method, card.used.amax) == ("as stored", 3.25)

    def test_tensors_without_a_histogram_are_counted(self, tmp_path):
        ranges = CalibrationTable({"a": 1.0, "b": 2.0})
        report = gather(ReportFiles({"table": ranges.save(tmp_path / "x.table.json")}, table=ranges))
        assert report.cards == () and report.without_histogram == 2
