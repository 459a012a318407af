"""Models whose layers outside INT8 become FP16: types, casts, and what must stay in FP32."""

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import trtint8
from calibrators.tables.table import CalibrationTable
from tests.trtint8 import onnx_models
from tests.trtint8.engines import build_rtx
from tests.trtint8.onnx_models import Shaped, constants_of, normal, parsed, prepared_graph
from tests.trtint8.quantization.float16.half_models import (
    FLOAT,
    HALF,
    built_for_rtx,
    convert,
    network,
    operators,
    run,
    types,
    weights,
)
from trtint8.cli.main import main
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.float16 import find_decisions, to_float16
from trtint8.quantization.float16_magnitudes import round_scale


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
    before = [str(value.type) for node in original.graph for value in node.outputs]
    first, second = (to_float16(original, float32_io=True, peaks=None, name="m")[0] for _ in range(2))
    assert [str(value.type) for node in original.graph for value in node.outputs] == before
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
    images = {"images": normal(4, 3, 16, 16)}
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
    constants = constants_of(model)
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
        return g.Conv(name, tensor, g.constant(weights.astype(np.float32)), pads=[1] * 4)

    tiny = g.Div("tiny", layer("x", "first", 1), g.constant(np.float32(1e9)))
    enormous = layer(tiny, "second", 1e17)
    return g.model({"x": [2, 32, 8, 8]}, layer(enormous, "third", 1e-8))


@pytest.mark.parametrize("target", ["rtx", "tensorrt-11"])
def test_scales_of_pairs_in_fp32_are_not_rounded(target):
    source = tiny_and_enormous()
    x = np.random.default_rng(1).uniform(-1, 1, (2, 32, 8, 8)).astype(np.float32)
    table = trtint8.calibrate(source, x, method="minmax")
    assert table.amax["tiny_out"] < 5e-9 and table.amax["second_out"] > 1e8
    exact = trtint8.quantize(source, table, target=target)
    options = {"float16": True, "float32_io": True, "keep_int8": ["*"]}
    half = trtint8.quantize(source, table, target=target, **options)
    scales = [constants_of(model) for model in (exact, half)]
    for name in ("tiny_out_scale", "second_out_scale"):
        assert scales[0][name] == scales[1][name]
    wanted, got = run(exact, {"x": x}), run(half, {"x": x})
    assert np.abs(got - wanted).mean() < 0.005 * np.abs(wanted).max()


def test_tensors_that_share_a_scale_keep_it_where_one_of_their_pairs_is_fp16():
    g = Shaped()
    tensor = g.Relu("first", "x")
    for name in ("half", "full", "last"):
        tensor = g.Relu(name, g.qdq(tensor))
    source, peaks = g.model({"x": ["N", 8]}, tensor), {"full_out": 1e5, "last_out": 1e5}
    model, kept = convert(source, peaks=peaks, float32_io=True)
    assert list(kept) == ["full", "last"]
    constants = constants_of(model)
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    scales = [constants[node.input[1]] for node in pairs]
    assert [scale.dtype for scale in scales] == [*[np.float16] * 3, *[np.float32] * 3]
    assert set(map(float, scales)) == {float(round_scale(np.float32(0.02)))}


def test_a_pair_whose_scale_is_beyond_fp16_is_in_fp32_between_inputs_and_outputs_in_fp16():
    g = Shaped(quantized=False)
    scale, zero_point = g.constant(np.float32(1e5)), g.constant(np.int8(0))
    quantized = g.QuantizeLinear("quantize", "x", scale, zero_point)
    source = g.model({"x": [1, 3]}, g.DequantizeLinear("dequantize", quantized, scale, zero_point))
    model, _ = convert(source)
    assert operators(model) == ["Cast", "QuantizeLinear", "DequantizeLinear", "Cast"]
    y = run(model, {"x": np.array([[0, 40000, -60000]], np.float16)})
    assert_array_equal(y, np.array([[0, 0, -np.inf]], np.float16))


