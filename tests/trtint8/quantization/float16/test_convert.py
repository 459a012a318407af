"""Models whose layers outside INT8 become FP16: types, casts, and what must stay in FP32."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.tables.table import CalibrationTable
from tests.trtint8 import onnx_models
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.quantization.float16.half_models import (
    FLOAT,
    HALF,
    built_for_rtx,
    convert,
    network,
    operators,
    run,
    types,
)
from trtint8.cli.main import main
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto
from trtint8.quantization.float16.convert import to_float16
from trtint8.quantization.float16.rounding import round_scale


def conv_relu_conv(quantized=True):
    return onnx.shape_inference.infer_shapes(onnx_models.conv_relu_conv(quantized))


def test_everything_outside_int8_becomes_fp16():
    model, kept = convert(conv_relu_conv())
    found = types(model)
    assert kept == {}
    assert found["images"] == found["second_out"] == found["first_out"] == found["relu_out"] == HALF
    assert "Cast" not in operators(model)
    images = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float16)
    wanted = run(conv_relu_conv(), {"images": images.astype(np.float32)})
    got = run(model, {"images": images})
    assert got.dtype == np.float16
    assert np.abs(got.astype(np.float32) - wanted).max() < 0.03 * np.abs(wanted).max()


def test_the_original_keeps_its_types():
    """Copies of onnx-ir's models share the objects of their types."""
    model = onnx.version_converter.convert_version(conv_relu_conv(quantized=False), 21)
    original = load_model(model).graph_model
    before = {value.name: value.dtype for node in original.graph for value in node.outputs}
    first, second = (to_float16(original, float32_io=True, peaks=None, name="m")[0] for _ in range(2))
    assert {value.name: value.dtype for node in original.graph for value in node.outputs} == before
    assert ir.to_proto(first) == ir.to_proto(second)


def test_initializers_that_are_listed_as_inputs_become_fp16():
    model = conv_relu_conv()
    listed = onnx.ModelProto.FromString(model.SerializeToString())
    for stored in model.graph.initializer:
        listed.graph.input.add(name=stored.name).type.CopyFrom(
            helper.make_tensor_type_proto(stored.data_type, stored.dims)
        )
    loaded = load_model(listed)
    converted = to_proto(to_float16(loaded.graph_model, float32_io=True, peaks=None, name="m")[0])
    onnx.checker.check_model(converted, full_check=True)
    assert [value.name for value in converted.graph.input] == ["images"]
    plain = to_proto(to_float16(load_model(model).graph_model, float32_io=True, peaks=None, name="m")[0])
    images = {"images": np.random.default_rng(0).standard_normal((4, 3, 16, 16), np.float32)}
    assert np.array_equal(run(converted, images), run(plain, images))


def test_inputs_and_outputs_stay_fp32_where_asked():
    model, _ = convert(conv_relu_conv(), float32_io=True)
    found = types(model)
    assert found["images"] == found["second_out"] == FLOAT
    assert found["first_out"] == found["relu_out"] == HALF
    # The input goes straight into a quantizer, which takes FP32 as well: only the output needs a cast.
    assert operators(model).count("Cast") == 1
    assert [value.name for value in model.graph.output] == ["second_out"]


def test_a_quantizer_and_its_dequantizer_have_the_same_scale_in_two_types():
    model, _ = convert(conv_relu_conv(), float32_io=True)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    pairs = {node.op_type: node for node in model.graph.node if "images" in node.name}
    quantizer, dequantizer = (
        constants[pairs[kind].input[1]] for kind in ("QuantizeLinear", "DequantizeLinear")
    )
    assert (quantizer.dtype, dequantizer.dtype) == (np.float32, np.float16)
    assert quantizer == dequantizer.astype(np.float32) == round_scale(np.float32(0.02))


