"""What belongs together, what is missing, and the commands that make it."""

import dataclasses

from calibrators.tables.table import CalibrationTable
from trtint8.report.facts import commands_for_missing, commands_to_rebuild, find_mismatches
from trtint8.report.files import ReportFiles, find_report_files


class TestProvenance:
    def test_nothing_is_missing(self, found):
        assert commands_for_missing(found, model="m.onnx", table_model="m.onnx", with_worst=True) == ()

    def test_commands_for_what_is_missing(self, found):
        only = ReportFiles({"table": found.paths["table"]}, table=found.table)
        lines = [
            item.line for item in commands_for_missing(only, model=None, table_model=None, with_worst=False)
        ]
        assert lines == [
            "trtint8 build MODEL.onnx net.table.json -o net.engine",
            "trtint8 validate net.qdq.onnx HELDOUT_DATA --reference MODEL.onnx --json > net.accuracy.json",
            "trtint8 sensitivity MODEL.onnx net.table.json HELDOUT_DATA -o net.sensitivity.json",
            "trtint8 audit MODEL.onnx net.table.json --gpu GPU --json > net.audit.json",
            "trtint8 bench net.engine --baseline MODEL.onnx --json > net.bench.json",
            "trtint8 report net.table.json -o net.html --model MODEL.onnx --data HELDOUT_DATA",
        ]

    def test_file_names_are_quoted_for_the_shell(self, found, tmp_path):
        only = ReportFiles({"engine": tmp_path / "my net.engine"}, engine=found.engine)
        (line,) = [
            one.line
            for one in commands_for_missing(only, model="a b.onnx", table_model=None, with_worst=True)
            if "bench" in one.line
        ]
        assert line == "trtint8 bench 'my net.engine' --baseline 'a b.onnx' --json > 'my net.bench.json'"

    def test_commands_that_rebuild(self, found):
        untuned = dataclasses.replace(found, tuning=None)
        assert [item.line for item in commands_to_rebuild(untuned, model="m.onnx", table_model="m.onnx")] == [
            "trtint8 calibrate m.onnx CALIBRATION_DATA -o net.table.json --method entropy --limit 500",
            "trtint8 build net.qdq.onnx -o net.engine --target rtx --route explicit "
            "--compute-capability 8.6 --compute-capability 12.0 "
            "--profile images=1x3x16x16,8x3x16x16,32x3x16x16",
        ]

    def test_a_tuned_table_is_not_calibrated_over(self, found):
        untuned = dataclasses.replace(found, tuning=None)
        for files, table_model in ((found, "m.onnx"), (untuned, "t.float.onnx"), (untuned, None)):
            lines = [one.line for one in commands_to_rebuild(files, model="m.onnx", table_model=table_model)]
            assert len(lines) == 1 and lines[0].startswith("trtint8 build ")

    def test_what_does_not_belong_together(self, found):
        assert find_mismatches(found) == ()
        assert find_mismatches(found, model_fingerprint="2b") == (
            "The FP32 model given is of another model than the engine: their numbers do not belong together.",
        )
        assert find_mismatches(found, qdq_fingerprint="2b") == (
            "The Q/DQ model is of another model than the engine: their numbers do not belong together.",
        )
        stale = dataclasses.replace(found.sensitivity, table_fingerprint="older")
        assert find_mismatches(dataclasses.replace(found, sensitivity=stale)) == (
            "The sensitivity is of another calibration table than the calibration table: "
            "their numbers do not belong together.",
        )

    def test_a_table_that_the_engine_was_not_built_with(self, found):
        assert find_mismatches(found, table_was_used=False) == (
            "The engine was built without the calibration table: their numbers do not belong together.",
        )

    def test_the_accuracy_of_an_earlier_build(self, found):
        def said(engine, accuracy, qdq_fingerprint=None):
            engine = engine and dataclasses.replace(found.engine, **engine)
            accuracy = dataclasses.replace(found.accuracy, **accuracy)
            only = ReportFiles(found.paths, engine=engine, accuracy=accuracy)
            return find_mismatches(only, qdq_fingerprint=qdq_fingerprint, origins={"qdq": "1a"})

        other = "The accuracy is of another model or build than the {}: their numbers do not belong together."
        assert said({"qdq_fingerprint": "qdq"}, {"judged_fingerprint": "older"}) == (other.format("engine"),)
        assert said({"plan_sha256": "plan"}, {"judged_fingerprint": "older"}) == (other.format("engine"),)
        assert said(None, {"judged_fingerprint": "older"}, "qdq") == (other.format("Q/DQ model"),)
        assert said({"qdq_fingerprint": "qdq"}, {"judged_fingerprint": "qdq"}, "qdq") == ()
        assert said({"plan_sha256": "plan"}, {"judged_fingerprint": "plan"}) == ()
        assert said({"qdq_fingerprint": "qdq"}, {"reference_fingerprint": "1a"}) == ()
        assert said({"qdq_fingerprint": "qdq"}, {"reference_fingerprint": "2b"}) == (
            "The FP32 model of the accuracy is of another model than the engine: "
            "their numbers do not belong together.",
        )

    def test_a_qdq_model_beside_files_of_another(self, found):
        without = dataclasses.replace(found, engine=None)
        assert find_mismatches(without, qdq_fingerprint="qdq", origins={"qdq": "1a"}) == ()
        assert find_mismatches(without, qdq_fingerprint="qdq", origins={"qdq": None}) == ()
        assert find_mismatches(
            without, model_fingerprint="2b", qdq_fingerprint="qdq", origins={"qdq": "2b"}
        ) == tuple(
            f"The {name} is of another model than the Q/DQ model: their numbers do not belong together."
            for name in ("calibration table", "sensitivity", "audit")
        )


def test_histograms_are_not_looked_for_in_a_cache(tmp_path):
    CalibrationTable({"images": 2.5}, "entropy").save(tmp_path / "net.cache")
    found = find_report_files([tmp_path / "net.cache"])
    lines = [
        command.line
        for command in commands_for_missing(found, model=None, table_model=None, with_worst=False)
    ]
    assert "trtint8 calibrate MODEL.onnx CALIBRATION_DATA -o net.table.json" in lines
    assert "trtint8 build MODEL.onnx net.cache -o net.engine" in lines