def test_readers_in_fp32_get_a_dequantizer_of_their_own():
    g = Shaped()
    pair = g.qdq(g.Relu("relu", "x"))
    first = g.Conv("half", pair, g.qdq(g.weights(8, 8, 1, 1), 0, 8))
    second = g.Conv("full", pair, g.qdq(g.weights(8, 8, 1, 1), 0, 8))
    model = g.model({"x": ["N", 8, 4, 4]}, g.Add("add", first, second))
    converted, kept = convert(model, peaks={"full_out": 1e5})
    assert list(kept) == ["full", "add"]
    readers = {node.name: node for node in converted.graph.node}
    found = types(converted)
    assert found[readers["half"].input[0]] == HALF
    assert found[readers["full"].input[0]] == FLOAT
    # One quantizer for both, and no cast between a dequantizer and the convolution that it belongs to.
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
    whole = g.Cast("to_int", "x", to=TensorProto.INT64)
    back = g.Cast("to_float", whole, to=FLOAT)
    model, kept = convert(g.model({"x": ["N", 8]}, g.Add("add", back, "x")))
    assert list(kept) == ["to_int", "to_float"]
    values = np.array([[2049.0, 1, 2, 3, 4, 5, 6, 7]], np.float32)
    # 2049 is no FP16 number: it becomes 2048 on the way in.
    assert run(model, {"x": values.astype(np.float16)})[0, 0] == 4096


@pytest.mark.parametrize(
    "inside", ["{0} = Relu (shared)", "shared_float32 = Relu (shared) {0} = Identity (shared_float32)"]
)
def test_graphs_within_nodes_stay_in_fp32_and_keep_their_names(inside):
    branches = ", ".join(
        f"{kind}_branch = b () => (float[N, 8] {kind}) {{ {inside.format(kind)} }}"
        for kind in ("then", "else")
    )
    body = f"[neg] shared = Neg (x) [if] picked = If (flag) <{branches}> [abs] y = Abs (picked)"
    source = parsed("float[N, 8] x, bool flag", "float[N, 8] y", body)
    model, kept = convert(source)
    assert list(kept) == ["if"]
    x = np.array([[-1, 2, -3, 4, 5, 6, 7, 8]], np.float16)
    assert np.array_equal(run(model, {"x": x, "flag": np.array(True)}), np.maximum(-x, 0))


def test_what_makes_and_reads_sequences_stays_in_fp32():
    body = """[before] b = Relu (x) [make] s = SequenceConstruct (b, b)
        [read] r = ConcatFromSequence <axis = 0> (s) [behind] y = Relu (r)"""
    proto, kept = convert(parsed("float[2, 3] x", "float[4, 3] y", body))
    assert list(kept) == ["make", "read"]
    x = np.arange(-3, 3, dtype=np.float16).reshape(2, 3)
    assert_array_equal(run(proto, {"x": x}), np.concatenate([np.maximum(x, 0)] * 2))


def test_operators_that_onnx_does_not_define_stay_in_fp32():
    source = network(("Relu", [], {}), ("Relu", [], {}))
    source.graph.node[1].domain = "mine"
    source.opset_import.append(helper.make_opsetid("mine", 1))
    graph_model, kept = to_float16(load_model(source).graph_model, float32_io=False, peaks=None, name="model")
    assert list(kept) == ["relu1"]
    assert [node.op_type for node in graph_model.graph] == ["Relu", "Cast", "Relu", "Cast"]


def test_fp16_that_stands_in_the_model_is_left_alone():
    g = Shaped(quantized=False)
    half = g.Neg("neg", g.Cast("down", "x", to=HALF))
    source = load_model(g.model({"x": ["N", 8]}, g.Cast("up", half, to=FLOAT)))
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
    x = g.Relu("relu", g.Conv("first", "x", g.weights(8, 4, 7), pads=[3, 3]))
    ones, zeros = (g.constant(np.full(8, value, np.float32)) for value in (1, 0))
    x = g.InstanceNormalization("even", x, ones, zeros, epsilon=1e-30)
    random = np.random.default_rng(1)
    samples = [random.normal(size=(8, 4, 64)).astype(np.float32) * np.float32(unit) for _ in range(2)]
    return g.model({"x": ["N", 4, 64]}, g.Conv("second", x, g.weights(8, 8, 7), pads=[3, 3])), samples


