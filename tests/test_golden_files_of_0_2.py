"""Files that version 0.2 wrote are read: they say nothing of how images were preprocessed.

trtint8 0.2.0 with TensorRT for RTX 1.7.1 wrote them. ``tiny.onnx`` is a Conv, a Relu and a MatMul over images
of 8 x 8, and ``held.npz`` has 64 of them as uint8, beside as many that were calibrated with::

    trtint8 build tiny.onnx calib.npz -o tiny.engine --method minmax --mean 0.5 --std 0.25
        --target rtx --compute-capability 8.9
    trtint8 validate tiny.engine held.npz --reference tiny.onnx --mean 0.5 --std 0.25 --json
        > tiny.accuracy.json
    trtint8 sensitivity tiny.onnx tiny.table.json held.npz --mean 0.5 --std 0.25 -o tiny.sensitivity.json
    trtint8 table convert tiny.table.json tiny.cache

The engine is packed with xz.
"""

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trtint8
from trtint8.cli.main import main

GOLDEN = Path(__file__).parent / "golden" / "0.2"
IMAGES = trtint8.Preprocessing(mean=(0.5,), std=(0.25,))
RANGES = {"images": 2.0, "f": 0.9868571758270264}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in GOLDEN.iterdir():
        if path.suffix == ".xz":
            Path(path.stem).write_bytes(lzma.decompress(path.read_bytes()))
        else:
            shutil.copy(path, path.name)


def scales(path):
    arrays = onnx.load(path).graph.initializer
    return {one.name: numpy_helper.to_array(one) for one in arrays if one.name.endswith("_scale")}


def test_table_and_sidecar():
    table = trtint8.CalibrationTable.load("tiny.table.json")
    assert table.amax == pytest.approx(RANGES) and table.provenance.versions["trtint8"] == "0.2.0"
    assert (table.provenance.inputs, table.warnings, table.provenance.samples) == (None, (), 64)
    info = trtint8.read_engine_info("tiny.engine")
    assert (info.calibrated_inputs, info.warnings, info.flavor) == (None, (), "rtx")
    assert trtint8.CalibrationTable.load("tiny.cache").amax == pytest.approx(RANGES)


def test_validate():
    was = json.loads(Path("tiny.accuracy.json").read_text())
    for name in ("tiny.engine", "tiny.qdq.onnx"):
        found = trtint8.validate(name, "held.npz", reference="tiny.onnx", preprocessing=IMAGES)
        assert (found.samples, found.agreement.count) == (64, was["agreement"]["count"])
        assert found.outputs[0].sqnr_db == pytest.approx(was["outputs"][0]["sqnr_db"], abs=0.1)
        with pytest.raises(trtint8.CalibrationDataError):  # nothing says how images become what is fed
            trtint8.validate(name, "held.npz", reference="tiny.onnx")


def test_quantize():
    trtint8.write_quantized("tiny.onnx", "tiny.table.json", "again.onnx")
    was, found = scales("tiny.qdq.onnx"), scales("again.onnx")
    assert {name: np.shape(one) for name, one in found.items()} == {
        "images_scale": (),
        "f_scale": (),
        "w_scale": (64,),
        "v_scale": (4,),
    }
    assert all(np.array_equal(was[name], one) for name, one in found.items())


@pytest.mark.filterwarnings("ignore:.*kernel_shape:UserWarning")  # which 0.2 did not write
@pytest.mark.parametrize("name", ["tiny.engine", "tiny.qdq.onnx", "tiny.onnx"])
def test_deploy(name):
    table = "tiny.table.json" if name == "tiny.onnx" else None
    trtint8.deploy(name, "triton", "triton", table=table, preprocessing=IMAGES)
    (model,) = Path("triton").rglob("model.qdq.onnx")
    was, found = scales("tiny.qdq.onnx"), scales(model)
    assert was.keys() == found.keys() and all(np.array_equal(was[one], found[one]) for one in was)
    assert json.loads(Path("triton/model.json").read_text())["preprocessing"]["mean"] == [0.5]


def test_without_preprocessing_deepstream_feeds_pixels_and_a_warning_says_so():
    with pytest.warns(UserWarning) as said:
        trtint8.deploy("tiny.engine", "deepstream", "there")
    (found,) = [str(one.message) for one in said if "0 to 255" in str(one.message)]
    assert "preprocessing" in found
    assert "net-scale-factor=1\noffsets=0;0;0\n" in Path("there/config_infer.txt").read_text()


def test_report_and_compare(capsys):
    assert main(["report", "tiny.engine", "-o", "r.html", "--model", "tiny.onnx"]) == 0
    page = Path("r.html").read_text()
    assert "36.97" in page and "98.44" in page
    for folder in ("a", "b"):
        Path(folder).mkdir()
        for path in Path().glob("tiny.*"):
            shutil.copy(path, folder)
    assert main(["compare", "a", "b", "-o", "c.html"]) == 0
    assert Path("c.html").exists()
    assert capsys.readouterr().out.count("36.97 dB") >= 2
