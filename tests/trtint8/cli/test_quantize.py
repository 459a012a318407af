"""The verb, and the model that it writes."""

import json

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.tables.table import CalibrationTable
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.equalization.layers import only_one_layer, two_layers
from tests.trtint8.onnx_models import Shaped
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.quantization.targets import TARGETS

MODEL = str(DEMO_MODEL)


def test_calibrate_quantize_validate(files, table, tmp_path, prints, as_json):
    model = str(tmp_path / "q.onnx")
    assert "fuses into" in prints("quantize", MODEL, table, "-o", model, "--explain")
    result = as_json("validate", model, files / "heldout.npz", "--reference", MODEL)
    assert result["reference_top1"]["count"] == 594
    assert abs(result["top1"]["count"] - 594) <= 2


def test_configs_are_shown_and_read_again_as_a_table(table, tmp_path, prints):
    model, ranges = str(tmp_path / "q.onnx"), tmp_path / "configs.json"
    printed = prints("quantize", MODEL, table, "-o", model, "--explain --configs")
    assert all(word in printed for word in ("overlapped", "along", "axis 0", "half", "even"))
    ranges.write_text(prints("quantize", MODEL, table, "-o", model, "--json --configs"))
    read, given = CalibrationTable.load(ranges), CalibrationTable.load(table)
    assert read.amax["images"] == pytest.approx(given.amax["images"])
    succeeds("quantize", MODEL, ranges, "-o", tmp_path / "again.onnx")
    scales = [
        {one.name: onnx.numpy_helper.to_array(one).tolist() for one in onnx.load(path).graph.initializer}
        for path in (model, str(tmp_path / "again.onnx"))
    ]
    assert scales[0] == scales[1]
    assert main(["quantize", MODEL, table, "-o", model, "--configs"]) == 2


def test_warnings_that_are_kept_name_options_as_those_that_are_shown(table, tmp_path, capsys):
    large = tmp_path / "large.json"
    CalibrationTable(dict.fromkeys(CalibrationTable.load(table).amax, 1e6)).save(large)
    command = ["quantize", MODEL, large, "--target tensorrt-11 --float16"]
    succeeds(*command, "-o", tmp_path / "q.onnx", "--json")
    printed = capsys.readouterr()
    kept = [line for line in json.loads(printed.out)["warnings"] if "'images'" in line]
    assert kept and all("--float32-io" in line and f"warning: {line}" in printed.err for line in kept)


@pytest.fixture
def uneven(tmp_path, monkeypatch):
    """A model with an outlier channel, its samples and its table."""
    monkeypatch.chdir(tmp_path)
    onnx.save(two_layers(), "m.onnx")
    np.savez("d.npz", x=np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32))
    succeeds("calibrate m.onnx d.npz -o m.json --method mse")
    return ["quantize", "m.onnx", "m.json", "-o", "q.onnx"]


def test_equalize_writes_the_float_model_and_its_table_beside_the_output(uneven, tmp_path, prints, as_json):
    printed = prints(*uneven, "--equalize d.npz --explain")
    assert "'first' to 'second'" in printed and "'second_out' is an output of the model" in printed
    written = (tmp_path / "q.onnx").read_bytes()
    succeeds("quantize q.float.onnx q.table.json -o q.onnx")
    assert (tmp_path / "q.onnx").read_bytes() == written
    assert trtint8.CalibrationTable.load("q.table.json").method == "mse"
    inputs = {"x": np.load("d.npz")["x"]}
    in_python = trtint8.quantize("m.onnx", "m.json", equalize=inputs)
    same, lost, kept = (
        trtint8.validate(one, inputs, reference="m.onnx", metrics=["sqnr"]).outputs[0].sqnr_db
        for one in ("q.float.onnx", trtint8.quantize("m.onnx", "m.json"), in_python)
    )
    assert same > 100 and kept > lost + 10
    found = as_json(*uneven, "--equalize d.npz --limit 32")["equalization"]
    assert found["forms"][0]["description"] == "'first' to 'second'"
    assert found["float_model"] == "q.float.onnx"
    assert list(found["skipped"]) == ["second"]
    assert as_json(*uneven)["equalization"] is None


def test_a_file_that_is_read_or_of_no_earlier_run_is_not_overwritten(uneven, tmp_path, refused):
    table = tmp_path / "q.table.json"
    succeeds("calibrate m.onnx d.npz -o q.table.json")
    before = table.read_bytes()
    said = refused("quantize m.onnx q.table.json -o q.onnx --equalize d.npz")
    assert "'q.table.json': it is read as well" in said
    assert table.read_bytes() == before and not (tmp_path / "q.onnx").exists()
    table.write_bytes(b"mine")
    succeeds(*uneven)
    said = refused(*uneven, "--equalize d.npz")
    assert "cannot write 'q.table.json': no earlier run" in said
    assert table.read_bytes() == b"mine"
    table.unlink()
    for _ in range(2):
        succeeds(*uneven, "--equalize d.npz --limit 32")


