"""Every figure of a report, by value."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.table import CalibrationTable
from tests.trtint8.report.samples import ACCURACY, HOSTILE, SENSITIVITY, table, write_all
from trtint8.models.model import load_model
from trtint8.report.bars import make_bars, weights_part
from trtint8.report.facts import gather
from trtint8.report.files import Found, find
from trtint8.report.headline import make_headline
from trtint8.report.network import Cell, make_cells, noise_level
from trtint8.report.provenance import commands_for_missing, commands_to_rebuild, find_mismatches
from trtint8.report.tensors import chart_bars, make_cards, range_sqnr
from trtint8.validation.significance import Share


@pytest.fixture
def found(tmp_path, capsys):
    write_all(tmp_path, capsys)
    return find([tmp_path])


class TestHeadline:
    def test_values(self, found):
        head = make_headline(found, 4000)
        assert (head.reference_top1, head.top1) == (Share(320, 400), Share(316, 400))
        assert head.drop_points == pytest.approx(-1.0)
        assert head.agreement == Share(390, 400) and head.sqnr_db == 26.25 and head.samples == 400
        assert head.in_int8 == (1, 2)
        assert (head.weights_bytes, head.engine_bytes, head.model_bytes) == (5248, 1000, 4000)
        assert head.qdq_bytes == found.paths["qdq"].stat().st_size
        assert head.verdicts[0].startswith("top-1: INT8 is 1.00 points below FP32")
        assert "more than chance on 400 samples (McNemar p = 0.04)" in head.verdicts[0]
        assert len(head.verdicts) == 2 and head.verdicts[1].startswith("kappa: INT8 is 0.05 below FP32")
        assert head.columns == ("FP32", "INT8")
        assert head.rows[0] == ("top-1", "80.00 % (75.8-83.6)", "79.00 % (74.7-82.7)")

    def test_latencies(self, found):
        head = make_headline(found)
        first, second = head.latencies
        assert (first.name, first.batch_size, first.median_ms, first.p99_ms) == ("net.engine", 8, 0.5, 1.75)
        assert (first.samples_per_second, second.samples_per_second) == (16000.0, 4000.0)
        assert (first.speedup, second.speedup) == (4.0, 1.0)
        assert (head.gpu, head.bench_inputs) == ("GPU 1", "random")

    def test_a_single_engine_has_no_speedup(self, found):
        alone = dataclasses.replace(found.bench, reports=found.bench.reports[:1])
        assert make_headline(dataclasses.replace(found, bench=alone)).latencies[0].speedup is None

    def test_nothing_is_known(self, tmp_path):
        head = make_headline(Found({}))
        assert head.top1 is head.drop_points is head.in_int8 is head.weights_bytes is head.samples is None
        assert head.latencies == head.rows == head.verdicts == ()


class TestNetwork:
    def test_precision_is_the_engines(self, found):
        graph = load_model(found.paths["qdq"]).graph_model
        assert make_cells(graph, found.engine, found.sensitivity) == (
            Cell(HOSTILE, "Conv", "INT8", 0.75, 4, 30.0, 42.0),
            Cell("second", "Conv", "FP32", 0.2, 3, 40.0, 33.0),
        )

    def test_without_an_engine_it_is_what_the_pairs_ask_for(self, found):
        graph = load_model(found.paths["qdq"]).graph_model
        assert make_cells(graph, None, None) == (
            Cell(HOSTILE, "Conv", "INT8"),
            Cell("second", "Conv", "INT8"),
        )

    def test_without_a_model_it_is_what_the_engine_names(self, found):
        unlisted = dataclasses.replace(found.engine, layers=None)
        assert [cell.precision for cell in make_cells(None, unlisted, None)] == ["INT8", "INT8"]
        unknown = dataclasses.replace(found.engine, quantized_nodes=("gone",))
        assert make_cells(None, unknown, None) == (Cell("gone", "", "unknown"),)

    def test_sensitivity_alone_names_weighted_layers(self):
        assert [cell.node for cell in make_cells(None, None, SENSITIVITY)] == ["second", HOSTILE]
        assert make_cells(None, None, None) == ()

    @pytest.mark.parametrize(
        ("share", "wanted"), [(0.0, 0), (0.0099, 0), (0.01, 1), (0.05, 2), (0.1, 3), (0.3, 4), (1.0, 4)]
    )
    def test_levels(self, share, wanted):
        assert noise_level(share) == wanted


class TestBars:
    def test_values(self):
        worst, second, add = make_bars(SENSITIVITY)
        assert [bar.node for bar in (worst, second, add)] == [HOSTILE, "second", "add"]
        assert (worst.noise_share, worst.width) == (0.75, 1.0)
        assert second.width == pytest.approx(0.2 / 0.75)
        assert (worst.alone_db, worst.alone_half_db, worst.without_db, worst.gain_db) == (
            30.0,
            0.5,
            31.0,
            5.0,
        )
        assert (worst.weights_db, worst.activations_db, worst.cumulative_db) == (20.0, 30.0, 42.0)
        assert worst.weights_part == pytest.approx(10 / 11)
        assert worst.agreement == Share(390, 400) and second.suspects == ()
        assert worst.suspects == ("2.0 % of 'images' lies beyond its range of 2.64 and is cut off",)
        assert add.alone_half_db is None and add.weights_part == 0.0

    def test_noise_without_either(self):
        assert weights_part(None, None) is None
        assert weights_part(math.inf, math.inf) is None
        assert weights_part(20.0, None) == 1.0
        assert weights_part(-math.inf, 3.0) is None

    @given(st.floats(-50, 100), st.floats(-50, 100))
    def test_the_parts_add_up(self, weights, activations):
        assert weights_part(weights, activations) + weights_part(activations, weights) == pytest.approx(1)


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
        report = gather(Found({"table": ranges.save(tmp_path / "x.table.json")}, table=ranges))
        assert report.cards == () and report.without_histogram == 2


class TestProvenance:
    def test_nothing_is_missing(self, found):
        assert commands_for_missing(found, model="m.onnx", with_worst=True) == ()

    def test_commands_for_what_is_missing(self, found):
        only = Found({"table": found.paths["table"]}, table=found.table)
        lines = [item.line for item in commands_for_missing(only, model=None, with_worst=False)]
        assert lines == [
            "trtint8 build MODEL.onnx net.table.json -o net.engine",
            "trtint8 validate net.qdq.onnx HELDOUT_DATA --reference MODEL.onnx --json > net.accuracy.json",
            "trtint8 sensitivity MODEL.onnx net.table.json HELDOUT_DATA -o net.sensitivity.json",
            "trtint8 bench net.engine --baseline MODEL.onnx --json > net.bench.json",
            "trtint8 report net.table.json -o net.html --model MODEL.onnx --data HELDOUT_DATA",
        ]

    def test_file_names_are_quoted_for_the_shell(self, found, tmp_path):
        only = Found({"engine": tmp_path / "my net.engine"}, engine=found.engine)
        (line,) = [
            one.line
            for one in commands_for_missing(only, model="a b.onnx", with_worst=True)
            if "bench" in one.line
        ]
        assert line == "trtint8 bench 'my net.engine' --baseline 'a b.onnx' --json > 'my net.bench.json'"

    def test_commands_that_rebuild(self, found):
        assert [item.line for item in commands_to_rebuild(found, model="m.onnx")] == [
            "trtint8 calibrate m.onnx CALIBRATION_DATA -o net.table.json --method entropy --limit 500",
            "trtint8 build net.qdq.onnx -o net.engine --target rtx --route explicit "
            "--compute-capability 8.6 --compute-capability 12.0 "
            "--profile images=1x3x16x16,8x3x16x16,32x3x16x16",
        ]

    def test_what_does_not_belong_together(self, found):
        assert find_mismatches(found) == ()
        assert find_mismatches(found, model_fingerprint="model2") == (
            "The FP32 model given is of another model than the engine: their numbers do not belong together.",
        )
        stale = dataclasses.replace(found.sensitivity, table_fingerprint="older")
        assert find_mismatches(dataclasses.replace(found, sensitivity=stale)) == (
            "The sensitivity is of another calibration table than the calibration table: "
            "their numbers do not belong together.",
        )


def test_gather(found):
    report = gather(found)
    assert report.title == "net" and report.proved and report.method == "entropy"
    assert len(report.cells) == 2 and len(report.bars) == 3 and len(report.cards) == 3
    assert report.without_histogram == 0 and report.worst is None and report.mismatches == ()
    values = dict(report.provenance)
    assert values["TensorRT for RTX"] == "1.7.1.116" and values["Route"] == "explicit"
    assert values["Fingerprint of the model"] == "model1"
    assert values["Fingerprint of the calibration table"] == found.table.fingerprint
    assert values["Fingerprint of the calibration data"] == "data1"
    assert values["Fingerprint of the sensitivity's data"] == "data2"
    assert values["Fingerprint of the engine file (SHA-256)"] == found.engine.plan_sha256
    assert values["Ranges"] == "3 tensors, entropy" and values["Calibration samples"] == "500"
    assert values["Accuracy measured with"] == f"{ACCURACY.judged}, 400 samples"
    assert values["Sensitivity measured with"] == "128 samples"