def tiny_and_enormous():
    """Three layers in a row, whose inputs reach about 1, 1e-9 and 1e8; the output reaches about 1."""
    g, random = Shaped(quantized=False), np.random.default_rng(0)

    def layer(tensor, name, size):
        weights = size * random.uniform(-0.1, 0.1, (32, 32, 3, 3))
        return g.op("Conv", [tensor, g.constant(weights.astype(np.float32))], name, pads=[1] * 4)

    tiny = g.op("Div", [layer("x", "first", 1), g.constant(np.float32(1e9))], "tiny")
    enormous = layer(tiny, "second", 1e17)
    return g.model({"x": [2, 32, 8, 8]}, layer(enormous, "third", 1e-8))


@pytest.mark.parametrize("target", ["rtx", "tensorrt-11"])
def test_scales_of_pairs_in_fp32_are_not_rounded(target):
    source = tiny_and_enormous()
    x = np.random.default_rng(1).uniform(-1, 1, (2, 32, 8, 8)).astype(np.float32)
    table = trtint8.calibrate(source, x, method="minmax", progress=False)
    assert table.amax["tiny_out"] < 5e-9 and table.amax["second_out"] > 1e8
    exact = trtint8.quantize(source, table, target=target)
    options = {"float16": True, "float32_io": True, "keep_int8": ["*"]}
    half = trtint8.quantize(source, table, target=target, **options)
    scales = [
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for model in (exact, half)
    ]
    for name in ("tiny_out_scale", "second_out_scale"):
        assert scales[0][name] == scales[1][name]
    wanted, got = run(exact, {"x": x}), run(half, {"x": x})
    assert np.abs(got - wanted).mean() < 0.005 * np.abs(wanted).max()


def test_tensors_that_share_a_scale_keep_it_where_one_of_their_pairs_is_fp16():
    g = Shaped()
    tensor = g.op("Relu", ["x"], "first")
    for name in ("half", "full", "last"):
        tensor = g.op("Relu", [g.qdq(tensor)], name)
    source, peaks = g.model({"x": ["N", 8]}, tensor), {"full_out": 1e5, "last_out": 1e5}
    model, kept = convert(source, peaks=peaks, float32_io=True)
    assert list(kept) == ["full", "last"]
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    scales = [constants[node.input[1]] for node in pairs]
    assert [scale.dtype for scale in scales] == [*[np.float16] * 3, *[np.float32] * 3]
    assert set(map(float, scales)) == {float(round_scale(np.float32(0.02)))}


def test_a_pair_whose_scale_is_beyond_fp16_is_in_fp32_between_inputs_and_outputs_in_fp16():
    g = Shaped(quantized=False)
    scale, zero_point = g.constant(np.float32(1e5)), g.constant(np.int8(0))
    quantized = g.op("QuantizeLinear", ["x", scale, zero_point], "quantize")
    source = g.model({"x": [1, 3]}, g.op("DequantizeLinear", [quantized, scale, zero_point], "dequantize"))
    model, _ = convert(source)
    assert operators(model) == ["Cast", "QuantizeLinear", "DequantizeLinear", "Cast"]
    y = run(model, {"x": np.array([[0, 40000, -60000]], np.float16)})
    np.testing.assert_array_equal(y, np.array([[0, 0, -np.inf]], np.float16))


def test_readers_in_fp32_get_a_dequantizer_of_their_own():
    g = Shaped()
    pair = g.qdq(g.op("Relu", ["x"], "relu"))
    first = g.op("MatMul", [pair, g.qdq(g.weights(8, 8), 1, 8)], "half")
    second = g.op("MatMul", [pair, g.qdq(g.weights(8, 8), 1, 8)], "full")
    model = g.model({"x": ["N", 8]}, g.op("Add", [first, second], "add"))
    converted, kept = convert(model, peaks={"full_out": 1e5})
    assert list(kept) == ["full", "add"]
    readers = {node.name: node for node in converted.graph.node}
    found = types(converted)
    assert found[readers["half"].input[0]] == HALF
    assert found[readers["full"].input[0]] == FLOAT
    # One quantizer for both, and no cast between a dequantizer and the product that it belongs to.
    assert operators(converted).count("QuantizeLinear") == 3
    producers = {name: node.op_type for node in converted.graph.node for name in node.output}
    assert all(
        producers[readers[name].input[index]] == "DequantizeLinear"
        for name in ("half", "full")
        for index in (0, 1)
    )