@pytest.mark.parametrize("target", ["rtx", "tensorrt-11"])
@pytest.mark.parametrize("unit", [1e-3, 1e-6, 1e-12])
def test_values_that_are_small_throughout_lose_nothing(unit, target):
    source, (samples, others) = small_and_even(unit)
    table = trtint8.calibrate(source, samples, method="minmax")
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
    with pytest.warns(UserWarning, match=r"^'x' .*65504.*float32_io"):
        convert(source, peaks=peaks)
    convert(source, peaks=peaks, float32_io=True)


TABLE = {"images": 2.5, "relu_out": 1.5, "first_out": 2.0}


def test_quantize_writes_fp16(tmp_path, capsys):
    source = conv_relu_conv(quantized=False)
    proto = trtint8.quantize(source, CalibrationTable(TABLE), float16=True, float32_io=True)
    assert types(proto)["relu_out"] == HALF
    onnx.save(source, tmp_path / "m.onnx")
    CalibrationTable(TABLE).save(tmp_path / "t.json")
    model, table, output = (str(tmp_path / name) for name in ("m.onnx", "t.json", "q.onnx"))
    assert main(["quantize", model, table, "-o", output, "--float16", "--explain"]) == 0
    assert "FP32 amid FP16" in capsys.readouterr().out
    assert types(onnx.load(output))["images"] == HALF
    assert main(["quantize", model, table, "-o", output, "--float32-io"]) == 2
    assert "--float16" in capsys.readouterr().err


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
    assert_allclose(run(model, {"x": x}), -np.exp(0.5 * x + 3), rtol=0.01)


def test_sums_of_squares_stay_in_fp32_between_casts():
    even = ("LayerNormalization", [np.ones(8, np.float32), np.zeros(8, np.float32)], {"axis": -1})
    model, kept = convert(network(product(), even, product()))
    assert list(kept) == ["layernormalization1"]
    assert operators(model) == ["MatMul", "Cast", "LayerNormalization", "Cast", "MatMul"]
    found = types(model)
    assert found["matmul0_out"] == found["matmul2_out"] == HALF
    assert found["layernormalization1_out"] == FLOAT


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("LRN", {"size": 3}),
        ("LpPool", {"kernel_shape": [2, 2]}),
        ("GlobalLpPool", {}),
        ("Cosh", {}),
        ("Asinh", {}),
    ],
)
def test_what_leaves_the_range_of_fp16_stays_in_fp32(operator, attributes):
    layer = ("Conv", [weights(4, 4, 1, 1)], {})
    _, kept = convert(network(layer, (operator, [], attributes), layer, shape=(1, 4, 6, 6)))
    assert list(kept) == [f"{operator.lower()}1"]


@pytest.mark.parametrize("move", ["Tile", "Split", "Expand", "Flatten", "Where"])
def test_a_mask_beyond_fp16_stays_in_fp32_wherever_it_is_moved(move):
    """FP16 would make minus infinity of it, and a row of those no number."""
    g = Shaped(quantized=False)
    seen = g.Greater("seen", "x", g.constant(np.float32(0)))
    mask = g.Where("mask", seen, g.constant(np.float32(0)), g.constant(np.float32(-3.4e38)))
    sizes = {"Tile": [[1, 1]], "Expand": [[2, 8]], "Split": [[8]]}.get(move, [])
    attributes = {"axis": 1} if move == "Split" else {}
    others = [g.constant(np.array(one)) for one in sizes]
    inputs = [seen, mask, g.constant(np.float32(0))] if move == "Where" else [mask, *others]
    mask = g.op(move, inputs, "move", **attributes)
    scores = g.Add("add", g.MatMul("scores", "x", g.weights(8, 8)), mask)
    softmax = g.Softmax("softmax", scores, axis=-1)
    model = g.model({"x": [2, 8]}, g.MatMul("layer", softmax, g.weights(8, 8)))
    assert {"mask", "move", "add", "softmax"} <= set(convert(model)[1])


