"""The figures at the top of a report."""

import dataclasses

from trtint8.report.files import ReportFiles
from trtint8.report.headline import make_headline
from trtint8.validation.measure import Measure
from trtint8.validation.significance import Share


class TestHeadline:
    def test_values(self, found):
        head = make_headline(found, 4000, 3000)
        assert (head.reference_top1, head.top1) == (Share(320, 400), Share(316, 400))
        assert head.agreement == Share(390, 400) and head.samples == 400
        assert (head.lowest.name, head.lowest.sqnr_db) == ("scores", 26.25)
        assert head.first_row is None and head.chosen is None
        assert head.in_int8 == (1, 2)
        assert (head.weights_bytes, head.engine_bytes) == (5248, 1000)
        assert (head.model_bytes, head.qdq_bytes) == (4000, 3000)
        assert head.verdicts[0].startswith("top-1: INT8 is 1.00 points below FP32")
        assert "more than chance on 400 samples (McNemar p = 0.04)" in head.verdicts[0]
        assert len(head.verdicts) == 2 and head.verdicts[1].startswith("kappa: INT8 is 0.05 below FP32")
        assert head.columns == ("FP32", "INT8")
        assert head.rows[0] == ("top-1", "80.00 % (75.8-83.6)", "79.00 % (74.7-82.7)")

    def test_a_network_that_is_no_classifier(self, found):
        psnr = Measure("psnr", 26.15, 27.25, title="PSNR of 'hr' against the labels", unit="dB")
        accuracy = dataclasses.replace(
            found.accuracy, top1=None, agreement=None, measures=(psnr,), chosen="by shapes"
        )
        head = make_headline(dataclasses.replace(found, accuracy=accuracy))
        assert head.first_row == ("PSNR of 'hr' against the labels", "27.25 dB", "26.15 dB")
        assert head.chosen == "by shapes"
        alone = dataclasses.replace(accuracy, measures=(Measure("pixels", 0.75, title="same", unit="%"),))
        assert make_headline(dataclasses.replace(found, accuracy=alone)).first_row == ("same", "", "75.00 %")

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
        head = make_headline(ReportFiles({}))
        assert head.top1 is head.in_int8 is head.weights_bytes is head.samples is None
        assert head.latencies == head.rows == head.verdicts == ()
