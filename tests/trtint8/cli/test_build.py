"""The verb, on TensorRT for RTX."""

import json

import numpy as np
import onnx
import pytest

from calibrators.tables.table import CalibrationTable
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.onnx_models import Shaped
from trtint8.cli import build
from trtint8.data import DEMO_MODEL

pytestmark = pytest.mark.usefixtures("rtx")

MODEL = str(DEMO_MODEL)
IN_FP32 = "outside INT8 is in FP32, as in the model; --fp16 "


def test_build_from_a_table(table, tmp_path, prints):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    engine = tmp_path / "d.engine"
    profile = "images=1x1x8x8,4x1x8x8,16x1x8x8"
    arguments = ["build", MODEL, table, "-o", engine, "--target rtx --profile", profile, "--json"]
    info = json.loads(prints(*arguments))
    assert info["profiles"][0]["images"]["max"] == [16, 1, 8, 8]
    assert engine.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("x", "input 'x' takes"),
        ("xy", "inputs 'x' and 'y' take"),
        ("xyz", "inputs 'x', 'y' and 'z' take"),
        ("xyzu", "inputs 'x', 'y', 'z' and 'u' take"),
        ("xyzuv", "input 'x' and 4 others take"),
    ],
)
def test_inputs_in_words(names, words):
    assert build._listed([*names]) == words


def test_ranges_by_hand_from_a_file(table, tmp_path, capsys, refused):
    ranges = tmp_path / "ranges.txt"
    ranges.write_text("images: 1.25\n")
    engine = tmp_path / "d.engine"
    arguments = ["build", MODEL, table, "-o", engine, "--target rtx --dynamic-ranges", ranges]
    succeeds(*arguments)
    assert CalibrationTable.load(tmp_path / "d.table.json").amax["images"] == 1.25
    capsys.readouterr()
    ranges.write_text("pictures: 1.25\n")
    error = refused(*arguments)
    assert "'pictures'" in error and "'images', " in error
    # One that does nothing is not silent: that of a node that is fused into the convolution before it.
    ranges.write_text("/stem/bn/BatchNormalization_output_0: 1.25\n")
    succeeds(*arguments)
    assert "BatchNormalization_output_0': the dynamic range has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"), [((), True), (("--fp16",), False), (("--no-fp16",), False), (("--json",), False)]
)
def test_who_builds_a_model_with_pairs_is_told_of_fp32(arguments, told, table, tmp_path, capsys):
    pairs, engine = str(tmp_path / "q.onnx"), str(tmp_path / "d.engine")
    succeeds("quantize", MODEL, table, "-o", pairs)
    capsys.readouterr()
    succeeds("build", pairs, "-o", engine, "--target rtx", *arguments)
    assert (IN_FP32 in capsys.readouterr().err) == told


def test_who_builds_a_float_model_is_told_of_layers_that_are_in_fp16(table, tmp_path, capsys):
    command = ["build", MODEL, table, "-o", tmp_path / "d.engine", "--target rtx"]
    succeeds(*command, "--keep-int8 /fc/*")
    printed = capsys.readouterr()
    assert "8 layers are in FP16 that could be in INT8" in printed.err
    assert "--keep-int8 '*'" in printed.err and len(printed.err.splitlines()) == 1
    assert IN_FP32 not in printed.err
    assert "weighted layers in INT8 1 of 9" in " ".join(printed.out.replace("│", " ").split())
    assert "TensorRT for RTX " in " ".join(printed.out.replace("│", " ").split())
    succeeds(*command, "--keep-int8 *")
    printed = capsys.readouterr()
    assert "that could be in INT8" not in printed.err
    assert "weighted layers in INT8 9 of 9" in " ".join(printed.out.replace("│", " ").split())


@pytest.mark.parametrize("name", ["d.engine", "d.engine.json", "d.qdq.onnx", "d.table.json"])
def test_ranges_by_hand_are_not_overwritten(table, tmp_path, refused, name):
    ranges = tmp_path / name
    ranges.write_text("images: 1.25\n")
    arguments = ["build", MODEL, table, "-o", tmp_path / "d.engine", "--dynamic-ranges", ranges]
    assert f"cannot write '{ranges}': it is read as well; give another name" in refused(*arguments)
    assert ranges.read_text() == "images: 1.25\n" and [*tmp_path.iterdir()] == [ranges]


def test_a_network_that_int8_does_not_make_faster_gets_one_line(table, tmp_path, capsys):
    command = ["build", MODEL, table, "-o", tmp_path / "d.engine", "--target rtx --keep-float /fc/*"]
    succeeds(*command)
    printed = capsys.readouterr()
    assert "weighted layers in INT8 0 of 9" in " ".join(printed.out.replace("│", " ").split())
    assert "--keep-int8 '*'" in printed.err and len(printed.err.splitlines()) == 1
    succeeds(*command, "--no-fp16")
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "weighted layers in INT8 8 of 9" in " ".join(printed.out.replace("│", " ").split())


def test_who_builds_a_float_model_of_16_bits_is_told_of_nothing(table, tmp_path, monkeypatch, capsys):
    """It is in FP16 around INT8, as is a quantized one that was made so."""
    monkeypatch.chdir(tmp_path)
    succeeds("quantize", MODEL, table, "-o half.onnx --float16")
    build = ["--target rtx --compute-capability 8.6 -o half.engine"]
    succeeds("build half.onnx", *build)
    assert IN_FP32 not in capsys.readouterr().err
    g = Shaped(quantized=False)
    weights = g.constant(np.full((8, 8), 0.5, np.float16))
    model = g.model({"x": ["N", 8]}, g.op("MatMul", ["x", weights], "product"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, "half.onnx")
    np.save("x.npy", np.ones((4, 8), np.float16))
    succeeds("build half.onnx x.npy", *build)
    assert IN_FP32 not in capsys.readouterr().err


def test_a_name_too_long_for_the_files_beside_it(tmp_path, refused):
    """It is known before the calibration."""
    output = tmp_path / ("a" * 250)
    error = refused("build", MODEL, "nowhere.npz -o", output)
    assert f"cannot write '{output}.float.onnx': File name too long; choose another place" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("arguments", "told"), [((), True), (("--profile", "x=1x5x8,2x5x8,4x5x8"), False)])
def test_inputs_that_have_the_sizes_of_samples_are_named(
    arguments, told, tmp_path, monkeypatch, capsys, as_json
):
    monkeypatch.chdir(tmp_path)
    g = Shaped(quantized=False)
    weights = g.constant(np.full((8, 8), 0.5, np.float32))
    onnx.save(g.model({"x": ["N", "T", 8]}, g.op("MatMul", ["x", weights], "product")), "m.onnx")
    np.save("x.npy", np.random.default_rng(0).standard_normal((4, 5, 8)).astype(np.float32))
    command = ["build m.onnx x.npy --target rtx --compute-capability 8.6 -o m.engine"]
    succeeds(*command, *arguments)
    assert ("input 'x' takes" in (said := capsys.readouterr().err)) == ("'x=MIN,OPT,MAX'" in said) == told
    shapes = as_json(*command, *arguments)["profiles"][0]["x"]
    assert [shapes[end] for end in ("min", "max")] == [[1, 5, 8], [32 if told else 4, 5, 8]]
