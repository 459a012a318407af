"""The channels of weights."""

import numpy as np
import onnx_ir as ir
import pytest

from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.equalization.following import constants
from trtint8.equalization.following.constants import (
    channel_numbers,
    has_constant_bias,
    input_ranges,
    is_linear,
    measure_shapes,
    read_axis,
)


def node(operator, weights, shape, inputs=(), **attributes):
    g = Shaped(quantized=False)
    g.op(operator, ["x", g.constant(np.float32(weights)), *inputs], "node", **attributes)
    fed = {"x": shape} | {name: [2] for name in inputs}
    return next(one for one in prepared(g.model(fed, "node_out")).graph if one.name == "node")


def test_matrices():
    plain = node("MatMul", np.ones((3, 2)), ["N", 3])
    outputs, inputs = (np.broadcast_to(one, (3, 2)) for one in channel_numbers(plain, (3, 2)))
    np.testing.assert_array_equal(outputs, [[0, 1]] * 3)
    np.testing.assert_array_equal(inputs, [[0, 0], [1, 1], [2, 2]])
    turned = node("Gemm", np.ones((2, 3)), ["N", 3], transB=1)
    outputs, inputs = (np.broadcast_to(one, (2, 3)) for one in channel_numbers(turned, (2, 3)))
    np.testing.assert_array_equal(outputs, [[0] * 3, [1] * 3])
    np.testing.assert_array_equal(inputs, [[0, 1, 2]] * 2)
    assert read_axis(plain) == read_axis(turned) == -1
    assert read_axis(node("Gemm", np.ones((3, 2)), [3, 4], transA=1)) == 0


def test_grouped_convolutions():
    conv = node("Conv", np.ones((4, 2, 1, 1)), [1, 4, 3, 3], group=2)
    outputs, inputs = (np.broadcast_to(one, (4, 2, 1, 1)) for one in channel_numbers(conv, (4, 2, 1, 1)))
    np.testing.assert_array_equal(inputs[..., 0, 0], [[0, 1], [0, 1], [2, 3], [2, 3]])
    np.testing.assert_array_equal(outputs[..., 0, 0], [[0, 0], [1, 1], [2, 2], [3, 3]])
    up = node("ConvTranspose", np.ones((4, 3, 1, 1)), [1, 4, 3, 3], group=2)
    outputs, inputs = (np.broadcast_to(one, (4, 3, 1, 1)) for one in channel_numbers(up, (4, 3, 1, 1)))
    np.testing.assert_array_equal(outputs[..., 0, 0], [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]])
    np.testing.assert_array_equal(inputs[..., 0, 0], [[0] * 3, [1] * 3, [2] * 3, [3] * 3])
    assert read_axis(up) == 1


def test_ranges_of_the_weights_that_read_a_channel():
    weights = np.array([[1, 4], [2, 3], [16, -9], [5, 25]], np.float64).reshape(4, 2, 1, 1)
    conv = node("Conv", weights, [1, 4, 3, 3], group=2)
    np.testing.assert_array_equal(input_ranges(conv, weights), [2, 4, 16, 25])


def test_which_nodes_are_linear():
    assert is_linear(node("MatMul", np.ones((3, 2)), ["N", 3]))
    assert not is_linear(node("MatMul", np.ones((1, 3, 2)), ["N", 4, 3]))
    assert not is_linear(node("Mul", np.ones((1, 3)), ["N", 3]))
    assert has_constant_bias(node("Gemm", np.ones((3, 2)), ["N", 3]))
    assert not has_constant_bias(node("Gemm", np.ones((3, 2)), ["N", 3], inputs=("bias",)))


def test_weights_without_elements_are_not_followed():
    assert is_linear(node("MatMul", np.ones((3, 2)), ["N", 3]))
    assert not is_linear(node("MatMul", np.ones((3, 0)), ["N", 3]))


def reshaped():
    g = Shaped(quantized=False)
    first = g.op("Gather", [g.op("Shape", ["x"], "shape"), g.constant(np.int64([0]))], "rows")
    shape = g.op("Concat", [first, g.constant(np.int64([-1]))], "target", axis=0)
    x = g.op("Reshape", ["x", shape], "flat")
    where = g.op("ArgMax", ["x"], "where", axis=1)
    g.op("Cast", [where], "cast", to=1)
    return prepared(g.model({"x": ["N", 2, 3]}, g.op("MatMul", [x, g.weights(6, 4)], "layer")))


def test_shapes_of_tensors_and_integers_computed_from_shapes():
    found = measure_shapes(reshaped(), {"x": normal(2, 2, 3)})
    assert found.shapes["x"] == (2, 2, 3)
    assert found.shapes["flat_out"] == (2, 6) and found.shapes["layer_out"] == (2, 4)
    np.testing.assert_array_equal(found.integers["target_out"], [2, -1])
    assert "where_out" not in found.integers


def test_a_feed_that_does_not_fit_is_refused():
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        measure_shapes(reshaped(), {"x": normal(5, 7, 3)})


def test_two_samples_are_enough_where_the_model_takes_any_number():
    assert measure_shapes(reshaped(), {"x": normal(5, 2, 3)}).shapes["layer_out"] == (2, 4)
    g = Shaped(quantized=False)
    fixed = prepared(g.model({"x": [4, 3]}, g.op("MatMul", ["x", g.weights(3, 2)], "layer")))
    assert measure_shapes(fixed, {"x": normal(4, 3)}).shapes["layer_out"] == (4, 2)


def test_a_model_that_says_any_number_and_computes_with_one_only():
    g = Shaped(quantized=False)
    x = g.op("Reshape", ["x", g.constant(np.int64([5, 6]))], "flat")
    model = prepared(g.model({"x": ["N", 2, 3]}, g.op("MatMul", [x, g.weights(6, 4)], "layer")))
    assert measure_shapes(model, {"x": normal(5, 2, 3)}).shapes["layer_out"] == (5, 4)


def test_nothing_is_run_where_all_shapes_are_known(monkeypatch):
    g = Shaped(quantized=False)
    model = prepared(
        g.model({"x": ["N", 3]}, g.op("Relu", [g.op("MatMul", ["x", g.weights(3, 5)], "layer")], "y"))
    )
    wanted = measure_shapes(model, {"x": normal(4, 3)})
    monkeypatch.setattr(constants, "open_graph_model", None)
    found = measure_shapes(model, {"x": normal(4, 3)})
    assert found == wanted
    assert found.shapes == {"x": (2, 3), "layer_out": (2, 5), "y_out": (2, 5)} and not found.integers


def test_graphs_inside_a_node_may_read_any_value():
    inner = ir.Graph([], [], nodes=[], name="inner")
    for attribute in (ir.AttrGraph("branch", inner), ir.AttrGraphs("branches", [inner])):
        node = ir.Node("own", "Switch", [], [attribute], outputs=[ir.Value(name="y")])
        assert not constants._computed_from_shapes(ir.Graph([], node.outputs, nodes=[node], name="graph"))