def test_a_model_without_channels_to_equalize_is_quantized_as_it_is(uneven, capsys):
    onnx.save(only_one_layer(), "one.onnx")
    succeeds("calibrate one.onnx d.npz -o one.json")
    quantize = ["quantize one.onnx one.json -o"]
    succeeds(*quantize, "plain.onnx")
    capsys.readouterr()
    succeeds(*quantize, "q.onnx --equalize d.npz --json")
    out, said = capsys.readouterr()
    assert said.count("\n") == 1 and "'one.onnx'" in said and "'only_out' is an output of the model" in said
    assert json.loads(out)["equalization"]["forms"] == []
    assert onnx.load("q.onnx") == onnx.load("plain.onnx")
    assert CalibrationTable.load("q.table.json") == CalibrationTable.load("one.json")
    succeeds("quantize q.float.onnx q.table.json -o plain.onnx")
    assert onnx.load("q.onnx") == onnx.load("plain.onnx")


def test_a_cache_serves_the_model_that_its_sidecar_names(uneven, tmp_path, capsys, refused):
    succeeds("table convert m.json m.cache")
    succeeds("quantize m.onnx m.cache -o q.onnx")
    changed = onnx.load("m.onnx")
    tensor = changed.graph.initializer[0]
    weights = onnx.numpy_helper.to_array(tensor) + np.float32(1)
    tensor.CopyFrom(onnx.numpy_helper.from_array(weights, tensor.name))
    onnx.save(changed, "other.onnx")
    capsys.readouterr()
    for verb, name in (("quantize", "other.qdq.onnx"), ("build", "other.engine")):
        assert "the table is stale" in refused(verb, "other.onnx m.cache -o", name)
    (tmp_path / "m.cache.json").unlink()
    (tmp_path / "m.cache").write_text((tmp_path / "m.cache").read_text() + "strange: 3c010204\n")
    succeeds("quantize other.onnx m.cache -o q.onnx")
    assert "'strange' among them" in capsys.readouterr().err


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


def test_a_target_says_what_it_does_not_run_in_int8(upsampling, prints):
    printed = prints("quantize", *upsampling, "--target rtx --explain")
    assert "TensorRT for RTX has no INT8 kernel for it" in printed
    cells = [[cell.strip() for cell in line.split("│")] for line in printed.splitlines()]
    assert ["", "nodes in INT8", "1 of 2", ""] in cells
    assert ["", "target", "rtx", ""] in cells


@pytest.mark.parametrize(
    ("target", "count"), [([], 2), (["--target", "rtx", "--compute-capability", "8.9"], 1)]
)
def test_targets_as_json(upsampling, target, count, as_json):
    found = as_json("quantize", *upsampling, *target)
    assert found["target"] == (target[1] if target else "tensorrt")
    assert (found["nodes_in_int8"], found["nodes_that_multiply"]) == (count, 2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--target", "tpu"], "'tpu'"),
        (["--target="], ""),
        (["--target", "rtx", "--compute-capability", "7.5"], "compute capability 7.5"),
        (["--compute-capability", "8.6"], "add --target"),
        (["--keep-int8", "*"], "add --float16"),
        (["--limit", "3"], "add --equalize DATA"),
    ],
)
def test_options_that_make_no_sense(upsampling, options, named, tmp_path, capsys, refused):
    assert named in refused("quantize", *upsampling, *options)
    assert not (tmp_path / "q.onnx").exists()
    with pytest.raises(SystemExit):
        main(["quantize", "--help"])
    printed = "".join(capsys.readouterr().out.split())
    assert all(name in printed for name in TARGETS)


def test_the_form_of_a_target(upsampling, tmp_path):
    succeeds("quantize", *upsampling, "--target rtx --float16 --keep-int8 *")
    operators = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    assert operators.count("Mul") == 1
    written = trtint8.quantize(*upsampling[:2], target="rtx", float16=True, keep_int8=["*"])
    assert [node.op_type for node in written.graph.node] == operators


def test_what_would_be_slower_in_int8_is_fp16(upsampling, tmp_path, capsys):
    succeeds("quantize", *upsampling, "--target rtx --float16")
    printed, said = capsys.readouterr()
    operators = {node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert "QuantizeLinear" not in operators
    assert "slower in INT8, so in FP16" in printed
    assert said.startswith("warning: ") and "'rtx'" in said and "--keep-int8" in said
