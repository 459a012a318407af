"""The command line as a user meets it: exit status, one sentence, nothing left behind."""

import json
import subprocess
import sys

import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from calibrators.histograms.histogram import Histogram
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.calibration_cache import CacheOrigin, write_cache
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split

MODEL = str(DEMO_MODEL)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    split = load_digits_split()
    np.savez(folder / "calibration.npz", images=split.calibration_images)
    np.savez(folder / "heldout.npz", images=split.heldout_images, labels=split.heldout_labels)
    return folder


@pytest.fixture(scope="module")
def table(files):
    path = files / "t.json"
    assert main(["calibrate", MODEL, str(files / "calibration.npz"), "-o", str(path)]) == 0
    return str(path)


def test_calibrate_quantize_validate(files, table, tmp_path, capsys):
    model = str(tmp_path / "q.onnx")
    assert main(["quantize", MODEL, table, "-o", model, "--explain"]) == 0
    assert "fuses into" in capsys.readouterr().out
    assert main(["validate", model, str(files / "heldout.npz"), "--reference", MODEL, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["reference_top1"]["count"] == 594
    assert abs(result["top1"]["count"] - 594) <= 2


def test_build_from_a_table(table, tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    engine = tmp_path / "d.engine"
    profile = "images=1x1x8x8,4x1x8x8,16x1x8x8"
    arguments = ["build", MODEL, table, "-o", str(engine), "--target", "rtx", "--profile", profile, "--json"]
    assert main(arguments) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["profiles"][0]["images"]["max"] == [16, 1, 8, 8]
    assert engine.stat().st_size > 10_000


def test_table_verbs(table, tmp_path, capsys):
    cache, back, edited = (str(tmp_path / name) for name in ("t.cache", "back.json", "edited.json"))
    assert main(["table", "convert", table, cache]) == 0
    assert main(["table", "convert", cache, back]) == 0
    assert main(["table", "set", table, "images=1.5", "--method", "minmax", "-o", edited]) == 0
    capsys.readouterr()
    assert main(["table", "show", edited, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["method"] == "minmax" and shown["amax"]["images"] == 1.5
    assert main(["table", "diff", table, edited]) == 0
    assert "images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("algorithm", "sidecar", "words"),
    [
        ("EntropyCalibration2", None, "portable: ranges from before layer fusion"),
        ("LegacyCalibration", None, "not portable unless it was made with CALIBRATE_BEFORE_FUSION"),
        ("LegacyCalibration", True, "portable: ranges from before layer fusion"),
        ("EntropyCalibration", False, "not portable: ranges from after layer fusion"),
    ],
)
def test_the_portability_of_a_cache_is_shown(tmp_path, capsys, algorithm, sidecar, words):
    cache = tmp_path / "model.cache"
    data = f"TRT-8601-{algorithm}\nimages: 3c010204\n".encode()
    cache.write_bytes(data)
    if sidecar is not None:
        write_cache(cache, data, CacheOrigin(algorithm, "8.6.1", None, "d", 500, 50, sidecar))
    assert main(["table", "show", str(cache), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cache"]["portability"].startswith(words)
    assert shown["cache"].get("from") == (None if sidecar is None else "500 samples in batches of 50")
    assert main(["table", "show", str(cache)]) == 0
    assert words in capsys.readouterr().out


def test_a_table_is_listed_with_what_it_clips(tmp_path, capsys):
    histogram = Histogram()
    histogram.observe(np.array([0.0] * 50 + [1.0] * 49 + [8.0], np.float32))
    table = CalibrationTable({"a": 2.0, "b": 9.0}, "entropy", histograms={"a": histogram, "b": histogram})
    path = table.override({"b": 9.0}).save(tmp_path / "t.json")
    assert main(["table", "show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split()[1]: line.replace("│", "").split() for line in lines if line.startswith("│")}
    assert cells["a"] == ["a", "2", "0.015748", "8", "50.0", "%", "1.000", "%"]
    assert cells["b"] == ["b", "9", "0.0708661", "8", "50.0", "%", "0.000", "%", "by", "hand"]


def test_ranges_by_hand_from_a_file(table, tmp_path, capsys):
    ranges = tmp_path / "ranges.txt"
    ranges.write_text("images: 1.25\n")
    engine = tmp_path / "d.engine"
    arguments = ["build", MODEL, table, "-o", str(engine), "--target", "rtx", "--dynamic-ranges", str(ranges)]
    assert main(arguments) == 0
    assert CalibrationTable.load(tmp_path / "d.table.json").amax["images"] == 1.25
    capsys.readouterr()
    ranges.write_text("pictures: 1.25\n")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "a dynamic range is given for 'pictures', which is no floating-point tensor of the model" in error
    assert "it has for example 'images', " in error


def test_a_range_by_hand_that_does_nothing_is_not_silent(table, tmp_path, capsys):
    ranges = tmp_path / "ranges.txt"
    ranges.write_text("/stem/bn/BatchNormalization_output_0: 1.25\n")  # fused into the convolution before it
    engine = tmp_path / "d.engine"
    assert main(["build", MODEL, table, "-o", str(engine), "--dynamic-ranges", str(ranges)]) == 0
    assert "BatchNormalization_output_0': the dynamic range has no effect there" in capsys.readouterr().err


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_doctor_says_what_each_route_needs(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["build, explicit route"].startswith("works with TensorRT for RTX")
    assert found["build, implicit route"].startswith("needs ")
    assert "an NVIDIA GPU" in found["build, implicit route"]
    assert found["run, bench, validate on the GPU"] == "needs an NVIDIA GPU"


VERBS = [
    "demo",
    "doctor",
    "calibrate",
    "quantize",
    "migrate",
    "lint",
    "build",
    "validate",
    "sensitivity",
    "tune",
    "run",
    "bench",
    "table",
]


def test_these_are_all_verbs(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("    ") and line[4:5].strip()]
    assert [word for word in listed if word in VERBS] == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"trtint8 {verb}" in capsys.readouterr().out.split("example")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["calibrate", "missing.onnx", "{data}", "-o", "{out}/t.json"], "there is no model 'missing.onnx'"),
        (["calibrate", MODEL, "missing.npz", "-o", "{out}/t.json"], "missing.npz"),
        (
            ["calibrate", MODEL, "{data}", "-o", "{out}/t.xyz"],
            "end it in .json, .cache, .txt",
        ),
        (["calibrate", MODEL, "{data}", "-o", "{out}/no/t.json"], "does not exist"),
        (["calibrate", MODEL, "{data}", "-o", "{out}/t.json", "--mean", "a"], "--mean: 'a' is not a number"),
        (["calibrate", MODEL, "{data}", "-o", "{out}/t.json", "--batch-size", "0"], "0"),
        (
            ["quantize", MODEL, "{table}", "-o", "{out}/q.onnx", "--keep-float", "zz*"],
            "'zz*' matches no node",
        ),
        (["quantize", MODEL, "{bad}", "-o", "{out}/q.onnx"], "line 3"),
        (["quantize", MODEL, "{nan}", "-o", "{out}/q.onnx"], "'images' (nan)"),
        (
            ["build", MODEL, "{table}", "-o", "{out}/d.engine", "--profile", "images=1x1x8x8"],
            "NAME=MIN,OPT,MAX",
        ),
        (["build", MODEL, "{table}", "-o", "{out}/d.engine", "--route", "implicit"], "neither calibrators"),
        (["build", MODEL, "{table}", "-o", "{out}/d.engine", "--bf16", "--target", "rtx"], "no BF16 switch"),
        (["build", MODEL, "{table}", "-o", "{out}/d.engine", "--memory-pool", "x=y"], "'y' is not a size"),
        (
            ["build", MODEL, "{table}", "-o", "{out}/d.engine", "--dynamic-ranges", "no.txt"],
            "cannot read the",
        ),
        (["run", "missing.engine", "{data}", "-o", "{out}/o.npz"], "'missing.engine' cannot be read"),
        (["run", "{table}", "{data}", "-o", "{out}/o.npz"], "is not a TensorRT engine"),
        (["run", "missing.engine", "{data}", "-o", "{out}/no/o.npz"], "does not exist"),
        (["table", "set", "{table}", "images=-1", "-o", "{out}/t.json"], "'images' (-1.0)"),
        (["table", "set", "{table}", "images", "-o", "{out}/t.json"], "'images' is not TENSOR=AMAX"),
    ],
)
def test_bad_input_is_one_sentence_and_status_two(arguments, words, files, table, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    bad, nan = tmp_path / "in" / "bad.cache", tmp_path / "in" / "nan.cache"
    bad.write_text("TRT-8601-EntropyCalibration2\nimages: 3c010204\nnonsense\n")
    nan.write_text("TRT-8601-EntropyCalibration2\nimages: 7fc00000\n")
    known = {"data": files / "calibration.npz", "table": table, "out": out, "bad": bad, "nan": nan}
    capsys.readouterr()
    assert main([argument.format(**known) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1 and "Traceback" not in error
    assert list(out.iterdir()) == []


def test_import_needs_neither_tensorrt_nor_onnx_runtime():
    code = (
        "import sys, trtint8; "
        "print([m for m in ('onnx', 'onnxruntime', 'numpy', 'tensorrt', 'tensorrt_rtx') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
