"""The preprocessing of a calibration goes along with table, Q/DQ model and results."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from trtint8 import Preprocessing
from trtint8.cli.main import main

KINDS = {
    "mean and std": Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "one mean": Preprocessing(mean=(0.5,), std=(0.25,)),
    "default": Preprocessing(),
    "scale": Preprocessing(scale=2 / 255),
    "pixels": Preprocessing(scale=1.0, mean=(123.675, 116.28, 103.53), std=(58.4, 57.1, 57.4)),
    "BGR": Preprocessing(channels="BGR", mean=(0.4, 0.5, 0.6)),
    "resize": Preprocessing(resize=(16, 16)),
    "shorter side and crop": Preprocessing(resize=20, crop=(16, 16)),
    "crop": Preprocessing(crop=(16, 16)),
    "letterbox": Preprocessing(letterbox=(16, 16)),
}


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = np.random.default_rng(0)
    weights = numpy_helper.from_array((drawn.standard_normal((8, 3, 3, 3)) / 5).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4, name="conv"),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["y"], name="flat"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])],
        [weights],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    for name in ("calibration", "heldout"):
        np.savez(f"{name}.npz", x=drawn.integers(0, 256, (8, 24, 28, 3), dtype=np.uint8))
        np.savez(f"{name}16.npz", x=drawn.integers(0, 256, (8, 16, 16, 3), dtype=np.uint8))
        np.savez(f"{name}32.npz", x=drawn.standard_normal((8, 3, 16, 16), dtype=np.float32))
    return "m.onnx"


def _sizes(preprocessing):
    return "" if preprocessing.resize or preprocessing.crop or preprocessing.letterbox else "16"


def _quantized(model, preprocessing, size):
    trtint8.calibrate(model, f"calibration{size}.npz", output="t.json", preprocessing=preprocessing)
    trtint8.write_quantized(model, "t.json", "q.onnx")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_is_applied(model, kind):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    wanted, size = KINDS[kind], _sizes(KINDS[kind])
    _quantized(model, wanted, size)
    assert trtint8.CalibrationTable.load("t.json").provenance.inputs.preprocessing == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = trtint8.validate("q.onnx", f"heldout{size}.npz", reference=model)
        given = trtint8.validate("q.onnx", f"heldout{size}.npz", reference=model, preprocessing=wanted)
        trtint8.measure_sensitivity(model, "t.json", f"heldout{size}.npz")
    assert found == given and not found.warnings


@pytest.mark.parametrize("kind", ["scale", "pixels", "BGR"])
def test_other_preprocessing_is_a_warning_that_shows_both(model, kind):
    _quantized(model, KINDS["mean and std"], "16")
    with pytest.warns(UserWarning):
        found = trtint8.validate("q.onnx", "heldout16.npz", reference=model, preprocessing=KINDS[kind])
    assert any(str(KINDS["mean and std"]) in said and str(KINDS[kind]) in said for said in found.warnings)


def test_inputs_far_beyond_the_calibration_are_a_warning(model):
    trtint8.calibrate(model, "calibration32.npz", output="t.json")
    trtint8.write_quantized(model, "t.json", "q.onnx")
    far = {"x": 50 * np.load("heldout32.npz")["x"]}
    with pytest.warns(UserWarning, match="'x'"):
        found = trtint8.validate("q.onnx", far, reference=model)
    assert found.warnings
    assert not trtint8.validate("q.onnx", "heldout32.npz", reference=model).warnings


def test_arrays_have_no_preprocessing_and_images_after_them_need_one(model):
    table = trtint8.calibrate(model, "calibration32.npz", output="t.json")
    assert table.provenance.inputs.preprocessing == "none"
    trtint8.write_quantized(model, "t.json", "q.onnx")
    trtint8.validate("q.onnx", "heldout16.npz", reference=model, preprocessing=Preprocessing())
    with pytest.raises(trtint8.CalibrationDataError):
        trtint8.validate("q.onnx", "heldout16.npz", reference=model)


def test_prepared_arrays_are_fed_as_they_are_after_images(model):
    _quantized(model, KINDS["one mean"], "16")
    assert trtint8.validate("q.onnx", "heldout32.npz", reference=model).samples == 8


def test_files_of_version_0_2_have_none_and_are_read(model):
    _quantized(model, Preprocessing(), "16")
    document = json.loads(Path("t.json").read_text())
    for name in ("inputs", "warnings"):
        del document[name]
    Path("t.json").write_text(json.dumps(document))
    table = trtint8.CalibrationTable.load("t.json")
    assert table.provenance.inputs is None and table.warnings == ()
    trtint8.write_quantized(model, "t.json", "q.onnx")
    assert not [one for one in onnx.load("q.onnx").metadata_props if "inputs" in one.key]
    with pytest.raises(trtint8.CalibrationDataError):
        trtint8.validate("q.onnx", "heldout16.npz", reference=model)


@pytest.mark.parametrize(
    "hostile",
    [
        {"std": [0]},
        {"scale": "1"},
        {"mean": [1, 2]},
        {"layout": "HWC"},
        {"crop": [-1, 5]},
        {"resize": 1e400},
        7,
    ],
)
def test_hostile_preprocessing_is_refused(model, hostile):
    _quantized(model, Preprocessing(), "16")
    document = json.loads(Path("t.json").read_text())
    document["inputs"]["preprocessing"] = hostile
    Path("t.json").write_text(json.dumps(document))
    with pytest.raises(trtint8.TableError):
        trtint8.CalibrationTable.load("t.json")
    damaged = onnx.load("q.onnx")
    for entry in damaged.metadata_props:
        if entry.key == "trtint8.calibrated_inputs":
            entry.value = json.dumps({"preprocessing": hostile})
    with pytest.raises(trtint8.ModelError):
        trtint8.validate(damaged, "heldout16.npz", reference=model)


def test_warnings_of_a_calibration_are_kept_and_printed(model, capsys):
    assert main(["calibrate", model, "random:8", "-o", "r.json", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["warnings"]
    kept = trtint8.CalibrationTable.load("r.json").warnings
    assert kept and set(kept) <= set(printed)
