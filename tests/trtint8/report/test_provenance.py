"""What belongs together, what is missing, and the commands that make it."""

import dataclasses

from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.models.model import load_model
from trtint8.models.origin import record_calibration, record_float_model
from trtint8.report.files import ReportFiles, find_report_files
from trtint8.report.provenance import (
    commands_for_missing,
    commands_to_rebuild,
    find_mismatches,
    find_origins,
)


class TestProvenance:
    def test_nothing_is_missing(self, found):
        assert commands_for_missing(found, model="m.onnx", with_worst=True) == ()

    def test_commands_for_what_is_missing(self, found):
        only = ReportFiles({"table": found.paths["table"]}, table=found.table)
        lines = [item.line for item in commands_for_missing(only, model=None, with_worst=False)]
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


def quantized(float_model, data=None):
    """A Q/DQ model that says what it was made from and calibrated with."""
    graph_model = load_model(conv_relu_conv()).graph_model
    if float_model:
        record_float_model(graph_model, float_model)
    record_calibration(graph_model, data, 100)
    return graph_model


def built_from(found, qdq_fingerprint, model, data="samples"):
    """Files whose engine was built from a model, and whose table is of a model and of samples."""
    engine = dataclasses.replace(
        found.engine, model_fingerprint="qdq", qdq_fingerprint=qdq_fingerprint, table_fingerprint=None
    )
    table = dataclasses.replace(found.table, provenance=Provenance(model=model, data=data, samples=100))
    return ReportFiles(found.paths, engine=engine, table=table)


class TestOriginsOfModels:
    def test_an_engine_of_a_qdq_model_is_of_its_float_model(self, found):
        files = built_from(found, "qdq", "float")
        origins = find_origins(files, None, quantized("float"))
        assert origins == {"qdq": "float"}
        assert find_mismatches(files, model_fingerprint="float", origins=origins) == ()
        assert find_mismatches(files, model_fingerprint="other", origins=origins) == (
            "The FP32 model given is of another model than the engine: their numbers do not belong together.",
        )

    def test_an_engine_of_a_qdq_model_that_does_not_say_what_it_is_of(self, found):
        files = built_from(found, "qdq", "float")
        assert find_origins(files, None, quantized(None)) == {"qdq": None}
        assert find_origins(files, None, None) == {"qdq": None}
        assert find_mismatches(files, model_fingerprint="float", origins={"qdq": None}) == ()

    def test_an_engine_of_a_float_model(self, found):
        assert find_origins(built_from(found, "other", "float"), None, quantized(None)) == {"qdq": "qdq"}

    def test_a_table_of_changed_weights_is_known_by_its_samples(self, found):
        files = built_from(found, "qdq", "changed")
        origins = find_origins(files, None, quantized("float", "samples"))
        assert origins == {"qdq": "float", "changed": "float"}
        assert find_mismatches(files, model_fingerprint="float", origins=origins) == ()
        others = built_from(found, "qdq", "changed", data="others")
        origins = find_origins(others, None, quantized("float", "samples"))
        assert find_mismatches(others, origins=origins) == (
            "The calibration table is of another model than the engine: "
            "their numbers do not belong together.",
        )

    def test_the_model_given_may_have_changed_weights(self, found):
        changed = load_model(conv_relu_conv())
        assert find_origins(ReportFiles({}), changed, None) == {changed.fingerprint: changed.fingerprint}
        record_float_model(changed.graph_model, "float")
        assert find_origins(ReportFiles({}), changed, None) == {changed.fingerprint: "float"}


def test_histograms_are_not_looked_for_in_a_cache(tmp_path):
    CalibrationTable({"images": 2.5}, "entropy").save(tmp_path / "net.cache")
    found = find_report_files([tmp_path / "net.cache"])
    lines = [command.line for command in commands_for_missing(found, model=None, with_worst=False)]
    assert "trtint8 calibrate MODEL.onnx CALIBRATION_DATA -o net.table.json" in lines
    assert "trtint8 build MODEL.onnx net.cache -o net.engine" in lines
