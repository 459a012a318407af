"""`trtint8 validate` as a user meets it."""

import json

import numpy as np
import onnx
import pytest

import trtint8
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

MODEL = str(DEMO_MODEL)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validate")
    split = load_digits_split()
    np.savez(folder / "heldout.npz", images=split.heldout_images, labels=split.heldout_labels)
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images, tensors="placed", progress=False)
    onnx.save(trtint8.quantize(DEMO_MODEL, table), folder / "q.onnx")
    return ["validate", str(folder / "q.onnx"), str(folder / "heldout.npz"), "--reference", MODEL]


def test_three_columns_and_a_verdict(arguments, capsys):
    assert main([*arguments, "--also", f"FP16={MODEL}"]) == 0
    out = capsys.readouterr().out
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    cells = [cell.strip() for cell in rows["top-1"].split("│")[2:5]]
    assert cells[0] == cells[2] == "99.50 % (98.5-99.8)"
    assert rows["same class as FP32"].split("│")[4].strip() == "100.00 % (99.4-100.0)"
    assert "│ SQNR of 'logits'" in out and "largest error of 'logits'" in out and "token" not in out
    assert "INT8 is the Q/DQ model as fake quantization in ONNX Runtime; FP16 is the model in" in out
    assert "top-1: FP16 is level with FP32 (95 % interval" in out
    assert "no difference that 597 samples can show (McNemar p = 1.00)" in out


def test_metrics_by_name_as_json(arguments, capsys):
    chosen = ["--metric", "top3", "--metric", "token_cosine", "--also", f"FP16={MODEL}"]
    assert main([*arguments, *chosen, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["top1"] is None
    (measure,) = result["measures"]
    assert measure["name"] == "top3" and measure["comparisons"][0]["pairs"] == 597
    assert 0.99 < result["outputs"][0]["token_cosine"] < 1
    assert result["also"]["FP16"]["outputs"][0]["token_cosine"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--also", "x.onnx"], "--also 'x.onnx' is no NAME=MODEL"),
        (["--also", "A=x.onnx", "--also", "A=y.onnx"], "--also gives 'A' twice"),
        (["--also", f"INT8={MODEL}"], "'INT8' in also is the name of the model"),
        (["--metric", "mAP"], "there is no metric 'mAP'"),
    ],
)
def test_mistakes_are_one_sentence(arguments, more, message, capsys):
    assert main([*arguments, *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trtint8 validate: {message}") and error.count("\n") == 1