@pytest.mark.parametrize(
    ("peaks", "named"),
    [
        ({"matmul1_out": 33000.0, "matmul0_out": 32000.0}, "'matmul1_out'.* 33000.* 65504"),
        ({"matmul1_out": 5e-6, "matmul0_out": 7e-5}, r"'matmul1_out'.* 5e-06.* 6\.1e-05"),
        ({"matmul1_out": 0.0}, None),
    ],
)
def test_a_tensor_beyond_fp16_keeps_its_nodes_in_fp32(peaks, named):
    _, kept = convert(network(*[product()] * 3), peaks=peaks)
    assert list(kept) == (["matmul1", "matmul2"] if named else [])
    assert not named or re.search(named, kept["matmul1"])


@pytest.mark.parametrize(
    ("constant", "stays"),
    [(1e-12, True), (1e-3, False), (-3.4e38, True), (-np.inf, False), (1e5, True), (0.0, False)],
)
def test_constants_that_fp16_does_not_hold(constant, stays):
    _, kept = convert(network(("Add", [np.float32(constant)], {}), ("Relu", [], {})))
    assert list(kept) == (["add0"] if stays else [])


@pytest.mark.parametrize("operator", ["Mul", "MatMul"])
def test_constants_that_fp16_makes_zero_as_a_whole(operator):
    """As numbers that change a unit do; single small numbers are among all trained weights."""
    lost = np.full((8, 8), 1e-9, np.float32)
    _, kept = convert(network((operator, [lost], {}), ("Relu", [], {})))
    name = f"{operator.lower()}0"
    assert list(kept) == [name] and kept[name].endswith("does not fit FP16")
    lost[1] = 0.01
    assert convert(network((operator, [lost], {}), ("Relu", [], {})))[1] == {}


def test_small_addends_of_sums_that_are_not_small_are_no_reason():
    bias = np.full(8, 1e-9, np.float32)
    steps = [("Gemm", [weights(8, 8), bias], {}), ("Add", [bias], {}), ("Sub", [bias], {})]
    assert convert(network(*steps))[1] == {}
    assert list(convert(network(*steps), peaks={"add1_out": 1e-9})[1]) == ["add1", "sub2"]


def test_a_small_tensor_that_is_moved_stays_small():
    steps = [("MatMul", [weights(8, 8)], {})] * 2 + [("Transpose", [], {}), ("Relu", [], {}), ("Neg", [], {})]
    _, kept = convert(network(*steps), peaks={"matmul1_out": 5e-6})
    assert list(kept) == ["matmul1", "transpose2", "relu3", "neg4"]


def test_nodes_beside_a_pair_whose_scale_is_inexact_in_fp16_stay_in_fp32():
    body = """[makes] m = Relu (x) [quantize] q = QuantizeLinear (m, s, z)
        [dequantize] d = DequantizeLinear (q, s, z) [other] a = Abs (m) [reads] r = MatMul (d, w)
        [add] y = Add (r, a)"""
    constants = {"s": np.float32(30.5 * 2**-24), "z": np.int8(0), "w": weights(8, 8)}
    model, kept = convert(parsed("float[2, 8] x", "float[] y", body, **constants))
    assert list(kept) == ["makes", "reads"]
    assert "'m'" in kept["makes"] and "'d'" in kept["reads"]
    found = types(model)
    assert {found[node.input[1]] for node in model.graph.node if "uantize" in node.name} == {FLOAT}


def test_a_softmax_after_a_mask_beyond_fp16_stays_in_fp32():
    """-3.4e38 would become minus infinity, and a row of those no number."""
    masked = ("Add", [np.full(8, -3.4e38, np.float32)], {})
    model, kept = convert(network(masked, ("Softmax", [], {"axis": -1}), ("Relu", [], {})))
    assert list(kept) == ["add0", "softmax1"]
    assert np.isfinite(run(model, {"x": np.zeros((2, 8), np.float16)})).all()
    _, kept = convert(network(("Softmax", [], {"axis": -1})))
    assert kept == {}