def test_inputs_that_onnx_wants_in_fp32_stay_so():
    resize = ("Resize", [np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)], {"mode": "nearest"})
    model, kept = convert(network(resize, shape=("N", 3, 4, 4)))
    assert kept == {}
    node = model.graph.node[0]
    found = types(model)
    assert (found[node.input[0]], found[node.input[2]], found[node.output[0]]) == (HALF, FLOAT, HALF)


def test_casts_follow_and_positions_stay_exact():
    g = Shaped(quantized=False)
    whole = g.op("Cast", ["x"], "to_int", to=TensorProto.INT64)
    back = g.op("Cast", [whole], "to_float", to=FLOAT)
    model, kept = convert(g.model({"x": ["N", 8]}, g.op("Add", [back, "x"], "add")))
    assert list(kept) == ["to_int", "to_float"]
    values = np.array([[2049.0, 1, 2, 3, 4, 5, 6, 7]], np.float32)
    # 2049 is no FP16 number: it becomes 2048 on the way in.
    assert run(model, {"x": values.astype(np.float16)})[0, 0] == 4096


def test_graphs_within_nodes_stay_in_fp32():
    branch = helper.make_graph(
        [helper.make_node("Relu", ["shared"], ["inside"])],
        "branch",
        [],
        [helper.make_tensor_value_info("inside", FLOAT, ["N", 8])],
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["shared"], name="neg"),
        helper.make_node("If", ["flag"], ["picked"], name="if", then_branch=branch, else_branch=branch),
        helper.make_node("Abs", ["picked"], ["y"], name="abs"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", FLOAT, ["N", 8]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", FLOAT, ["N", 8])],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model, kept = convert(source)
    assert kept == {"if": "it holds a graph of its own"}
    x = np.array([[-1, 2, -3, 4, 5, 6, 7, 8]], np.float16)
    assert np.array_equal(run(model, {"x": x, "flag": np.array(True)}), np.maximum(-x, 0))


def test_what_makes_and_reads_sequences_stays_in_fp32():
    g = Shaped(quantized=False)
    x = g.op("Relu", ["x"], "before")
    x = g.op("ConcatFromSequence", [g.op("SequenceConstruct", [x, x], "make")], "read", axis=0)
    model = g.model({"x": [2, 3]}, g.op("Relu", [x], "behind"))
    proto, kept = convert(model)
    assert kept == dict.fromkeys(
        ("make", "read"), "it reads or makes a sequence, whose tensors have one type"
    )
    x = np.arange(-3, 3, dtype=np.float16).reshape(2, 3)
    np.testing.assert_array_equal(run(proto, {"x": x}), np.concatenate([np.maximum(x, 0)] * 2))


def test_operators_that_onnx_does_not_define_stay_in_fp32():
    source = network(("Relu", [], {}), ("Relu", [], {}))
    source.graph.node[1].domain = "mine"
    source.opset_import.append(helper.make_opsetid("mine", 1))
    graph_model, kept = to_float16(load_model(source).graph_model, float32_io=False, peaks=None, name="model")
    assert list(kept) == ["relu1"]
    assert [node.op_type for node in graph_model.graph] == ["Relu", "Cast", "Relu", "Cast"]


