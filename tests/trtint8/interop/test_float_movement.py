"""Operators that move integers, brought back to float."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.trtint8.integer_models import Integers, applied, operators, run
from trtint8.interop.integer_models import FloatOperatorsPass, move_in_float
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto

IMAGES = {"x": ["N", 4, 8, 8]}
X = np.random.default_rng(1).uniform(-5, 5, (3, 4, 8, 8)).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


#: Operator to its further constant inputs, its attributes, and the rank of what comes out.
CASES = {
    "MaxPool": ([], {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}, 4),
    "GlobalMaxPool": ([], {}, 4),
    "Reshape": ([ints(0, 32, -1)], {}, 3),
    "Flatten": ([], {}, 2),
    "Transpose": ([], {"perm": [0, 2, 3, 1]}, 4),
    "Unsqueeze": ([ints(2)], {}, 5),
    "Slice": ([ints(1), ints(3), ints(1)], {}, 4),
    "Gather": ([ints(2, 0)], {"axis": 1}, 4),
    "GatherElements": ([np.zeros((3, 4, 8, 8), np.int64)], {"axis": 3}, 4),
    "GatherND": ([ints(1, 0).reshape(2, 1)], {}, 4),
    "ReduceMax": ([], {"axes": [2, 3]}, 4),
    "ReverseSequence": ([ints(3, 1, 2)], {"time_axis": 1, "batch_axis": 0}, 4),
    "Compress": ([np.array([True, False, True, True])], {"axis": 1}, 4),
    "Tile": ([ints(1, 2, 1, 1)], {}, 4),
    "DepthToSpace": ([], {"blocksize": 2}, 4),
    "Pad": ([ints(0, 0, 1, 1, 0, 0, 2, 2), np.uint8(7)], {}, 4),
}

#: What ONNX Runtime computes on 8-bit data.
RUNNABLE = [name for name in CASES if name != "GlobalMaxPool"]


def moved(operator):
    g = Integers()
    data, *parameters = g.quantize("x")
    others, attributes, rank = CASES[operator]
    y = g.op(operator, [data, *map(g.constant, others)], "node", **attributes)
    return g.proto(IMAGES, g.dequantize(y, parameters), rank)


@pytest.mark.parametrize("operator", CASES)
def test_it_moves_floats_between_pairs(operator):
    graph_pass, model = FloatOperatorsPass(move_in_float), moved(operator)
    expanded, modified = applied(graph_pass, model)
    assert modified and graph_pass.replaced == {"node": "integer-data"}
    made = [name for name in operators(expanded) if name != "DequantizeLinear"]
    assert made == ["QuantizeLinear", operator, "QuantizeLinear"]
    if operator in RUNNABLE:
        assert np.array_equal(run(expanded, x=X), run(model, x=X))


def test_data_without_a_zero_point_keeps_the_type_that_its_quantizer_names():
    g = Integers()
    scale = g.constant(np.float32(0.05))
    data = g.op("QuantizeLinear", ["x", scale], "quantize", output_dtype=TensorProto.INT8)
    y = g.op("DequantizeLinear", [g.op("Flatten", [data], "node"), scale], "dequantize")
    model = g.proto(IMAGES, y, 2, opset=21)
    expanded, modified = applied(FloatOperatorsPass(move_in_float), model)
    assert modified
    assert np.array_equal(run(expanded, x=X), run(model, x=X))


def test_a_chain_moves_floats_throughout():
    g = Integers()
    data, *parameters = g.quantize("x")
    y = g.op("MaxPool", [data], "pool", kernel_shape=[2, 2])
    y = g.op("Flatten", [g.op("Transpose", [y], "transpose", perm=[0, 2, 3, 1])], "flatten")
    model = g.proto(IMAGES, g.dequantize(y, parameters), 2)
    graph_pass = FloatOperatorsPass(move_in_float)
    expanded, _ = applied(graph_pass, model)
    assert list(graph_pass.replaced) == ["pool", "transpose", "flatten"]
    assert np.array_equal(run(expanded, x=X), run(model, x=X))


def test_split_quantizes_all_that_it_makes():
    g = Integers()
    data, *parameters = g.quantize("x")
    g.op("Split", [data, g.constant(ints(1, 3))], "split", axis=1)
    g.nodes[-1].output.append("second")
    y = g.op("Concat", [g.dequantize(name, parameters) for name in ("second", "split_out")], "cat", axis=1)
    model = g.proto(IMAGES, y, 4)
    expanded, _ = applied(FloatOperatorsPass(move_in_float), model)
    assert operators(expanded).count("QuantizeLinear") == 3
    assert np.array_equal(run(expanded, x=X), run(model, x=X))


def test_indices_stay_what_they_are():
    g = Integers()
    data = g.quantize("x")[0]
    y = g.op("Cast", [g.op("ArgMax", [data], "argmax", axis=1, keepdims=0)], "cast", to=1)
    model = g.proto(IMAGES, y, 3)
    expanded, _ = applied(FloatOperatorsPass(move_in_float), model)
    assert operators(expanded) == ["QuantizeLinear", "DequantizeLinear", "ArgMax", "Cast"]
    assert np.array_equal(run(expanded, x=X), run(model, x=X))


def test_a_stored_table_takes_the_parameters_of_what_reads_it():
    g = Integers()
    ids = g.op("Cast", ["x"], "ids", to=7)
    rows = g.op("Gather", [g.random_integers(6, 5, dtype=np.uint8), ids], "gather")
    model = g.proto({"x": ["N"]}, g.dequantize(rows, g.parameters(0.02, np.uint8(130))), 2)
    expanded, _ = applied(FloatOperatorsPass(move_in_float), model)
    made = operators(expanded)
    assert made == ["Cast", "DequantizeLinear", "Gather", "QuantizeLinear", "DequantizeLinear"]
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_allclose(run(expanded, x=x), run(model, x=x), atol=1e-6)


def test_data_with_a_computed_scale_passes_unquantized():
    g = Integers()
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dynamic"))
    y = g.op("Pad", ["q", g.constant(ints(0, 0, 1, 1, 0, 0, 2, 2)), "z"], "pad")
    model = g.proto(IMAGES, g.dequantize(y, ["s", "z"]), 4)
    expanded, modified = applied(FloatOperatorsPass(move_in_float), model)
    assert modified
    pad = next(node for node in expanded.graph.node if node.op_type == "Pad")
    assert pad.input[0] == "x"
    assert np.array_equal(run(expanded, x=X), run(model, x=X))


@pytest.mark.parametrize("zero", [np.int8(0), np.int8(20), np.uint8(0), np.uint8(130)])
def test_a_pad_with_the_raw_zero_writes_what_that_represents(zero):
    g = Integers()
    parameters = [g.constant(np.float32(0.05)), g.constant(zero)]
    data = g.op("QuantizeLinear", ["x", *parameters], "q")
    y = g.op("Pad", [data, g.constant(ints(0, 0, 1, 1, 0, 0, 2, 2))], "node")
    model = g.proto(IMAGES, g.dequantize(y, parameters), 4)
    expanded, modified = applied(FloatOperatorsPass(move_in_float), model)
    assert modified
    np.testing.assert_allclose(run(expanded, x=X), run(model, x=X), atol=1e-6)


def test_a_pad_with_the_raw_zero_of_a_computed_scale_stays():
    g = Integers()
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dynamic"))
    y = g.op("Pad", ["q", g.constant(ints(0, 0, 1, 1, 0, 0, 2, 2))], "pad")
    _, modified = applied(FloatOperatorsPass(move_in_float), g.proto(IMAGES, g.dequantize(y, ["s", "z"]), 4))
    assert not modified


@pytest.mark.parametrize(
    ("second", "moves"),
    [
        ([np.float32(0.05)], True),
        ([np.array([0.05], np.float32), np.int8(0)], True),
        ([np.float32(0.07)], False),
        ([np.float32(0.05), np.int8(3)], False),
    ],
)
def test_a_concat_moves_floats_where_its_parameters_are_the_same_numbers(second, moves):
    g = Integers()
    parts = []
    for parameters in ([np.float32(0.05)], second):
        # Only with a zero point is the type that of the other operand, which ONNX demands.
        constants = [g.constant(one) for one in parameters]
        parts.append(
            g.op("QuantizeLinear", ["x", *constants], f"q{len(parts)}", output_dtype=TensorProto.INT8)
        )
    y = g.op("DequantizeLinear", [g.op("Concat", parts, "node", axis=1), g.constant(np.float32(0.05))], "dq")
    expanded, modified = applied(FloatOperatorsPass(move_in_float), g.proto(IMAGES, y, 4, opset=21))
    assert modified == moves
    if moves:
        assert np.array_equal(run(expanded, x=X), run(g.proto(IMAGES, y, 4, opset=21), x=X))


@pytest.mark.parametrize("same", [False, True])
def test_parameters_that_are_computed_are_the_same_only_as_values(same):
    g = Integers()
    for name in ("one", "two"):
        g.nodes.append(
            helper.make_node("DynamicQuantizeLinear", ["x"], [f"{name}{i}" for i in "qsz"], name=name)
        )
    parts = ["oneq", "oneq" if same else "twoq"]
    y = g.op("DequantizeLinear", [g.op("Concat", parts, "node", axis=1), "ones", "onez"], "dq")
    assert applied(FloatOperatorsPass(move_in_float), g.proto(IMAGES, y, 4))[1] == same


def test_float_and_index_data_are_left_alone():
    g = Integers()
    y = g.op("Reshape", [g.op("Transpose", ["x"], "t", perm=[0, 2, 3, 1]), g.constant(ints(0, -1))], "r")
    _, modified = applied(FloatOperatorsPass(move_in_float), g.proto(IMAGES, y, 2))
    assert not modified


def test_the_ends_of_a_clip_of_integers_become_floats():
    g = Integers()
    parameters = [g.constant(np.float32(0.5)), g.constant(np.uint8(100))]
    quantized = g.op("QuantizeLinear", ["x", *parameters], "q")
    ends = [g.constant(np.uint8(end)) for end in (90, 104)]
    out = g.op("DequantizeLinear", [g.op("Clip", [quantized, *ends], "clip"), *parameters], "dq")
    model = load_model(g.model({"x": ["N", 4]}, out)).graph_model.clone()
    movement = FloatOperatorsPass(move_in_float)
    movement(model)
    assert list(movement.replaced) == ["clip"]
    x = np.linspace(-9, 9, 64, dtype=np.float32).reshape(16, 4)
    found = run(to_proto(model), x=x)
    assert found.min() == -5 and found.max() == 2
    assert np.array_equal(found, run(g.model({"x": ["N", 4]}, out), x=x))
