"""What decides by its values, and what leads up to that, stays in FP32."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import trtint8
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.quantization.float16.half_models import FLOAT, HALF, convert, network, types, weights
from trtint8.models.model import load_model, prepare
from trtint8.quantization.float16.decisions import find_decisions


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
    ],
)
def test_what_leads_up_to_a_decision_since_the_last_layer_stays_in_fp32(decision):
    name = f"{decision[0].lower()}3"
    assert kept(product(), ("Sigmoid", [], {}), ("Mul", [np.float32(3)], {}), decision) == {
        "sigmoid1",
        "mul2",
        name,
    }


@pytest.mark.parametrize("compare", ["Equal", "GreaterOrEqual", "Less"])
def test_values_of_a_layer_that_are_compared_with_one_another_keep_the_layer(compare):
    g = Shaped(quantized=False)
    body = g.op("Relu", [g.op("Conv", ["x", g.weights(4, 4, 3, 3)], "body")], "relu")
    heat = g.op("Sigmoid", [g.op("Conv", [body, g.weights(1, 4, 1, 1)], "head")], "sigmoid")
    peak = g.op("MaxPool", [heat], "pool", kernel_shape=[3, 3], pads=[1] * 4)
    found = g.op("Cast", [g.op(compare, [heat, peak], "compare")], "found", to=FLOAT)
    _, names = convert(g.model({"x": [1, 4, 8, 8]}, g.op("Mul", [heat, found], "peaks")))
    assert {"head", "sigmoid", "pool", "compare"} <= set(names) and "body" not in names


def test_the_residual_stream_before_the_last_layer_is_not_led_up_to():
    g = Shaped(quantized=False)
    x = g.op("MatMul", ["x", g.weights(8, 8)], "first")
    for name in ("second", "third"):
        x = g.op("Add", [g.op("MatMul", [x, g.weights(8, 8)], name), x], f"{name}_add")
    decided = g.op("Greater", [x, g.constant(np.float32(0))], "decide")
    _, names = convert(g.model({"x": [2, 8]}, g.op("Cast", [decided], "found", to=FLOAT)))
    assert set(names) == {"third_add", "decide", "found"}


def test_coordinates_stay_in_fp32():
    g = Shaped(quantized=False)
    image = g.op("Conv", ["x", g.weights(4, 4, 1, 1)], "image")
    flow = g.op("Conv", ["x", g.weights(2, 4, 1, 1)], "flow")
    grid = g.op("Transpose", [flow], "grid", perm=[0, 2, 3, 1])
    sampled = g.op("GridSample", [image, grid], "sample")
    model = g.model({"x": [1, 4, 8, 8]}, g.op("Conv", [sampled, g.weights(4, 4, 1, 1)], "last"))
    assert set(convert(model)[1]) == {"flow", "grid", "sample"}


def test_positions_times_frequencies_stay_in_fp32():
    """A product of one column and one row is no layer, but as many single products."""
    g = Shaped(quantized=False)
    positions = g.op("Cast", ["x"], "whole", to=TensorProto.INT64)
    positions = g.op("Cast", [positions], "positions", to=FLOAT)
    angles = g.op("MatMul", [positions, g.weights(1, 16)], "angles")
    model = g.model({"x": [8, 1]}, g.op("MatMul", [g.op("Cos", [angles], "cos"), g.weights(16, 4)], "layer"))
    assert set(convert(model)[1]) == {"whole", "positions", "angles", "cos"}


def test_decisions_within_branches_count():
    nodes = [
        helper.make_node("Greater", ["shared", "zero"], ["b"]),
        helper.make_node("Cast", ["b"], ["c"], to=FLOAT),
    ]
    branch = helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("c", FLOAT, None)])
    g = Shaped(quantized=False)
    g.constants.append(onnx.numpy_helper.from_array(np.float32(0), "zero"))
    g.op("Sigmoid", [g.op("MatMul", ["x", g.weights(8, 8)], "layer")], "score")
    g.nodes[-1].output[0] = "shared"
    g.nodes.append(helper.make_node("If", ["flag"], ["y"], name="if", then_branch=branch, else_branch=branch))
    model = g.model({"x": [2, 8]}, "y")
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    assert set(convert(model)[1]) == {"score", "if"}


def flat_peaks():
    """Heat maps with one flat peak each, found by comparing every pixel with the largest around it."""
    g = Shaped(quantized=False)
    kernel = np.exp(-(np.mgrid[-2:3, -2:3] ** 2).sum(0) / 2).astype(np.float32)
    first = np.zeros((4, 1, 3, 3), np.float32)
    first[:, 0, 1, 1] = 1
    body = g.op("Relu", [g.op("Conv", ["x", g.constant(first)], "body", pads=[1] * 4)], "relu")
    head = [g.constant(np.full((1, 4, 1, 1), 1.2, np.float32)), g.constant(np.array([-1], np.float32))]
    heat = g.op("Sigmoid", [g.op("Conv", [body, *head], "head")], "sigmoid")
    blurred = g.op("Conv", [heat, g.constant((kernel / kernel.sum())[None, None])], "blur", pads=[2] * 4)
    largest = g.op("MaxPool", [blurred], "largest", kernel_shape=[9, 9], pads=[4] * 4)
    equal = g.op("Cast", [g.op("Equal", [blurred, largest], "equal")], "is_peak", to=FLOAT)
    model = g.model({"x": [1, 1, 64, 64]}, g.op("Mul", [largest, equal], "peaks"))
    random, (rows, columns) = np.random.default_rng(3), np.mgrid[:64, :64]
    offsets = random.uniform(-0.5, 0.5, (8, 2))
    maps = [np.exp(-((rows - 32 - a) ** 2 + (columns - 32 - b) ** 2) / 392)[None, None] for a, b in offsets]
    return model, [one.astype(np.float16).astype(np.float32) for one in maps]


def test_fp16_finds_as_many_peaks():
    model, maps = flat_peaks()
    table = trtint8.calibrate(model, [{"x": one} for one in maps], method="minmax", progress=False)
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
    table = trtint8.calibrate(model, [{"x": one} for one in maps], method="minmax", progress=False)
    with pytest.warns(UserWarning, match="'blur_out'.*'largest_out'"):
        half = trtint8.quantize(model, table, keep_float=["*"], float16=True)
    assert {one.name: one.type.tensor_type.elem_type for one in half.graph.output} == {
        "peaks_out": HALF, "blur_out": FLOAT, "largest_out": FLOAT,
    }  # fmt: skip


def test_thousands_of_decisions_in_a_row_are_found():
    g = Shaped(quantized=False)
    y = g.op("MatMul", ["x", g.weights(8, 8)], "layer")
    for number in range(4000):
        y = g.op("Floor", [y], f"floor{number}")
    found = find_decisions(prepare(load_model(g.model({"x": [2, 8]}, y))).graph_model)
    assert len(found.nodes) == 4000
