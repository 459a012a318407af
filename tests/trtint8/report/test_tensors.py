"""The cards of tensors: ranges, histograms and what they clip."""

import dataclasses
import math

import tests.trtint8.report.extra  # noqa: F401
from calibrators.histograms.rules import range_sqnr
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.table import CalibrationTable
from tests.trtint8.report.samples import HOSTILE, table
from trtint8.report.facts import gather
from trtint8.report.files import ReportFiles
from trtint8.report.layers import make_cards


class TestTensors:
    def test_cards(self):
        ranges = table()
        by_name = {card.name: card for card in make_cards(ranges)}
        assert set(by_name) == {"images", HOSTILE, "silent"}
        card, histogram = by_name[HOSTILE], ranges.histograms[HOSTILE]
        assert [one.method for one in card.ranges] == list(METHODS)
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
        assert (card.used.method, card.used.amax) == ("by hand", 3.5) and len(card.ranges) == len(METHODS) + 1
        stale = dataclasses.replace(table(), amax={**table().amax, "images": 3.25})
        (card,) = [card for card in make_cards(stale) if card.name == "images"]
        assert (card.used.method, card.used.amax) == ("as stored", 3.25)

    def test_tensors_without_a_histogram_are_counted(self, tmp_path):
        ranges = CalibrationTable({"a": 1.0, "b": 2.0})
        report = gather(ReportFiles({"table": ranges.save(tmp_path / "x.table.json")}, table=ranges))
        assert report.cards == () and report.without_histogram == 2
