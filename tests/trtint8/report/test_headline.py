"""The figures at the top of a report."""

import dataclasses

from trtint8.report.facts import Headline
from trtint8.report.files import ReportFiles
from trtint8.validation.accuracy import Measure


class TestHeadline:
    def test_values(self, found):
        head = Headline(found, model_bytes=4000, qdq_bytes=3000)
        assert (head.lowest.name, head.lowest.sqnr_db) == ("scores", 26.25)
        assert head.first_row is None
        assert (head.engine_bytes, head.model_bytes, head.qdq_bytes) == (1000, 4000, 3000)
        assert head.verdicts[0].startswith("top-1: INT8 is 1.00 points below FP32")
        assert "more than chance on 400 samples (McNemar p = 0.04)" in head.verdicts[0]
        assert len(head.verdicts) == 2 and head.verdicts[1].startswith("kappa: INT8 is 0.05 below FP32")
        assert head.columns == ("FP32", "INT8")
        assert head.rows[0] == ("top-1", "80.00 % (75.8-83.6)", "79.00 % (74.7-82.7)")

    def test_a_network_that_is_no_classifier(self, found):
        psnr = Measure("psnr", 26.15, 27.25, title="PSNR of 'hr' against the labels", unit="dB")
        accuracy = dataclasses.replace(found.accuracy, top1=None, agreement=None, measures=(psnr,))
        head = Headline(dataclasses.replace(found, accuracy=accuracy))
        assert head.first_row == ("PSNR of 'hr' against the labels", "27.25 dB", "26.15 dB")
        alone = dataclasses.replace(accuracy, measures=(Measure("pixels", 0.75, title="same", unit="%"),))
        assert Headline(dataclasses.replace(found, accuracy=alone)).first_row == ("same", "", "75.00 %")

    def test_why_layers_in_int8_are_not_counted(self, found):
        def why(engine):
            return Headline(dataclasses.replace(found, engine=engine)).why_not_counted

        assert why(None) == "There is no engine yet."
        assert why(dataclasses.replace(found.engine, layers=None)) == (
            "Not listed: profiling verbosity was not 'detailed', the default, or this TensorRT lists none."
        )
        assert why(found.engine) == "TensorRT tells nothing of parts that it compiled as a whole."

    def test_nothing_is_known(self):
        head = Headline(ReportFiles({}))
        assert (
            head.engine_bytes is head.model_bytes is head.qdq_bytes is head.lowest is head.first_row is None
        )
        assert head.rows == head.verdicts == ()
