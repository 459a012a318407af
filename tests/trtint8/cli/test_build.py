"""The verb, on TensorRT for RTX."""

import json

import numpy as np
import onnx
import pytest

from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped, conv_relu_conv
from trtint8.cli import build
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL

pytestmark = pytest.mark.usefixtures("rtx")

MODEL = str(DEMO_MODEL)


def test_build_from_a_table(table, tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    engine = tmp_path / "d.engine"
    profile = "images=1x1x8x8,4x1x8x8,16x1x8x8"
    arguments = ["build", MODEL, table, "-o", str(engine), "--target", "rtx", "--profile", profile, "--json"]
    assert main(arguments) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["profiles"][0]["images"]["max"] == [16, 1, 8, 8]
    assert engine.stat().st_size > 10_000


def test_who_leaves_sizes_to_the_samples_is_told_of_it(tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    model, data, engine = (str(tmp_path / name) for name in ("m.onnx", "data.npz", "m.engine"))
    onnx.save(conv_relu_conv(quantized=False, size=("height", 16)), model)
    np.savez(data, images=np.random.default_rng(0).standard_normal((4, 3, 24, 16)).astype(np.float32))
    command = ["build", model, data, "-o", engine, "--target", "rtx", "--compute-capability", "8.6"]
    assert main([*command, "--json"]) == 0
    output = capsys.readouterr()
    shapes = json.loads(output.out)["profiles"][0]["images"]
    assert [shapes[end] for end in ("min", "max")] == [[1, 3, 24, 16], [32, 3, 24, 16]]
    told = "input 'images' takes samples of the sizes that the calibration samples had; --profile 'images=MIN"
    assert main(command) == 0
    assert told in capsys.readouterr().err
    assert main([*command, "--profile", "images=1x3x8x16,1x3x8x16,1x3x8x16"]) == 0
    assert told not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["x"], "input 'x' takes"),
        (["x", "y"], "inputs 'x' and 'y' take"),
        (["x", "y", "z"], "inputs 'x', 'y' and 'z' take"),
        (["x", "y", "z", "u"], "inputs 'x', 'y', 'z' and 'u' take"),
        (["x", "y", "z", "u", "v"], "input 'x' and 4 others take"),
    ],
)
def test_inputs_in_words(names, words):
    assert build._listed(names) == words


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


@pytest.mark.parametrize(
    ("arguments", "told"), [((), True), (("--fp16",), False), (("--no-fp16",), False), (("--json",), False)]
)
def test_who_builds_without_fp16_is_told_of_it(arguments, told, table, tmp_path, capsys):
    command = ["build", MODEL, table, "-o", str(tmp_path / "d.engine"), "--target", "rtx"]
    assert main([*command, *arguments]) == 0
    said = (
        "layers outside INT8 are in FP32; --fp16 puts them into FP16, and with them INT8 layers that are "
        "estimated to be faster in FP16; --keep-int8 '*' keeps those in INT8\n"
    )
    assert (said in capsys.readouterr().err) == told


def test_who_builds_with_fp16_is_told_of_layers_that_it_takes_out_of_int8(table, tmp_path, capsys):
    command = ["build", MODEL, table, "-o", str(tmp_path / "d.engine"), "--target", "rtx", "--fp16"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "with --fp16, 8 layers are in FP16 that could be in INT8, because INT8 is estimated" in printed.err
    assert "weighted layers in INT8 1 of 9" in " ".join(printed.out.replace("│", " ").split())
    assert "TensorRT for RTX " in " ".join(printed.out.replace("│", " ").split())
    assert main([*command, "--keep-int8", "*"]) == 0
    printed = capsys.readouterr()
    assert "that could be in INT8" not in printed.err
    assert "weighted layers in INT8 9 of 9" in " ".join(printed.out.replace("│", " ").split())


@pytest.mark.parametrize("name", ["d.engine", "d.engine.json", "d.qdq.onnx", "d.table.json"])
def test_ranges_by_hand_are_not_overwritten(table, tmp_path, capsys, name):
    ranges = tmp_path / name
    ranges.write_text("images: 1.25\n")
    arguments = ["build", MODEL, table, "-o", str(tmp_path / "d.engine"), "--dynamic-ranges", str(ranges)]
    assert main(arguments) == 2
    assert f"cannot write '{ranges}': it is read as well; give another name" in capsys.readouterr().err
    assert ranges.read_text() == "images: 1.25\n" and [*tmp_path.iterdir()] == [ranges]


def test_who_builds_a_model_in_fp16_is_not_told_of_fp32(table, tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    half, engine = str(tmp_path / "half.onnx"), str(tmp_path / "half.engine")
    assert main(["quantize", MODEL, table, "-o", half, "--float16"]) == 0
    assert main(["build", half, "-o", engine, "--target", "rtx", "--compute-capability", "8.6"]) == 0
    assert "is in FP32" not in capsys.readouterr().err


def test_who_builds_a_float_model_of_16_bits_is_told_of_fp32(tmp_path, capsys):
    """Its inputs and outputs are in FP16 in the engine, too."""
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    g = Shaped(quantized=False)
    weights = g.constant(np.full((8, 8), 0.5, np.float16))
    model = g.model({"x": ["N", 8]}, g.op("MatMul", ["x", weights], "product"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, tmp_path / "half.onnx")
    np.save(tmp_path / "x.npy", np.ones((4, 8), np.float16))
    command = ["build", str(tmp_path / "half.onnx"), str(tmp_path / "x.npy"), "--target", "rtx"]
    assert main([*command, "-o", str(tmp_path / "half.engine")]) == 0
    assert "layers outside INT8 are in FP32; --fp16 puts them" in capsys.readouterr().err


def test_a_name_too_long_for_the_files_beside_it(tmp_path, capsys):
    """It is known before the calibration."""
    output = tmp_path / ("a" * 250)
    assert main(["build", MODEL, "nowhere.npz", "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert f"cannot write '{output}.qdq.onnx': File name too long; choose another place" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("arguments", "told"), [((), True), (("--profile", "x=1x5x8,2x5x8,4x5x8"), False)])
def test_inputs_that_have_the_sizes_of_samples_are_named(arguments, told, tmp_path, capsys):
    g = Shaped(quantized=False)
    weights = g.constant(np.full((8, 8), 0.5, np.float32))
    onnx.save(g.model({"x": ["N", "T", 8]}, g.op("MatMul", ["x", weights], "product")), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 5, 8)).astype(np.float32))
    command = ["build", str(tmp_path / "m.onnx"), str(tmp_path / "x.npy"), "--target", "rtx"]
    assert main([*command, "-o", str(tmp_path / "m.engine"), *arguments]) == 0
    said = "input 'x' takes samples of the sizes that the calibration samples had; --profile 'x=MIN,OPT,MAX'"
    assert (said in capsys.readouterr().err) == told
