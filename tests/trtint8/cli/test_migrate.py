"""The verb: a calibration cache becomes a Q/DQ model, and is proved to be the same."""

import json

import numpy as np
import onnx
import pytest

from calibrators.tables.table import CalibrationTable
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.refused_models import refused_model
from trtint8 import calibrate
from trtint8.cli.main import main
from trtint8.cli.migrate import _compared
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model

pytestmark = pytest.mark.usefixtures("rtx")


# The command.
def migrated(arguments, capsys):
    status = main(["migrate", str(DEMO_MODEL), *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else None, captured.err


def test_migrate_proves_its_result(cache, tmp_path, capsys, refused):
    status, found, _ = migrated([cache, "-o", tmp_path / "q.onnx"], capsys)
    assert status == 0
    assert found["in_int8"] == found["weighted_layers"] == 9
    assert load_model(tmp_path / "q.onnx").is_quantized
    assert refused("migrate", tmp_path / "q.onnx", cache, "-o", tmp_path / "again.onnx").startswith(
        "trtint8 migrate: 'q.onnx' holds Q/DQ pairs already"
    )


def test_gaps_are_filled_only_when_asked(cache, tmp_path, capsys):
    table = CalibrationTable.load(cache)
    gap = table.without(["/block1/relu?/Relu_output_0"]).save(tmp_path / "gap.cache")
    status, _, error = migrated([gap, "-o", tmp_path / "q.onnx"], capsys)
    assert status == 2 and "2 tensors" in error and "--fill" in error
    assert not (tmp_path / "q.onnx").exists()
    status, found, _ = migrated([gap, "-o", tmp_path / "q.onnx", "--fill"], capsys)
    assert (status, len(found["proposals"]), found["in_int8"]) == (0, 2, 9)
    gap = table.without(["images"]).save(tmp_path / "gap.cache")  # which nothing fills
    status, _, error = migrated([gap, "-o", tmp_path / "q.onnx", "--fill"], capsys)
    assert status == 2 and "1 tensor that needs one: 'images'" in error


@pytest.mark.parametrize(
    ("factor", "words"),
    [(4.0, "4 times"), (1.5, "1.5 times"), (1.25, "25 % larger than"), (1.0003, "0.03 % larger than")],
)
def test_how_much_larger_a_scale_becomes(factor, words):
    assert _compared(factor) == words


def test_a_proof_that_fails_leaves_what_was_there(tmp_path, refused):
    model, output = tmp_path / "model.onnx", tmp_path / "q.onnx"
    onnx.save(refused_model(), model)
    images = np.random.default_rng(0).random((4, 3, 8, 8), np.float32)
    cache = calibrate(model, {"x": images}).save(tmp_path / "model.cache")
    arguments = ["migrate", str(model), str(cache), "-o", str(output)]
    assert "NonZero" in refused(*arguments) and not output.exists()
    output.write_text("before")
    assert main(arguments) == 2
    assert output.read_text() == "before"
    succeeds(*arguments, "--no-proof")
    assert load_model(output).is_quantized


def test_migrate_counts_layers_as_quantize_does(cache, tmp_path, prints, as_json):
    arguments = (DEMO_MODEL, cache, "-o", tmp_path / "q.onnx", "--target tensorrt-11")
    printed = " ".join(prints("migrate", *arguments).replace("│", " ").split())
    quantized = as_json("quantize", *arguments)
    counts = quantized["nodes_in_int8"], quantized["nodes_that_multiply"]
    assert counts == (8, 9)
    assert "weighted layers in INT8 {} of {}".format(*counts) in printed and "'/fc/Gemm'" in printed


def test_what_is_outside_int8_becomes_fp16_where_asked(cache, tmp_path, capsys):
    output, half = tmp_path / "q.onnx", onnx.TensorProto.FLOAT16
    for arguments, layers in (
        (["--target", "tensorrt-11"], 8),
        (["--target", "rtx", "--keep-int8", "*"], 9),
    ):
        status, found, _ = migrated([cache, "-o", output, "--float16", *arguments], capsys)
        graph = onnx.load(output).graph
        assert (status, found["in_int8"], found["weighted_layers"]) == (0, layers, 9)
        assert len(found["float_nodes"]) == 9 - layers
        assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {1}
        assert half in {constant.data_type for constant in graph.initializer}
    status, _, error = migrated([cache, "-o", output, "--keep-int8", "*"], capsys)
    assert status == 2 and "--float16" in error
