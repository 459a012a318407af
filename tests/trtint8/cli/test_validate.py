"""`trtint8 validate` as a user meets it."""

import json

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.validation.small_models import shifted
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

MODEL = str(DEMO_MODEL)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validate")
    split = load_digits_split()
    np.savez(folder / "heldout.npz", images=split.heldout_images, labels=split.heldout_labels)
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images, tensors="placed")
    onnx.save(trtint8.quantize(DEMO_MODEL, table), folder / "q.onnx")
    return ["validate", str(folder / "q.onnx"), str(folder / "heldout.npz"), "--reference", MODEL]


def test_three_columns_and_a_verdict(arguments, prints):
    out = prints(*arguments, "--also", f"FP16={MODEL}")
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    cells = [cell.strip() for cell in rows["top-1"].split("│")[2:5]]
    assert cells[0] == cells[2] == "99.50 % (98.5-99.8)"
    assert rows["same class as FP32"].split("│")[4].strip() == "100.00 % (99.4-100.0)"
    assert "│ SQNR of 'logits'" in out and "largest error of" in out and "token" not in out
    assert "INT8 is the Q/DQ model as fake quantization in ONNX Runtime; FP16 is the model in" in out
    assert "top-1: FP16 is level with FP32 (95 % interval" in out
    assert "no difference that 597 samples can show (McNemar p = 1.00)" in out


def test_metrics_by_name_as_json(arguments, as_json):
    chosen = ["--metric top3 --metric token_cosine --also", f"FP16={MODEL}"]
    result = as_json(*arguments, *chosen)
    assert result["top1"] is None
    (measure,) = result["measures"]
    assert measure["name"] == "top3" and measure["comparisons"][0]["pairs"] == 597
    assert 0.99 < result["outputs"][0]["token_cosine"] < 1
    assert result["also"]["FP16"]["outputs"][0]["token_cosine"] == pytest.approx(1.0)


def test_a_float_model_in_an_arithmetic(arguments, tmp_path, prints, as_json):
    table = trtint8.calibrate(DEMO_MODEL, load_digits_split().calibration_images)
    table.save(tmp_path / "table.json")
    line = ["validate", MODEL, arguments[2], "--table", str(tmp_path / "table.json"), "--metric", "top1"]
    found = as_json(*line, "--arithmetic implicit")
    assert found["top1"]["count"] > 590
    assert len(found["in_integers"]["largest_sums"]) == 9
    assert found["in_integers"]["arithmetic"] == "implicit"
    assert "3 Add" in prints(*line, "--arithmetic ncnn")
    assert main(line) == 2
    assert main(["validate", MODEL, arguments[2]]) == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--also", "x.onnx"], "--also: 'x.onnx'"),
        (["--also", "A=x.onnx", "--also", "A=y.onnx"], "--also gives 'A' twice"),
        (["--also", f"INT8={MODEL}"], "'INT8' in --also"),
        (["--metric", "mAP"], "there is no metric 'mAP'"),
        (["--metric", "sqnr", "--max-drop", "1"], "metric 'sqnr' has no drop"),
        (["--min", "101"], "metric 'top1' is a share, and the least value is 101"),
        (["--metric", "sqnr:logits"], "metric 'sqnr' covers every output"),
    ],
)
def test_mistakes_are_one_sentence(arguments, more, words, refused):
    assert refused(*arguments, *more).startswith(f"trtint8 validate: {words}")


def test_a_budget_decides_the_status(arguments, capsys, as_json):
    succeeds(*arguments, "--max-drop 2")
    kept = "on 597 samples the budget (top1: a drop of at most 2 points) is kept: drop "
    printed = capsys.readouterr()
    assert kept in printed.out and not printed.err
    # What lies within the budget, and its interval does not, is a warning.
    succeeds(*arguments, "--max-drop 0.9")
    printed = capsys.readouterr()
    uncertain = (
        "on 597 samples the budget (top1: a drop of at most 0.9 points) is kept, but not for certain: "
    )
    assert uncertain in printed.out and uncertain in printed.err
    found = as_json(*arguments, "--max-drop 0.9 --groups 3")
    assert found["judgement"]["verdict"] == "uncertain" and uncertain in " ".join(found["warnings"])
    low, high = found["judgement"]["drop_interval"]
    assert low < found["judgement"]["drop"] < high
    # Nothing is 100 %, as FP32 is not.
    assert main([*arguments, "--min", "100", "--max-drop", "1"]) == 1
    missed = "the budget (top1: a drop of at most 1 point and at least 100 %) is missed: drop "
    assert missed in capsys.readouterr().out
    assert main([*arguments, "--min", "100", "--json"]) == 1
    printed = capsys.readouterr()
    judgement = json.loads(printed.out)["judgement"]
    # The log of a job says why it failed.
    assert "the budget (top1: at least 100 %) is missed: " in printed.err
    assert (judgement["goal"], judgement["fits"]) == ("top1: at least 100 %", False)
    assert judgement["step"] == 100 / 597 and 99 < judgement["value"] < 100
    # It is of the first metric that is named.
    named = [*arguments, "--metric", "sqnr", "--metric", "top1", "--json"]
    assert [main([*named, "--min", decibels]) for decibels in ("10", "90")] == [0, 1]
    assert '"goal": "sqnr: at least 90 dB"' in capsys.readouterr().out
    assert as_json(*arguments)["judgement"] is None


@pytest.fixture
def maps(tmp_path):
    """A network of maps and a worse one, with images of the output's shape as labels."""
    random = np.random.default_rng(0)
    images, shift = (random.standard_normal((count, 3, 4, 4)).astype(np.float32) for count in (6, 1))
    np.savez(tmp_path / "held.npz", x=images, labels=images + np.float32(0.1))
    onnx.save(shifted(0 * shift), tmp_path / "fp32.onnx")
    onnx.save(shifted(shift / 10), tmp_path / "int8.onnx")
    files = [str(tmp_path / name) for name in ("int8.onnx", "held.npz", "fp32.onnx")]
    return ["validate", *files[:2], "--reference", files[2]]


def test_metrics_of_images_and_positions(maps, capsys, prints):
    out = prints(*maps)
    assert "│ SQNR of 'y'" in out and "top-1" not in out and "same class" not in out
    assert "'y' (float32, 6x3x4x4)" in out and out.endswith("; metric psnr compares with them\n")
    out = prints(*maps, "--metric psnr --metric pixels --metric miou:y")
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    fp32, int8 = (cell.strip() for cell in rows["PSNR of 'y' against the labels"].split("│")[2:4])
    assert fp32.endswith(" dB") and float(int8.split()[0]) < float(fp32.split()[0])
    assert rows["positions of 'y' with FP32's class"].split("│")[3].strip().endswith(" %")
    assert "mean IoU of 'y' with FP32" in rows and "chose" not in out
    assert "PSNR of 'y' against the labels: float is " in out and " dB below FP32 (95 % interval" in out
    for metric in ("ssim", "psnr:z", "detections", "top1"):
        assert main([*maps, "--metric", metric]) == 2
        warning, error = capsys.readouterr().err.splitlines()
        assert warning.startswith("warning: 'int8.onnx' ")
        assert f"'{metric}" in error
        assert metric != "detections" or "--metric MODULE:NAME" in error
