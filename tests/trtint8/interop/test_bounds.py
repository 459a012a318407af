"""Between which ends the values of tensors lie."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import Graph
from trtint8.interop.bounds import OPEN, Bounds
from trtint8.models.model import load_model

INFINITY = math.inf


def ends(g, output, **inputs):
    graph = load_model(g.model(inputs or {"x": ["N", 4, 8, 8]}, output)).graph_model.graph
    bounds = Bounds()
    for node in graph:
        bounds.follow(node)
    return bounds[graph.outputs[0]]


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("Relu", (0, INFINITY)),
        ("Sigmoid", (0, 1)),
        ("Softmax", (0, 1)),
        ("Tanh", (-1, 1)),
        ("Hardmax", (0, 1)),
        ("Atan", (-math.pi / 2, math.pi / 2)),
        ("LogSoftmax", (-INFINITY, 0)),
        ("GlobalLpPool", (0, INFINITY)),
        ("Dropout", OPEN),
        ("Exp", (0, INFINITY)),
        ("Neg", OPEN),
        ("Selu", OPEN),
    ],
)
def test_functions_have_ends(operator, wanted):
    g = Graph()
    assert ends(g, g.op(operator, ["x"], "y")) == wanted


def clip(g, source, low, high, name="clip"):
    return g.op("Clip", [source, g.constant(np.float32(low)), g.constant(np.float32(high))], name)


def test_ends_go_through_what_moves_values():
    g = Graph()
    x = clip(g, "x", -1, 3)
    x = g.op("MaxPool", [x], "pool", kernel_shape=[2, 2])
    x = g.op("Concat", [x, g.op("Relu", [x], "relu"), clip(g, x, 2, 9, "narrow")], "concat", axis=1)
    x = g.op("Pad", [x, g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))], "pad")
    assert ends(g, g.op("GlobalAveragePool", [x], "average")) == (-1, 3)


def test_what_is_looked_up_outside_is_zero_and_means_of_all_have_no_zeros():
    grid = {"x": ["N", 4, 8, 8], "grid": ["N", 5, 5, 2]}
    for attributes, wanted in (({}, (0, 3)), ({"mode": "bicubic"}, OPEN)):
        g = Graph()
        sampled = g.op("GridSample", [clip(g, "x", 2, 3), "grid"], "sample", **attributes)
        assert ends(g, sampled, **grid) == wanted
    g = Graph()
    assert ends(g, g.op("ReduceMean", [clip(g, "x", 2, 3)], "mean")) == (2, 3)


def test_places_of_the_largest_values_have_no_ends_of_values():
    g = Graph()
    x = clip(g, "x", -1, 3)
    g.nodes.append(helper.make_node("TopK", [x, g.constant(np.array([2]))], ["values", "places"]))
    assert ends(g, "values") == (-1, 3)
    g = Graph()
    x = clip(g, "x", -1, 3)
    g.nodes.append(helper.make_node("TopK", [x, g.constant(np.array([2]))], ["values", "places"]))
    assert ends(g, g.op("Cast", ["places"], "y", to=TensorProto.FLOAT)) == OPEN


def test_paddings_are_zeros():
    g = Graph()
    x = clip(g, "x", 2, 3)
    assert ends(g, g.op("Pad", [x, g.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))], "pad")) == (0, 3)
    g = Graph()
    pooled = g.op("AveragePool", [clip(g, "x", -3, -2)], "pool", kernel_shape=[2, 2], pads=[1] * 4)
    assert ends(g, pooled) == (-3, 0)


def test_sums_and_products():
    g = Graph()
    x = g.op("Sigmoid", ["x"], "gate")
    y = g.op("Add", [x, g.constant(np.float32([1, 3]).reshape(2, 1, 1, 1))], "add")
    assert ends(g, y) == (1, 4)
    g = Graph()
    x = g.op("Relu", ["x"], "relu")
    assert ends(g, g.op("Mul", [x, x], "mul")) == (0, INFINITY)
    g = Graph()
    assert ends(g, g.op("Mul", [g.op("Relu", ["x"], "relu"), "x"], "mul")) == OPEN


def test_a_cubic_resize_overshoots():
    for mode, wanted in (("linear", (0, 1)), ("cubic", OPEN)):
        g = Graph()
        scales = g.constant(np.float32([1, 1, 2, 2]))
        assert ends(g, g.op("Resize", [g.op("Sigmoid", ["x"], "s"), "", scales], "r", mode=mode)) == wanted


def test_a_resize_may_write_a_number_of_its_own_outside():
    g = Graph()
    region = g.constant(np.float32([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5]))
    sizes = g.constant(np.array([1, 2, 8, 8]))
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    assert ends(g, g.op("Resize", [g.op("Sigmoid", ["x"], "s"), region, "", sizes], "r", **crop)) == OPEN


def test_places_are_no_values():
    g = Graph()
    place = g.op("ArgMax", [g.op("Sigmoid", ["x"], "s")], "arg", axis=1)
    assert ends(g, g.op("Cast", [place], "cast", to=TensorProto.FLOAT)) == OPEN


def test_a_pair_has_ends():
    g = Graph()
    parameters = [g.constant(np.float32(0.5)), g.constant(np.uint8(10))]
    q = g.op("QuantizeLinear", ["x", *parameters], "q")
    assert ends(g, g.op("DequantizeLinear", [q, *parameters], "d")) == (-5, 122.5)


def test_constants_and_what_is_left_out():
    bounds = Bounds()
    assert bounds[None] == OPEN
