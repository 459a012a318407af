"""ONNX Runtime's TensorRT execution provider."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from calibrators.errors import UnsupportedError
from tests.trtint8.deployment.conftest import AMAX, IMAGES, qdq_model, shapes
from trtint8.deployment.ort_trt import ort_trt_files, provider_options
from trtint8.deployment.source import read_source
from trtint8.deployment.writing import deploy


def test_the_options_are_the_engines_profiles(make_source):
    options = provider_options(make_source())
    assert (options["model"], options["table"]) == ("model.qdq.onnx", "calibration.flatbuffers")
    assert options["provider_options"] == {
        "trt_int8_enable": True,
        "trt_fp16_enable": True,
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": "trt_cache",
        "trt_timing_cache_enable": True,
        "trt_profile_min_shapes": "images:1x3x8x6",
        "trt_profile_opt_shapes": "images:8x3x8x6",
        "trt_profile_max_shapes": "images:32x3x8x6",
    }
    profiles = ({"images": shapes(1, 2, 3)}, {"images": shapes(4, 5, 6)})
    several = provider_options(make_source(profiles=profiles))["provider_options"]
    assert several["trt_profile_max_shapes"] == "images:3x3x8x6,images:6x3x8x6"
    for profiles, said in (
        ((), "options of the provider.\n"),
        (({"x:0": shapes(1, 2, 3)},), "takes none for"),
    ):
        source = make_source(profiles=profiles)
        assert "trt_profile_min_shapes" not in provider_options(source)["provider_options"]
        assert said in ort_trt_files(source)["README.md"]
    assert "the engine's profiles among them" in ort_trt_files(make_source())["README.md"]


def test_onnx_runtimes_own_code_reads_the_table(make_source):
    tables = pytest.importorskip("onnxruntime.quantization.CalTableFlatBuffers.TrtTable")
    data = ort_trt_files(make_source())["trt_cache/calibration.flatbuffers"]
    table = tables.TrtTable.GetRootAs(data)
    pairs = [table.Dict(index) for index in range(table.DictLength())]
    assert {pair.Key().decode(): float(pair.Value()) for pair in pairs} == AMAX


def test_the_files(make_source):
    files = ort_trt_files(make_source())
    assert sorted(files) == [
        "README.md",
        "model.json",
        "model.qdq.onnx",
        "options.json",
        "preprocess.py",
        "session.py",
        "trt_cache/calibration.flatbuffers",
    ]
    assert "It needs no calibration table" in files["README.md"]
    implicit = ort_trt_files(make_source(qdq=False, route="implicit"))
    assert "model.qdq.onnx" not in implicit
    assert "so there is no Q/DQ model" in implicit["README.md"]
    assert "trt_cache/calibration.flatbuffers" not in ort_trt_files(make_source(table=False))
    with pytest.raises(
        UnsupportedError, match="has neither a Q/DQ model nor a calibration table beside it; build"
    ):
        ort_trt_files(make_source(qdq=False, table=False))


def test_types_are_those_of_the_model_that_onnx_runtime_runs(make_engine):
    engine = make_engine()
    engine.with_name("net.qdq.onnx").write_bytes(qdq_model("double"))
    files = ort_trt_files(read_source(engine, None))
    document = json.loads(files["model.json"])
    assert [spec["dtype"] for spec in document["inputs"] + document["outputs"]] == ["float64", "float64"]
    assert "| input | `images` | float64 | `1..32 x 3 x 8 x 6` |" in files["README.md"]
    # Where there is none, the engine's are all that is known.
    document = json.loads(ort_trt_files(read_source(make_engine(qdq=False), None))["model.json"])
    assert document["inputs"][0]["dtype"] == IMAGES.dtype


def test_the_program_gives_the_provider_its_options(make_engine, tmp_path, monkeypatch):
    folder = tmp_path / "there"
    deploy(make_engine(), "ort-trt", folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("preprocess", "session"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import session

    options = json.loads((folder / "options.json").read_text())["provider_options"]
    expected = {**options, "trt_engine_cache_path": str(folder / "trt_cache")}
    assert session.provider_options() == expected
    assert session.provider_options("float.onnx") == {
        **expected,
        "trt_int8_calibration_table_name": "calibration.flatbuffers",
        "trt_int8_use_native_calibration_table": False,
    }
    for name in ("preprocess", "session"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(("own", "then"), [(None, "1"), ("0", "0")])
def test_the_program_has_onnx_runtime_send_nothing(make_engine, tmp_path, monkeypatch, own, then):
    folder = tmp_path / "there"
    deploy(make_engine(), "ort-trt", folder)
    # As much of ONNX Runtime as tells what the variable was when it was imported.
    (folder / "onnxruntime.py").write_text(
        "import os\nraise RuntimeError(os.environ.get('ORT_DISABLE_TELEMETRY'))\n"
    )
    np.savez(folder / "inputs.npz", images=np.zeros((1, 3, 8, 6), np.float32))
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    if own is not None:
        environment["ORT_DISABLE_TELEMETRY"] = own
    command = [sys.executable, "session.py", "inputs.npz", "outputs.npz"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == f"RuntimeError: {then}"
