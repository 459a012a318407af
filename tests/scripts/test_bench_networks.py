"""What bench_networks is made of: samples, layers in INT8, results of several runs, and the table."""

import json

import bench_networks
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from networks_bench.float16 import half_layers, round_every_tensor
from networks_bench.tools import feeds_of
from onnx import TensorProto, helper

import trtint8

TOOLS = ["trtint8", "ONNX Runtime"]


def result(sqnr_db, **change):
    return {"sqnr_db": sqnr_db, "int8": 2, "layers": 3, "processor": 1.25, "peak": 100.4, **change}


def model(path, shape):
    """A convolution, and a product of two activations."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["y"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["y", "t"], ["z"], name="product"),
    ]
    weights = np.random.default_rng(0).normal(size=(16, 16, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return str(path)


@pytest.fixture
def network(tmp_path):
    model(tmp_path / "model.onnx", ["N", 16, 8, 8])
    for seed, name in enumerate(("calib", "held")):
        samples = np.random.default_rng(seed).normal(size=(5, 16, 8, 8)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=samples)
    return tmp_path


@pytest.mark.parametrize(
    ("shape", "expected"), [((5, 2), [(2, 2), (2, 2), (1, 2)]), ((3, 2, 1), [(2, 1)] * 3)]
)
def test_samples_are_read_in_batches_or_as_whole_inputs(tmp_path, shape, expected):
    path = model(tmp_path / "model.onnx", ["N", 2])
    samples = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.savez(tmp_path / "calib.npz", x=samples, labels=np.zeros(9))
    feeds = list(feeds_of(path, str(tmp_path / "calib.npz"), 2))
    assert [feed["x"].shape for feed in feeds] == expected
    assert all(list(feed) == ["x"] for feed in feeds)
    np.testing.assert_array_equal(np.concatenate([feed["x"].ravel() for feed in feeds]), samples.ravel())


def test_layers_in_int8_have_two_dequantized_operands(network):
    path, quantized = network / "model.onnx", network / "int8.onnx"
    table = trtint8.calibrate(path, np.load(network / "calib.npz")["x"], progress=False)
    for keep_float, expected in (([], (2, 2)), (["product"], (1, 2))):
        onnx.save(trtint8.quantize(path, table, keep_float=keep_float), quantized)
        assert bench_networks.int8_layers(str(quantized)) == expected
    assert bench_networks.int8_layers(str(path)) == (0, 2)


def test_what_is_held_in_fp16_is_rounded_and_overflows(tmp_path):
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
            helper.make_node("Mul", ["p", "large"], ["q"], name="enlarge"),
            helper.make_node("Div", ["q", "large"], ["y"], name="back"),
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)],
        [
            onnx.numpy_helper.from_array(np.float16(10) * np.eye(8, dtype=np.float16), "w"),
            onnx.numpy_helper.from_array(np.float16(3000), "large"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "half.onnx")
    round_every_tensor(str(tmp_path / "half.onnx"), str(tmp_path / "rounded.onnx"))
    x = np.array([[1.001, 2.183, 2.185, -9, 6e-8, 0.1, 0, 1]], np.float16)
    found = ort.InferenceSession(tmp_path / "rounded.onnx").run(None, {"x": x})[0]
    with np.errstate(over="ignore"):
        expected = x * np.float16(10) * np.float16(3000) / np.float16(3000)
    assert np.isinf(expected).sum() == 3
    np.testing.assert_array_equal(found, expected)
    assert half_layers(str(tmp_path / "half.onnx"), ["MatMul", "Conv"]) == 1
    assert half_layers(str(tmp_path / "rounded.onnx"), ["MatMul"]) == 0


@pytest.mark.slow
def test_a_network_is_measured_and_a_failure_is_a_result(network):
    measured = bench_networks.measure(network, "trtint8", None)
    assert (measured["int8"], measured["layers"]) == (2, 2)
    assert 25 < measured["sqnr_db"] < 60
    assert measured["processor"] > 0
    half = bench_networks.measure(network, "trtint8 FP16", None)
    assert (half["int8"], half["fp16"], half["layers"]) == (0, 2, 2)
    assert 55 < half["sqnr_db"] < 80
    assert measured["peak"] > 20
    (network / "model.onnx").write_bytes(b"no model")
    assert bench_networks.measure(network, "trtint8", None).keys() == {"failed"}


def test_later_lines_replace_results_and_add_tools(tmp_path):
    file = tmp_path / "results.jsonl"
    assert bench_networks.read(file) == {}
    lines = [{"a": 1, "b": 2}, {"b": 3}, {"c": 4}]
    file.write_text("".join(json.dumps({"network": "n", "results": line}) + "\n" for line in lines))
    assert bench_networks.read(file) == {"n": {"a": 1, "b": 3, "c": 4}}


def test_a_table_has_medians_and_failures():
    results = {
        "b": {"trtint8": result(30.0), "ONNX Runtime": {"failed": "ValueError: no"}},
        "a": {"trtint8": result(20.0, peak=200), "ONNX Runtime": result(10.0)},
        "c": {"trtint8": result(27.0)},
    }
    table, failed = bench_networks.markdown(results, TOOLS).split("\n\n")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    headings = [f"{tool} {figure}" for figure in ("SQNR", "INT8", "s", "MiB") for tool in TOOLS]
    assert cells[0] == ["network", *headings]
    assert cells[2:] == [
        ["a", "20.0", "10.0", "2 of 3", "2 of 3", "1.2", "1.2", "200", "100"],
        ["b", "30.0", "fails", "2 of 3", "", "1.2", "", "100", ""],
        ["c", "27.0", "", "2 of 3", "", "1.2", "", "100", ""],
        ["succeeded, of 3", "3", "1", *[""] * 6],
        ["median of 1 with all", "20.0", "10.0", "", "", "1.2", "1.2", "200", "100"],
    ]
    assert failed == "- b, ONNX Runtime: ValueError: no"