@pytest.mark.parametrize(("low", "stays"), [(-3.4e38, True), (-1e4, False), (-np.inf, False)])
def test_a_mask_that_a_where_chooses_is_added_in_fp32_if_fp16_has_no_such_number(low, stays):
    model = load_model(hidden_by(low))
    _, kept = to_float16(prepare(model).graph_model, float32_io=True, peaks=None, name="model")
    assert {"mask_add", "softmax"} & kept.keys() == ({"mask_add", "softmax"} if stays else set())


def hidden_by(low):
    """Scores to which a Where and an Expand add ``low`` or nothing."""
    g = Shaped()
    seen = g.Cast("seen", "mask", to=9)
    chosen = g.Where("chosen", seen, g.constant(np.float32(0)), g.constant(np.float32(low)))
    mask = g.Expand("expand", chosen, g.constant(np.array([2, 8])))
    scores = g.MatMul("scores", "x", g.weights(8, 8))
    softmax = g.Softmax("softmax", g.Add("mask_add", scores, mask), axis=-1)
    return g.model({"x": [2, 8], "mask": [1, 8]}, softmax)


TURNS = (("projection_out", "turn"), ("turn", "turned"))


def recurrent(operator, *, lengths):
    """A projection in INT8 or FP16, and a recurrent operator whose sequences have lengths of their own."""
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[operator]
    g = Shaped(quantized=False)
    x = g.MatMul("projection", "x", g.weights(8, 8))
    kernels = [g.weights(1, gates * 8, 8), g.weights(1, gates * 8, 8), g.weights(1, 2 * gates * 8)]
    inputs = [x, *kernels, *(["lengths"] if lengths else [])]
    model = g.model({"x": [5, 2, 8]}, g.op(operator, inputs, "steps", hidden_size=8))
    if lengths:
        model.graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [2]))
    return model


