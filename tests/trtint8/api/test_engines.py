"""What is done with finished engines, by the public calls."""

import onnx
import pytest

import trtint8
from calibrators.errors import ModelError, TableError, TrtInt8Error, UnsupportedError
from trtint8.data import DEMO_MODEL


def test_a_gpu_that_no_table_has_is_refused(table):
    with pytest.raises(UnsupportedError, match="'RTX 9999'"):
        trtint8.audit(DEMO_MODEL, table, "RTX 9999")


def test_an_audit_keeps_layers_in_float(rtx, table):
    found = trtint8.audit(DEMO_MODEL, table, "A10", target="rtx", keep_float=["/fc/*"])
    assert found.gpu.name == "A10"
    assert found.engine("INT8").multiply_adds["FP32"] < found.engine("FP32").multiply_adds["FP32"]


def test_engines_that_are_not_there_are_refused(tmp_path):
    for call in (
        lambda: trtint8.bench([tmp_path / "m.engine"]),
        lambda: trtint8.deploy(tmp_path / "m.engine", "cpp", tmp_path / "out"),
        lambda: trtint8.write_report([tmp_path / "m.engine"], tmp_path / "page.html"),
    ):
        with pytest.raises(TrtInt8Error, match=r"m\.engine|GPU|driver"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_folder_for_an_engine(rtx, table, tmp_path):
    keywords = {"target": "rtx", "compute_capabilities": ["8.6"], "keep_int8": ["*"]}
    trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / "m.engine", **keywords)
    files = trtint8.deploy(tmp_path / "m.engine", "cpp", tmp_path / "out")
    assert all(file.is_file() and file.parent == tmp_path / "out" for file in files)
    with pytest.raises(UnsupportedError, match="cannot deploy to 'nowhere'"):
        trtint8.deploy(tmp_path / "m.engine", "nowhere", tmp_path / "other")


def test_a_report_reads_its_model_from_a_file(tmp_path):
    with pytest.raises(ModelError, match="reads its model from a file, and got ModelProto; give a path"):
        trtint8.write_report([tmp_path], tmp_path / "page.html", model=onnx.load(DEMO_MODEL))


def test_one_source_by_itself_is_one(tmp_path):
    with pytest.raises(TableError, match=r"m\.engine"):
        trtint8.write_report(tmp_path / "m.engine", tmp_path / "page.html")
    with pytest.raises(TableError, match="at least two runs"):
        trtint8.compare_runs(str(tmp_path))
