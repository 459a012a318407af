"""The verb, and the model that it writes."""

import json

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.tables.table import CalibrationTable
from tests.trtint8.equalization.layers import only_one_layer, two_layers
from tests.trtint8.onnx_models import Shaped
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.quantization.targets import TARGETS

MODEL = str(DEMO_MODEL)


def test_calibrate_quantize_validate(files, table, tmp_path, capsys):
    model = str(tmp_path / "q.onnx")
    assert main(["quantize", MODEL, table, "-o", model, "--explain"]) == 0
    assert "fuses into" in capsys.readouterr().out
    assert main(["validate", model, str(files / "heldout.npz"), "--reference", MODEL, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["reference_top1"]["count"] == 594
    assert abs(result["top1"]["count"] - 594) <= 2


def test_configs_are_shown_and_read_again_as_a_table(table, tmp_path, capsys):
    model, ranges = str(tmp_path / "q.onnx"), tmp_path / "configs.json"
    assert main(["quantize", MODEL, table, "-o", model, "--explain", "--configs"]) == 0
    printed = capsys.readouterr().out
    assert "overlapped" in printed and "along axis 0" in printed and "half even" in printed
    assert main(["quantize", MODEL, table, "-o", model, "--json", "--configs"]) == 0
    ranges.write_text(capsys.readouterr().out)
    read, given = CalibrationTable.load(ranges), CalibrationTable.load(table)
    assert read.amax["images"] == pytest.approx(given.amax["images"])
    assert main(["quantize", MODEL, str(ranges), "-o", str(tmp_path / "again.onnx")]) == 0
    scales = [
        {one.name: onnx.numpy_helper.to_array(one).tolist() for one in onnx.load(path).graph.initializer}
        for path in (model, str(tmp_path / "again.onnx"))
    ]
    assert scales[0] == scales[1]
    assert main(["quantize", MODEL, table, "-o", model, "--configs"]) == 2


@pytest.fixture
def uneven(tmp_path):
    """A model with an outlier channel, its samples and its table."""
    onnx.save(two_layers(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32))
    paths = [str(tmp_path / name) for name in ("m.onnx", "m.json", "d.npz")]
    assert main(["calibrate", paths[0], paths[2], "-o", paths[1], "--method", "mse"]) == 0
    return paths


def test_equalize_writes_the_float_model_and_its_table_beside_the_output(uneven, tmp_path, capsys):
    model, table, data = uneven
    output = tmp_path / "q.onnx"
    assert main(["quantize", model, table, "-o", str(output), "--equalize", data, "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "'first' to 'second'" in printed and "'second_out' is an output of the model" in printed
    written = output.read_bytes()
    files = [str(tmp_path / name) for name in ("q.float.onnx", "q.table.json")]
    assert main(["quantize", *files, "-o", str(output)]) == 0
    assert output.read_bytes() == written
    assert trtint8.CalibrationTable.load(files[1]).method == "mse"
    inputs = {"x": np.load(data)["x"]}
    in_python = trtint8.quantize(model, table, equalize=inputs, progress=False)
    same, lost, kept = (
        trtint8.validate(one, inputs, reference=model, metrics=["sqnr"], progress=False).outputs[0].sqnr_db
        for one in (files[0], trtint8.quantize(model, table), in_python)
    )
    assert same > 100 and kept > lost + 10


def test_equalize_as_json(uneven, tmp_path, capsys):
    model, table, data = uneven
    arguments = ["quantize", model, table, "-o", str(tmp_path / "q.onnx"), "--json"]
    capsys.readouterr()
    assert main([*arguments, "--equalize", data, "--limit", "32"]) == 0
    found = json.loads(capsys.readouterr().out)["equalization"]
    assert found["forms"][0]["description"] == "'first' to 'second'"
    assert found["float_model"] == str(tmp_path / "q.float.onnx")
    assert list(found["skipped"]) == ["second"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["equalization"] is None


def test_a_file_that_is_read_is_not_overwritten(uneven, tmp_path, capsys):
    model, _, data = uneven
    table = tmp_path / "q.table.json"
    assert main(["calibrate", model, data, "-o", str(table)]) == 0
    before = table.read_bytes()
    assert main(["quantize", model, str(table), "-o", str(tmp_path / "q.onnx"), "--equalize", data]) == 2
    assert "q.table.json': it is read as well; give another name" in capsys.readouterr().err
    assert table.read_bytes() == before and not (tmp_path / "q.onnx").exists()


def test_a_file_that_is_not_of_an_earlier_run_is_not_lost(uneven, tmp_path, capsys):
    model, table, data = uneven
    arguments = ["quantize", model, table, "-o", str(tmp_path / "q.onnx")]
    beside = tmp_path / "q.table.json"
    beside.write_bytes(b"mine")
    assert main(arguments) == 0
    assert main([*arguments, "--equalize", data]) == 2
    assert f"cannot write '{beside}': no earlier run" in " ".join(capsys.readouterr().err.split())
    assert beside.read_bytes() == b"mine"
    beside.unlink()
    for _ in range(2):
        assert main([*arguments, "--equalize", data, "--limit", "32"]) == 0


def test_a_model_without_channels_to_equalize_is_quantized_as_it_is(uneven, tmp_path, capsys):
    _, _, data = uneven
    model, table = str(tmp_path / "one.onnx"), str(tmp_path / "one.json")
    onnx.save(only_one_layer(), model)
    assert main(["calibrate", model, data, "-o", table]) == 0
    plain, output = str(tmp_path / "plain.onnx"), str(tmp_path / "q.onnx")
    assert main(["quantize", model, table, "-o", plain]) == 0
    capsys.readouterr()
    assert main(["quantize", model, table, "-o", output, "--equalize", data, "--json"]) == 0
    out, said = capsys.readouterr()
    assert said.count("\n") == 1
    assert "nothing in 'one.onnx' can be equalized ('only_out' is an output of the model)" in said
    assert json.loads(out)["equalization"]["forms"] == []
    assert onnx.load(output) == onnx.load(plain)
    assert CalibrationTable.load(str(tmp_path / "q.table.json")) == CalibrationTable.load(table)
    again = ["quantize", str(tmp_path / "q.float.onnx"), str(tmp_path / "q.table.json"), "-o", plain]
    assert main(again) == 0
    assert onnx.load(output) == onnx.load(plain)


def test_options_of_data_need_equalization(uneven, tmp_path, capsys):
    model, table, _ = uneven
    assert main(["quantize", model, table, "-o", str(tmp_path / "q.onnx"), "--limit", "3"]) == 2
    assert "add --equalize DATA" in capsys.readouterr().err


def test_a_cache_serves_the_model_that_its_sidecar_names(uneven, tmp_path, capsys):
    model, table, _ = uneven
    cache, other, output = (str(tmp_path / name) for name in ("m.cache", "other.onnx", "q.onnx"))
    assert main(["table", "convert", table, cache]) == 0
    assert main(["quantize", model, cache, "-o", output]) == 0
    changed = onnx.load(model)
    weights = onnx.numpy_helper.to_array(changed.graph.initializer[0]) + np.float32(1)
    changed.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(weights, changed.graph.initializer[0].name)
    )
    onnx.save(changed, other)
    capsys.readouterr()
    for verb, name in (("quantize", "other.qdq.onnx"), ("build", "other.engine")):
        assert main([verb, other, cache, "-o", str(tmp_path / name)]) == 2
        assert "the table is stale: the model has the same tensors but its weights" in capsys.readouterr().err
    (tmp_path / "m.cache.json").unlink()
    (tmp_path / "m.cache").write_text((tmp_path / "m.cache").read_text() + "strange: 3c010204\n")
    assert main(["quantize", other, cache, "-o", output]) == 0
    error = capsys.readouterr().err
    assert (
        "('strange' among them) are not in the model, and the table does not say which model it was" in error
    )


@pytest.fixture
def upsampling(tmp_path):
    """A Conv and a ConvTranspose, and their table."""
    g = Shaped()
    conv = g.op("Conv", ["x", g.weights(8, 4, 3, 3)], "conv")
    onnx.save(
        g.model({"x": [1, 4, 8, 8]}, g.op("ConvTranspose", [conv, g.weights(8, 8, 2, 2)], "up")),
        tmp_path / "m.onnx",
    )
    trtint8.CalibrationTable({"x": 1.0, "conv_out": 1.0}).save(tmp_path / "t.json")
    return [str(tmp_path / "m.onnx"), str(tmp_path / "t.json"), "-o", str(tmp_path / "q.onnx")]


def test_a_target_says_what_it_does_not_run_in_int8(upsampling, capsys):
    assert main(["quantize", *upsampling, "--target", "rtx", "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "TensorRT for RTX has no INT8 kernel for it" in printed
    cells = [[cell.strip() for cell in line.split("│")] for line in printed.splitlines()]
    assert ["", "nodes in INT8", "1 of 2", ""] in cells
    assert ["", "target", "rtx", ""] in cells


@pytest.mark.parametrize(
    ("target", "count"), [([], 2), (["--target", "rtx", "--compute-capability", "8.9"], 1)]
)
def test_targets_as_json(upsampling, target, count, capsys):
    assert main(["quantize", *upsampling, *target, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == (target[1] if target else "tensorrt")
    assert (found["nodes_in_int8"], found["nodes_that_multiply"]) == (count, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "tpu"], "there is no target 'tpu'; use one of tensorrt, tensorrt-8.6, "),
        (["--target", "rtx", "--compute-capability", "7.5"], "has no INT8 for compute capability 7.5"),
        (["--compute-capability", "8.6"], "--compute-capability is that of a target's GPU; add --target"),
    ],
)
def test_targets_that_there_are_not(upsampling, options, message, capsys):
    assert main(["quantize", *upsampling, *options]) == 2
    assert message in capsys.readouterr().err


def test_the_form_of_a_target(upsampling, tmp_path, capsys):
    assert main(["quantize", *upsampling, "--target", "rtx", "--float16", "--keep-int8", "*"]) == 0
    operators = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    assert operators.count("Mul") == 1
    written = trtint8.quantize(*upsampling[:2], target="rtx", float16=True, keep_int8=["*"])
    assert [node.op_type for node in written.graph.node] == operators


def test_what_would_be_slower_in_int8_is_fp16(upsampling, tmp_path, capsys):
    assert main(["quantize", *upsampling, "--target", "rtx", "--float16"]) == 0
    printed, said = capsys.readouterr()
    operators = {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert "QuantizeLinear" not in operators
    assert "slower in INT8, so in FP16" in printed
    assert said == (
        "warning: INT8 would be slower than FP16 in all layers that target 'rtx' runs in INT8, so the whole "
        "model is FP16; 'trtint8 audit' shows why, and --keep-int8 quantizes layers all the same\n"
    )


def test_keep_int8_belongs_to_float16(upsampling, capsys):
    assert main(["quantize", *upsampling, "--keep-int8", "*"]) == 2
    assert "add --float16" in capsys.readouterr().err


def test_help_names_every_target(capsys):
    with pytest.raises(SystemExit):
        main(["quantize", "--help"])
    printed = "".join(capsys.readouterr().out.split())
    assert all(name in printed for name in TARGETS)


def test_an_empty_target_is_no_target(tmp_path, table, capsys):
    assert main(["quantize", MODEL, table, "-o", str(tmp_path / "q.onnx"), "--target="]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "q.onnx").exists()