def test_fp16_that_stands_in_the_model_is_left_alone():
    g = Shaped(quantized=False)
    half = g.op("Neg", [g.op("Cast", ["x"], "down", to=HALF)], "neg")
    source = load_model(g.model({"x": ["N", 8]}, g.op("Cast", [half], "up", to=FLOAT)))
    graph_model, kept = to_float16(source.graph_model, float32_io=True, peaks=None, name="model")
    model = to_proto(graph_model)
    assert list(kept) == ["up"]
    assert operators(model) == ["Cast", "Neg", "Cast"]
    assert types(model)["up_out"] == FLOAT
    x = np.arange(8, dtype=np.float32)[None]
    assert np.array_equal(run(model, {"x": x}), -x)


def small_and_even(unit):
    """Two convolutions with a normalization between them, which makes the unit of the input irrelevant."""
    g = Shaped(quantized=False)
    x = g.op("Relu", [g.op("Conv", ["x", g.weights(8, 4, 7)], "first", pads=[3, 3])], "relu")
    ones, zeros = (g.constant(np.full(8, value, np.float32)) for value in (1, 0))
    x = g.op("InstanceNormalization", [x, ones, zeros], "even", epsilon=1e-30)
    random = np.random.default_rng(1)
    samples = [random.normal(size=(8, 4, 64)).astype(np.float32) * np.float32(unit) for _ in range(2)]
    return g.model({"x": ["N", 4, 64]}, g.op("Conv", [x, g.weights(8, 8, 7)], "second", pads=[3, 3])), samples


@pytest.mark.parametrize("target", ["rtx", "tensorrt-11"])
@pytest.mark.parametrize("unit", [1e-3, 1e-6, 1e-12])
def test_values_that_are_small_throughout_lose_nothing(unit, target):
    source, (samples, others) = small_and_even(unit)
    table = trtint8.calibrate(source, samples, method="minmax", progress=False)
    exact = trtint8.quantize(source, table, target=target)
    half = trtint8.quantize(source, table, target=target, float16=True, float32_io=True, keep_int8=["*"])
    found, wanted_type = types(half), HALF if unit == 1e-3 else FLOAT
    assert {found[name] for name in ("x_dequantized", "first_out", "relu_out")} == {wanted_type}
    wanted, got, kept = (run(model, {"x": others}) for model in (source, half, exact))
    noise, least = (np.square(one - wanted).sum() for one in (got, kept))
    assert noise < 1.05 * least < 1e-3 * np.square(wanted).sum()


@pytest.mark.parametrize("peak", [1e-7, 123456.0])
def test_inputs_and_outputs_whose_values_fp16_does_not_hold_give_a_warning(peak):
    source, peaks = network(("Relu", [], {})), {"x": peak, "relu0_out": 1.0}
    with pytest.warns(UserWarning, match="^'x' reaches .*, and FP16 has full .* to 65504; add float32_io"):
        convert(source, peaks=peaks)
    convert(source, peaks=peaks, float32_io=True)


TABLE = {"images": 2.5, "relu_out": 1.5, "first_out": 2.0}


def test_quantize_writes_fp16(tmp_path, capsys):
    source = conv_relu_conv(quantized=False)
    proto = trtint8.quantize(source, CalibrationTable(TABLE), float16=True, float32_io=True)
    assert types(proto)["relu_out"] == HALF
    onnx.save(source, tmp_path / "m.onnx")
    CalibrationTable(TABLE).save(tmp_path / "t.json")
    arguments = [
        "quantize",
        str(tmp_path / "m.onnx"),
        str(tmp_path / "t.json"),
        "-o",
        str(tmp_path / "q.onnx"),
    ]
    assert main([*arguments, "--float16", "--explain"]) == 0
    assert "kept in FP32 amid FP16" in capsys.readouterr().out
    assert types(onnx.load(tmp_path / "q.onnx"))["images"] == HALF
    assert main([*arguments, "--float32-io"]) == 2
    assert "add --float16" in capsys.readouterr().err


