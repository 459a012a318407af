"""A small graph for each placement rule."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import Edge, place
from trtint8.quantization.qdq import insert_qdq, weight_scale

RNG = np.random.default_rng(0)


def _model(nodes, weights, shape=("n", 4, 8, 8), outputs=("y",)):
    graph = helper.make_graph(
        [
            helper.make_node(op, inputs, [output], output, **attributes)
            for op, inputs, output, attributes in nodes
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * len(shape)) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


W = {"w": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32)}
PAD = {"pads": [1, 1, 1, 1]}


def _conv(source, output):
    return ("Conv", [source, "w"], output, PAD)


def _placed(model, **options):
    return place(prepare(load_model(model)).graph_model, **options)


def test_conv_and_relu_have_no_pair_between():
    placement = _placed(_model([_conv("x", "a"), ("Relu", ["a"], "b", {}), _conv("b", "y")], W))
    assert placement.activations == (Edge("a", 0, "x"), Edge("y", 0, "b"))
    assert placement.weights == (Edge("a", 1, "w", 0), Edge("y", 1, "w", 0))
    assert placement.shared == ()


def test_the_skip_branch_of_a_residual_gets_a_pair():
    placement = _placed(_model([_conv("x", "a"), ("Add", ["a", "x"], "y", {})], W))
    assert placement.activations == (Edge("a", 0, "x"), Edge("y", 1, "x"))


def test_of_two_convolutions_the_earlier_ones_output_gets_the_pair():
    placement = _placed(_model([_conv("x", "a"), _conv("x", "b"), ("Add", ["b", "a"], "y", {})], W))
    assert Edge("y", 1, "a") in placement.activations
    assert Edge("y", 0, "b") not in placement.activations


def test_concat_shares_one_scale_when_its_readers_are_int8():
    weights = {"w": W["w"], "v": RNG.standard_normal((4, 8, 1, 1)).astype(np.float32)}
    nodes = [
        _conv("x", "a"),
        ("Relu", ["x"], "b", {}),
        ("Concat", ["a", "b"], "c", {"axis": 1}),
        ("Conv", ["c", "v"], "y", {}),
    ]
    placement = _placed(_model(nodes, weights))
    assert [edge for edge in placement.activations if edge.node == "c"] == [
        Edge("c", 0, "a"),
        Edge("c", 1, "b"),
    ]
    assert [set(group) for group in placement.shared] == [{"a", "b", "c"}]
    open_ended = _placed(_model(nodes, weights, outputs=("y", "c")))
    assert not [edge for edge in open_ended.activations if edge.node == "c"]


@pytest.mark.parametrize(("value", "shared"), [(0.0, True), (1.0, False)])
def test_pools_and_zero_pads_pass_the_scale_through(value, shared):
    weights = W | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "value": np.float32(value)}
    pool = ("MaxPool", ["x"], "p", {"kernel_shape": [3, 3], "strides": [1, 1], **PAD})
    nodes = [pool, ("Pad", ["p", "pads", "value"], "q", {}), _conv("q", "a"), _conv("x", "y")]
    placement = _placed(_model(nodes, weights, outputs=("y", "a")))
    assert bool(placement.shared) is shared


@pytest.mark.parametrize(("trans_b", "axis"), [(0, 1), (1, 0)])
def test_gemm_weights_have_a_scale_an_output_channel(trans_b, axis):
    weight = RNG.standard_normal((5, 4) if trans_b else (4, 5)).astype(np.float32)
    placement = _placed(_model([("Gemm", ["x", "w"], "y", {"transB": trans_b})], {"w": weight}, ("n", 4)))
    assert placement.weights == (Edge("y", 1, "w", axis),)


def test_matmul_of_two_activations():
    nodes = [("Transpose", ["x"], "t", {"perm": [0, 1, 3, 2]}), ("MatMul", ["x", "t"], "y", {})]
    placement = _placed(_model(nodes, {}))
    assert placement.activations == (Edge("y", 0, "x"), Edge("y", 1, "t"))
    assert placement.shared == (("x", "t"),)


def test_keep_float():
    model = _model([_conv("x", "a"), _conv("a", "y")], W)
    assert _placed(model, keep_float=["a"]).quantized_nodes == ("y",)
    with pytest.raises(ModelError, match="'z\\*' matches no node"):
        _placed(model, keep_float=["z*"])


def test_a_model_without_weighted_nodes_is_refused():
    for patterns in ({}, {"keep_float": ["*"]}, {"keep_int8": ["*"]}):
        with pytest.raises(ModelError, match="nothing to run in INT8"):
            _placed(_model([("Relu", ["x"], "y", {})], {}), **patterns)


def test_weight_scales():
    weights = np.array([[1.27, -2.54], [0, 0]], np.float32)
    np.testing.assert_allclose(weight_scale(weights, 0), [0.02, 1.0], rtol=1e-6)
    assert weight_scale(weights, None) == pytest.approx(0.02)


def test_a_tensor_that_was_always_zero_is_warned_about():
    prepared = prepare(load_model(_model([_conv("x", "y")], W)))
    with pytest.warns(UserWarning, match="the table has a range of 0 for tensor 'x', as for what is zero"):
        insert_qdq(prepared.graph_model, place(prepared.graph_model), {"x": 0.0})


def test_the_quantized_model_computes_what_numpy_does():
    weight, bias = RNG.standard_normal((4, 5)).astype(np.float32), RNG.standard_normal(5).astype(np.float32)
    model = _model([("Gemm", ["x", "w", "b"], "y", {})], {"w": weight, "b": bias}, ("n", 4))
    quantized = trtint8.quantize(model, CalibrationTable({"x": 2.0}))
    onnx.checker.check_model(quantized, full_check=True)
    assert [value.name for value in (*quantized.graph.input, *quantized.graph.output)] == ["x", "y"]
    assert quantized.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"

    x = RNG.standard_normal((6, 4)).astype(np.float32) * 2
    scale, scales = np.float32(2 / 127), np.abs(weight).max(axis=0) / np.float32(127)
    fake_x = np.clip(np.round(x / scale), -128, 127) * scale
    fake_w = np.clip(np.round(weight / scales), -128, 127) * scales
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(quantized.SerializeToString(), options, ["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], fake_x @ fake_w + bias, rtol=1e-5, atol=1e-5)


def test_batch_normalization_is_folded_with_and_without_a_bias():
    norm = {
        name: RNG.uniform(0.5, 2, 4).astype(np.float32) for name in ("gamma", "beta", "mean", "var", "bias")
    }
    for inputs in (["x", "w"], ["x", "w", "bias"]):
        nodes = [
            ("Conv", inputs, "a", PAD),
            ("BatchNormalization", ["a", "gamma", "beta", "mean", "var"], "y", {}),
        ]
        model = _model(nodes, W | norm)
        prepared = prepare(load_model(model))
        assert [node.op_type for node in prepared.graph_model.graph] == ["Conv"]
        x = RNG.standard_normal((2, 4, 8, 8)).astype(np.float32)
        before, after = (
            ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
                ["y"], {"x": x}
            )[0]
            for m in (model, trtint8.models.serialization.to_proto(prepared.graph_model))
        )
        np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "is empty"), (b"garbage" * 50, "not a"), (None, "not a"), ("missing", "no such file")],
)
def test_unusable_models(data, words, tmp_path):
    from trtint8.data import DEMO_MODEL

    path = tmp_path / "m.onnx"
    if data == "missing":
        model = _model([_conv("x", "y")], W)
        onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
        (tmp_path / "m.data").unlink()
    else:
        path.write_bytes(DEMO_MODEL.read_bytes()[:100_000] if data is None else data)
    with pytest.raises(ModelError, match=words):
        load_model(path)


def test_the_fingerprint_does_not_depend_on_where_weights_lie(tmp_path):
    model = _model([_conv("x", "y")], W)
    inline = load_model(model).fingerprint
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert load_model(tmp_path / "m.onnx").fingerprint == inline
    assert load_model(_model([_conv("x", "y")], {"w": W["w"] * 2})).fingerprint != inline


TIED = RNG.standard_normal((8, 8)).astype(np.float32)


def _embedding(reader, **attributes):
    """A Gather of the rows of ``w``, and a layer that multiplies them by ``w``."""
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["rows"], "embedding"),
        helper.make_node(reader, ["rows", "w"], ["y"], "head", **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [onnx.numpy_helper.from_array(TIED, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("reader", "attributes", "axis"), [("MatMul", {}, 1), ("Gemm", {"transB": 1}, 0), ("Gemm", {}, 1)]
)
@pytest.mark.parametrize("method", ["minmax", "auto"])
def test_a_weight_that_is_an_embedding_as_well_has_one_scale_per_channel(reader, attributes, axis, method):
    model, feeds = _embedding(reader, **attributes), [{"ids": np.arange(4)}, {"ids": np.arange(4, 8)}]
    table = trtint8.calibrate(model, feeds, method=method)
    quantized = trtint8.quantize(model, table)
    scales = {one.name: onnx.numpy_helper.to_array(one) for one in quantized.graph.initializer}
    assert scales["rows_scale"].shape == ()
    np.testing.assert_allclose(scales["w_scale"], np.abs(TIED).max(axis=1 - axis) / 127, rtol=1e-6)
    (result,) = trtint8.validate(quantized, feeds, reference=model).outputs
    assert result.sqnr_db > 30


def test_layers_without_weights_stay_in_float():
    """An adapter of rank 0, as it is exported where a network has none."""
    weights = {
        "w": RNG.standard_normal((8, 8)).astype(np.float32),
        "down": np.zeros((8, 0), np.float32),
        "up": np.zeros((0, 8), np.float32),
    }
    nodes = [
        ("MatMul", ["x", "w"], "a", {}),
        ("MatMul", ["x", "down"], "b", {}),
        ("MatMul", ["b", "up"], "c", {}),
        ("Add", ["a", "c"], "y", {}),
    ]
    model = _model(nodes, weights, shape=("n", 8))
    assert _placed(model).quantized_nodes == ("a",)
    data = RNG.standard_normal((8, 8)).astype(np.float32)
    table = trtint8.calibrate(model, data)
    quantized = trtint8.quantize(model, table)
    (result,) = trtint8.validate(quantized, data, reference=model).outputs
    assert result.sqnr_db > 30