@pytest.mark.parametrize("operator", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("lengths", [False, True])
def test_recurrent_operators_with_lengths_stay_in_fp32(operator, lengths):
    _, kept = convert(recurrent(operator, lengths=lengths))
    assert set(kept) == ({"projection", "steps"} if lengths else set())


def test_what_makes_the_sequences_may_be_moved_first():
    model = recurrent("GRU", lengths=True)
    turn, turned = [helper.make_node("Transpose", [x], [y], name=y, perm=[1, 0, 2]) for x, y in TURNS]
    model.graph.node.insert(1, turn)
    model.graph.node.insert(2, turned)
    model.graph.node[3].input[0] = turned.output[0]
    assert set(convert(model)[1]) == {"projection", "turn", "turned", "steps"}


@pytest.mark.parametrize("operator", ["GRU", "LSTM", "RNN"])
def test_tensorrt_for_rtx_builds_recurrent_operators_with_lengths(rtx, operator, tmp_path):
    model = recurrent(operator, lengths=True)
    built = built_for_rtx(model, {"x": 3.0}, tmp_path, keep_int8=["projection"])
    assert built.info.quantized_nodes == ("projection",)


NAMED_TYPES = {
    "MelWeightMatrix": ([np.int64(4), np.int64(16), np.int64(8000)], {}),
    "HannWindow": ([np.int64(8)], {}),
    "HammingWindow": ([np.int64(8)], {"output_datatype": FLOAT}),
    "BlackmanWindow": ([np.int64(8)], {"periodic": 0}),
    "ConstantOfShape": ([np.array([2, 8])], {"value": helper.make_tensor("v", FLOAT, [1], [0.5])}),
    "EyeLike": ([], {"dtype": FLOAT}),
    "RandomNormal": ([], {"shape": [2, 8], "dtype": FLOAT, "scale": 1e-5}),
    "RandomUniform": ([], {"shape": [2, 8], "low": 0.0, "high": 0.0}),
    "RandomNormalLike": ([], {"dtype": FLOAT, "scale": 1e-5}),
    "Bernoulli": ([], {"dtype": FLOAT}),
    "Cast": ([], {"to": FLOAT}),
}


@pytest.mark.filterwarnings("ignore:.*draws random numbers:UserWarning")
@pytest.mark.parametrize("operator", NAMED_TYPES)
@pytest.mark.parametrize("opset", [17, 21])
def test_a_type_that_a_node_names_is_the_one_that_it_gives_out(operator, opset):
    constants, attributes = NAMED_TYPES[operator]
    g = Shaped(quantized=False)
    layer = g.Softmax("soft", g.MatMul("layer", "x", g.constant(weights(8, 8))))
    # Computed, so that nothing folds the node away.
    size = g.Squeeze("size", g.Shape("shape", layer, start=1), g.constant(np.array([0])))
    inputs = [g.constant(np.asarray(value)) for value in constants]
    if operator.endswith("Window"):
        inputs = [size]
    elif operator == "MelWeightMatrix":
        lowest = g.ReduceMin("lowest", layer, keepdims=0)
        inputs += [lowest, g.Add("highest", lowest, g.constant(np.float32(3000)))]
    elif operator == "ConstantOfShape":
        inputs = [g.Shape("sizes", layer)]
    elif not operator.endswith(("Normal", "Uniform")):
        inputs = [layer]
    made = g.op(operator, inputs, "made", **attributes)
    if operator == "MelWeightMatrix":
        made = g.ReduceMax("most", made, keepdims=0)
    elif operator.endswith("Window"):
        made = g.Reshape("row", made, g.constant(np.array([8])))
    source = g.model({"x": [2, 8]}, g.Add("sum", layer, made))
    source.opset_import[0].version = opset
    x = normal(2, 8)
    wanted = run(source, {"x": x}) if operator != "Bernoulli" else None
    found = run(convert(source, float32_io=True)[0], {"x": x})
    if wanted is not None:
        assert_allclose(found, wanted, atol=2e-3)


def kept(*steps):
    """Names of the nodes of a chain that stay in FP32, without a last Cast that makes floats of it."""
    names = set(convert(network(*steps, ("Cast", [], {"to": FLOAT})), float32_io=True)[1])
    return {name for name in names if not name.startswith(f"cast{len(steps)}")}


def product(rows=8, columns=8):
    return ("MatMul", [weights(rows, columns)], {})


def test_a_classifier_keeps_its_body_in_fp16():
    steps = [product(), ("Relu", [], {}), product(), ("Softmax", [], {}), ("ArgMax", [], {"axis": -1})]
    assert kept(*steps) == {"softmax3", "argmax4"}


@pytest.mark.parametrize(
    "decision",
    [
        ("Greater", [np.float32(0.5)], {}),
        ("LessOrEqual", [np.float32(0.5)], {}),
        ("ArgMin", [], {"axis": -1}),
        ("Sign", [], {}),
        ("Floor", [], {}),
        ("Round", [], {}),
        ("Cast", [], {"to": TensorProto.INT32}),
        ("Cast", [], {"to": TensorProto.BOOL}),
        ("IsInf", [], {}),
        ("NonZero", [], {}),
        ("Sin", [], {}),
        ("Log", [], {}),
        ("ReduceLogSum", [], {}),
        ("Atanh", [], {}),
    ],
)
def test_what_leads_up_to_a_decision_since_the_last_layer_stays_in_fp32(decision):
    name = f"{decision[0].lower()}3"
    assert kept(product(), ("Sigmoid", [], {}), ("Mul", [np.float32(3)], {}), decision) == {
        "sigmoid1",
        "mul2",
        name,
    }


CHANNELS = "float[1, 4, 8, 8] x"
HEAT = """[body] b = Conv (x, k) [relu] r = Relu (b) [head] h = Conv (r, one) [sigmoid] s = Sigmoid (h)
    [pool] p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (s) [compare] c = {} (s, p)
    [found] f = Cast <to = 1> (c) [peaks] y = Mul (s, f)"""
IN_BRANCHES = ", ".join(
    f"{kind}_branch = b () => (float[] {kind}) {{ g = Greater (s, zero) {kind} = Cast <to = 1> (g) }}"
    for kind in ("then", "else")
)


@pytest.mark.parametrize(
    ("inputs", "body", "stay", "peaks"),
    [
        *(
            (CHANNELS, HEAT.format(kind), "head sigmoid pool compare found", None)
            for kind in ("Equal", "GreaterOrEqual", "Less")
        ),
        # The residual stream before the last layer is not led up to.
        (
            "float[2, 8] x",
            """[first] a = MatMul (x, w) [second] b = MatMul (a, w) [second_add] c = Add (b, a)
            [third] d = MatMul (c, w) [third_add] e = Add (d, c)
            [decide] g = Greater (e, zero) [found] y = Cast <to = 1> (g)""",
            "third_add decide found",
            None,
        ),
        # Coordinates.
        (
            CHANNELS,
            """[image] i = Conv (x, same) [flow] f = Conv (x, two)
            [grid] g = Transpose <perm = [0, 2, 3, 1]> (f) [sample] s = GridSample (i, g)
            [last] y = Conv (s, same)""",
            "flow grid sample",
            None,
        ),
        # Positions times frequencies: one column and one row are no layer, but as many single products.
        (
            "float[8, 1] x",
            """[whole] i = Cast <to = 7> (x) [positions] p = Cast <to = 1> (i) [angles] a = MatMul (p, row)
            [cos] c = Cos (a) [layer] y = MatMul (c, column)""",
            "whole positions angles cos",
            None,
        ),
        (
            "float[2, 8] x, bool flag",
            f"[layer] l = MatMul (x, w) [score] s = Sigmoid (l) [if] y = If (flag) <{IN_BRANCHES}>",
            "score if",
            None,
        ),
        # A sum with a small summand.
        (
            "float[2, 8] x",
            "[small] s = MatMul (x, w) [add] y = Add (x, s)",
            "small",
            {"s": 1e-6, "y": 1.0},
        ),
        ("float[2, 8] x", "[small] s = MatMul (x, w) [add] y = Add (x, s)", "small add", {"s": 1e-6}),
        # A variance by squares: what lies between nodes in FP32 stays there, however many they are.
        (
            "float[2, 8] x",
            """[square] s = Mul (x, x) [mean] m = ReduceMean (s) [first] a = Neg (m) [second] b = Abs (a)
            [third] c = Sub (b, zero) [root] r = Sqrt (c) [outside] y = Mul (x, r)""",
            "square mean first second third root",
            None,
        ),
        # Embeddings are not: their table would be twice as large.
        (
            "int64[2, 4] x",
            "[look_up] e = Gather (w, x) [negate] n = Neg (e) [root] y = Sqrt (n)",
            "root",
            None,
        ),
        # Not what one neighbour in FP16 reads or gives, nor what leads to it or comes of it alone.
        (
            "float[2, 8] x",
            """[one] a = Exp (x) [two] b = Neg (a) [sum] c = Abs (b) [root] d = Sqrt (c)
            [layer] e = MatMul (b, w) [last] y = Add (d, e)""",
            "one root",
            None,
        ),
    ],
)
def test_decisions_positions_and_small_sums(inputs, body, stay, peaks):
    constants = {
        "w": weights(8, 8),
        "k": weights(4, 4, 3, 3),
        "same": weights(4, 4, 1, 1),
        "one": weights(1, 4, 1, 1),
        "two": weights(2, 4, 1, 1),
        "row": weights(1, 16),
        "column": weights(16, 4),
        "zero": np.float32(0),
    }
    constants = {name: array for name, array in constants.items() if re.search(rf"\b{name}\b", body)}
    assert set(convert(parsed(inputs, "float[] y", body, **constants), peaks=peaks)[1]) == set(stay.split())


def flat_peaks():
    """Heat maps with one flat peak each, found by comparing every pixel with the largest around it."""
    g = Shaped(quantized=False)
    kernel = np.exp(-(np.mgrid[-2:3, -2:3] ** 2).sum(0) / 2).astype(np.float32)
    first = np.zeros((4, 1, 3, 3), np.float32)
    first[:, 0, 1, 1] = 1
    body = g.Relu("relu", g.Conv("body", "x", g.constant(first), pads=[1] * 4))
    head = [g.constant(np.full((1, 4, 1, 1), 1.2, np.float32)), g.constant(np.array([-1], np.float32))]
    heat = g.Sigmoid("sigmoid", g.Conv("head", body, *head))
    blurred = g.Conv("blur", heat, g.constant((kernel / kernel.sum())[None, None]), pads=[2] * 4)
    largest = g.MaxPool("largest", blurred, kernel_shape=[9, 9], pads=[4] * 4)
    equal = g.Cast("is_peak", g.Equal("equal", blurred, largest), to=FLOAT)
    model = g.model({"x": [1, 1, 64, 64]}, g.Mul("peaks", largest, equal))
    random, (rows, columns) = np.random.default_rng(3), np.mgrid[:64, :64]
    offsets = random.uniform(-0.5, 0.5, (8, 2))
    maps = [np.exp(-((rows - 32 - a) ** 2 + (columns - 32 - b) ** 2) / 392)[None, None] for a, b in offsets]
    return model, [one.astype(np.float16).astype(np.float32) for one in maps]


def test_fp16_finds_as_many_peaks():
    model, maps = flat_peaks()
    table = trtint8.calibrate(model, [{"x": one} for one in maps], method="minmax")
    half = trtint8.quantize(model, table, keep_float=["*"], float16=True, float32_io=True)
    assert types(half)["body_out"] == HALF
    found = [
        sum(int((ReferenceEvaluator(one).run(None, {"x": x})[0] > 0.6).sum()) for x in maps)
        for one in (model, half)
    ]
    assert found == [8, 8]


def test_an_output_that_is_compared_stays_float32():
    model, maps = flat_peaks()
    model.graph.output.extend(
        helper.make_tensor_value_info(f"{name}_out", FLOAT, None) for name in ("blur", "largest")
    )
    table = trtint8.calibrate(model, [{"x": one} for one in maps], method="minmax")
    with pytest.warns(UserWarning, match=r"'blur_out'.*'largest_out'"):
        half = trtint8.quantize(model, table, keep_float=["*"], float16=True)
    assert {one.name: one.type.tensor_type.elem_type for one in half.graph.output} == {
        "peaks_out": HALF, "blur_out": FLOAT, "largest_out": FLOAT,
    }  # fmt: skip


def test_thousands_of_decisions_in_a_row_are_found():
    g = Shaped(quantized=False)
    y = g.MatMul("layer", "x", g.weights(8, 8))
    for number in range(4000):
        y = g.Floor(f"floor{number}", y)
    found = find_decisions(prepared_graph(g.model({"x": [2, 8]}, y)))
    assert len(found.nodes) == 4000


@pytest.mark.parametrize("copies", ["", "d2 = DequantizeLinear (q, s, z)"], ids=["one pair", "two"])
def test_products_of_one_quantized_tensor_have_one_type(copies, rtx, tmp_path):
    """As in deformable attention: one gives coordinates, which stay in FP32, the other weights."""
    weights = {name: np.random.default_rng(0).integers(-127, 128, (64, 64)).astype(np.int8) for name in "ab"}
    model = parsed(
        "float[1, 8, 64] x, float[1, 4, 16, 16] image", "float[1, 4, 8, 32] sampled, float[1, 8, 64] y",
        f"q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) {copies}"
        "wa = DequantizeLinear (a, s, z) wb = DequantizeLinear (b, s, z)"
        f"[offsets] moved = MatMul (d, wa) [scores] scored = MatMul ({'d2' if copies else 'd'}, wb)"
        "grid = Reshape (moved, shape) sampled = GridSample (image, grid) y = Softmax (scored)",
        opset=19, ir_version=9, s=np.float32(0.01), z=np.int8(0), shape=np.array([1, 8, 32, 2]), **weights,
    )  # fmt: skip
    _, kept = convert(model)
    assert {"offsets", "scores"} <= kept.keys()
    result = build_rtx(None, tmp_path / "m.engine", model=model, fp16=True)
    assert result.info.int8_layers == (2, 2)
