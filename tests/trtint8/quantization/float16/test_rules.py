"""Which nodes stay in FP32, and why."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

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
    weights,
)
from trtint8.models.model import load_model, prepare
from trtint8.quantization.float16.convert import to_float16
from trtint8.quantization.float16.rules import float32_nodes, signature


def test_sums_of_squares_stay_in_fp32_between_casts():
    gamma, beta = np.ones(8, np.float32), np.zeros(8, np.float32)
    model, kept = convert(
        network(
            ("MatMul", [weights(8, 8)], {}),
            ("LayerNormalization", [gamma, beta], {"axis": -1}),
            ("MatMul", [weights(8, 8)], {}),
        )
    )
    assert kept == {"layernormalization1": "it sums squares, which FP16 may not hold"}
    assert operators(model) == ["MatMul", "Cast", "LayerNormalization", "Cast", "MatMul"]
    found = types(model)
    assert found["matmul0_out"] == found["matmul2_out"] == HALF
    assert found["layernormalization1_out"] == FLOAT


@pytest.mark.parametrize(
    ("step", "does"),
    [
        (("LRN", [], {"size": 3}), "sums squares"),
        (("LpPool", [], {"kernel_shape": [2, 2]}), "sums powers"),
        (("GlobalLpPool", [], {}), "sums powers"),
        (("Cosh", [], {}), "exponentiates"),
        (("Asinh", [], {}), "takes a logarithm"),
    ],
)
def test_what_leaves_the_range_of_fp16_stays_in_fp32(step, does):
    steps = [("Conv", [weights(4, 4, 1, 1)], {}), step, ("Conv", [weights(4, 4, 1, 1)], {})]
    _, kept = convert(network(*steps, shape=(1, 4, 6, 6)))
    name = f"{step[0].lower()}1"
    assert list(kept) == [name] and does in kept[name]


@pytest.mark.parametrize("move", ["Tile", "Split", "Expand", "Flatten", "Where"])
def test_a_mask_beyond_fp16_stays_in_fp32_wherever_it_is_moved(move):
    """FP16 would make minus infinity of it, and a row of those no number."""
    g = Shaped(quantized=False)
    seen = g.op("Greater", ["x", g.constant(np.float32(0))], "seen")
    mask = g.op("Where", [seen, g.constant(np.float32(0)), g.constant(np.float32(-3.4e38))], "mask")
    sizes = {"Tile": [[1, 1]], "Expand": [[2, 8]], "Split": [[8]]}.get(move, [])
    attributes = {"axis": 1} if move == "Split" else {}
    others = [g.constant(np.array(one)) for one in sizes]
    inputs = [seen, mask, g.constant(np.float32(0))] if move == "Where" else [mask, *others]
    mask = g.op(move, inputs, "move", **attributes)
    scores = g.op("Add", [g.op("MatMul", ["x", g.weights(8, 8)], "scores"), mask], "add")
    softmax = g.op("Softmax", [scores], "softmax", axis=-1)
    model = g.model({"x": [2, 8]}, g.op("MatMul", [softmax, g.weights(8, 8)], "layer"))
    assert {"mask", "move", "add", "softmax"} <= set(convert(model)[1])


def test_a_tensor_that_comes_near_the_end_of_fp16_keeps_its_nodes_in_fp32():
    steps = [("MatMul", [weights(8, 8)], {})] * 3
    _, kept = convert(network(*steps), peaks={"matmul1_out": 33000.0, "matmul0_out": 32000.0})
    assert list(kept) == ["matmul1", "matmul2"]
    assert kept["matmul1"] == "'matmul1_out' reaches 33000, and the largest FP16 number is 65504"


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


SMALL = "'matmul1_out' only reaches 5e-06, and FP16 loses precision below 6.1e-05"


def test_a_tensor_that_is_small_throughout_keeps_its_nodes_in_fp32():
    steps = [("MatMul", [weights(8, 8)], {})] * 3
    _, kept = convert(network(*steps), peaks={"matmul1_out": 5e-6, "matmul0_out": 7e-5})
    assert kept == {"matmul1": SMALL, "matmul2": SMALL}
    assert convert(network(*steps), peaks={"matmul1_out": 0.0})[1] == {}


def test_a_small_tensor_that_is_moved_stays_small():
    steps = [("MatMul", [weights(8, 8)], {})] * 2 + [("Transpose", [], {}), ("Relu", [], {}), ("Neg", [], {})]
    _, kept = convert(network(*steps), peaks={"matmul1_out": 5e-6})
    assert list(kept) == ["matmul1", "transpose2", "relu3", "neg4"]


def test_a_sum_with_a_small_summand_is_in_fp16():
    g = Shaped(quantized=False)
    small = g.op("MatMul", ["x", g.weights(8, 8)], "small")
    model = g.model({"x": [2, 8]}, g.op("Add", ["x", small], "add"))
    assert list(convert(model, peaks={"small_out": 1e-6, "add_out": 1.0})[1]) == ["small"]
    assert list(convert(model, peaks={"small_out": 1e-6})[1]) == ["small", "add"]


def test_nodes_beside_a_pair_whose_scale_is_inexact_in_fp16_stay_in_fp32():
    g = Shaped(quantized=False)
    scale, zero_point = g.constant(np.float32(30.5 * 2**-24)), g.constant(np.int8(0))
    made = g.op("Relu", ["x"], "makes")
    quantized = g.op("QuantizeLinear", [made, scale, zero_point], "quantize")
    read = g.op("DequantizeLinear", [quantized, scale, zero_point], "dequantize")
    other = g.op("Abs", [made], "reads_the_float_tensor")
    read = g.op("MatMul", [read, g.weights(8, 8)], "reads")
    model, kept = convert(g.model({"x": [2, 8]}, g.op("Add", [read, other], "add")))
    assert kept == {
        "makes": "the scale of 'makes_out' does not fit FP16",
        "reads": "the scale of 'dequantize_out' does not fit FP16",
    }
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
    seen = g.op("Cast", ["mask"], "seen", to=9)
    chosen = g.op("Where", [seen, g.constant(np.float32(0)), g.constant(np.float32(low))], "chosen")
    mask = g.op("Expand", [chosen, g.constant(np.array([2, 8]))], "expand")
    scores = g.op("MatMul", ["x", g.weights(8, 8)], "scores")
    softmax = g.op("Softmax", [g.op("Add", [scores, mask], "mask_add")], "softmax", axis=-1)
    return g.model({"x": [2, 8], "mask": [1, 8]}, softmax)


def test_the_rules_need_no_ranges():
    prepared = prepare(load_model(network(("Exp", [], {}), ("Relu", [], {}))))
    assert float32_nodes(prepared.graph_model, None, {}) == {
        "exp0": "it exponentiates, which FP16 may not hold"
    }


def test_what_a_schema_says_about_types():
    resize = ("Resize", [np.zeros(0, np.float32), np.array([1, 2], np.float32)], {"mode": "nearest"})
    model = load_model(network(resize)).graph_model
    found = signature(model.graph[0], model)
    assert (found.inputs, found.outputs) == ((True, True, False), (True,))
    assert found.known and found.has_half_form


def test_an_operator_that_onnx_does_not_define():
    source = network(("Relu", [], {}))
    source.graph.node[0].domain = "mine"
    source.opset_import.append(helper.make_opsetid("mine", 1))
    model = ir.from_proto(source)
    found = signature(model.graph[0], model)
    assert (found.inputs, found.outputs, found.known) == ((False,), (False,), False)
    assert float32_nodes(model, None, {}) == {
        "relu0": "ONNX does not define the operator, so its types are unknown"
    }


TURNS = (("projection_out", "turn"), ("turn", "turned"))


def recurrent(operator, *, lengths):
    """A projection in INT8 or FP16, and a recurrent operator whose sequences have lengths of their own."""
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[operator]
    g = Shaped(quantized=False)
    x = g.op("MatMul", ["x", g.weights(8, 8)], "projection")
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
    reasons = {
        "projection": "it makes the sequences of 'steps', right before which TensorRT takes no cast",
        "steps": "TensorRT hides what lies beyond a sequence's length by zeros in FP32",
    }
    assert kept == (reasons if lengths else {})


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
    layer = g.op("Softmax", [g.op("MatMul", ["x", g.constant(weights(8, 8))], "layer")], "soft")
    # Computed, so that nothing folds the node away.
    size = g.op("Squeeze", [g.op("Shape", [layer], "shape", start=1), g.constant(np.array([0]))], "size")
    inputs = [g.constant(np.asarray(value)) for value in constants]
    if operator.endswith("Window"):
        inputs = [size]
    elif operator == "MelWeightMatrix":
        lowest = g.op("ReduceMin", [layer], "lowest", keepdims=0)
        inputs += [lowest, g.op("Add", [lowest, g.constant(np.float32(3000))], "highest")]
    elif operator == "ConstantOfShape":
        inputs = [g.op("Shape", [layer], "sizes")]
    elif not operator.endswith(("Normal", "Uniform")):
        inputs = [layer]
    made = g.op(operator, inputs, "made", **attributes)
    if operator == "MelWeightMatrix":
        made = g.op("ReduceMax", [made], "most", keepdims=0)
    elif operator.endswith("Window"):
        made = g.op("Reshape", [made, g.constant(np.array([8]))], "row")
    source = g.model({"x": [2, 8]}, g.op("Add", [layer, made], "sum"))
    source.opset_import[0].version = opset
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    wanted = run(source, {"x": x}) if operator != "Bernoulli" else None
    found = run(convert(source, float32_io=True)[0], {"x": x})
    if wanted is not None:
        np.testing.assert_allclose(found, wanted, atol=2e-3)