def test_tensorrt_for_rtx_builds_it_with_int8_and_fp16(tmp_path):
    """A product that is kept in float runs in FP16, the convolutions in INT8."""
    pytest.importorskip("tensorrt_rtx")
    g = Shaped(quantized=False)
    x = g.op("Conv", ["images", g.weights(16, 3, 3, 3)], "conv", pads=[1] * 4)
    x = g.op("Flatten", [g.op("GlobalAveragePool", [g.op("Relu", [x], "relu")], "pool")], "flat")
    model = g.model({"images": [4, 3, 16, 16]}, g.op("MatMul", [x, g.weights(16, 10)], "head"))
    built = built_for_rtx(model, {"images": 2.0, "relu_out": 1.0}, tmp_path, keep_float=["head"])
    assert built.info.quantized_nodes == ("conv",)
    assert built.info.layers.weighted_summary(["conv", "head"]) == {"INT8": ["conv"], "FP16": ["head"]}
    assert [(spec.name, spec.dtype) for spec in (*built.info.inputs, *built.info.outputs)] == [
        ("images", "float32"),
        ("head_out", "float32"),
    ]
    assert types(onnx.load(tmp_path / "m.qdq.onnx"))["flat_out"] == HALF


def test_the_model_is_not_changed():
    model = load_model(conv_relu_conv(quantized=False))
    model.graph_model.opset_imports[""] = 21
    before = [str(value.type) for node in model.graph_model.graph for value in node.outputs]
    first, again = (
        to_proto(to_float16(model.graph_model, float32_io=True, peaks=None, name="model")[0])
        for _ in range(2)
    )
    assert [str(value.type) for node in model.graph_model.graph for value in node.outputs] == before
    assert first == again


def test_names_that_the_model_has_are_not_given_again():
    """As of models that were converted before: here every name that a conversion would give first."""
    g = Shaped(quantized=False)
    factor, addend = (np.full(8, value, np.float32) for value in (0.5, 3.0))
    g.constants += [
        onnx.numpy_helper.from_array(factor, "f"),
        onnx.numpy_helper.from_array(addend, "f_float16"),
    ]
    g.nodes += [
        helper.make_node("Mul", ["x", "f"], ["x_float16"], name="x_float16_cast"),
        helper.make_node("Add", ["x_float16", "f_float16"], ["sum"], name="add"),
        helper.make_node("Exp", ["sum"], ["sum_float32"], name="sum_float32_cast"),
        helper.make_node("Abs", ["sum_float32"], ["y_float16"], name="abs"),
        helper.make_node("Neg", ["y_float16"], ["y"], name="y_float32_cast"),
    ]
    model, kept = convert(g.model({"x": ["N", 8]}, "y"), float32_io=True)
    assert list(kept) == ["sum_float32_cast"]
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    x = np.linspace(-2, 2, 8, dtype=np.float32)[None]
    np.testing.assert_allclose(run(model, {"x": x}), -np.exp(0.5 * x + 3), rtol=0.01)


def test_names_within_branches_are_not_given_again():
    branch = helper.make_graph(
        [
            helper.make_node("Relu", ["shared"], ["shared_float32"]),
            helper.make_node("Neg", ["shared_float32"], ["inside"]),
        ],
        "branch",
        [],
        [helper.make_tensor_value_info("inside", FLOAT, ["N", 8])],
    )
    g = Shaped(quantized=False)
    g.nodes += [
        helper.make_node("Neg", ["x"], ["shared"], name="neg"),
        helper.make_node("If", ["flag"], ["picked"], name="if", then_branch=branch, else_branch=branch),
    ]
    source = g.model({"x": ["N", 8]}, g.op("Abs", ["picked"], "abs"))
    source.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    model, _ = convert(source)
    x = np.array([[-1, 2, -3, 4, 5, 6, 7, 8]], np.float16)
    assert np.array_equal(run(model, {"x": x, "flag": np.array(True)}), np.maximum(-x, 0))
