"""The channels of weights."""

import numpy as np
import pytest

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.equalization.following.constants import (
    channel_numbers,
    has_constant_bias,
    input_ranges,
    is_linear,
    read_axis,
    shapes_of_samples,
)
from trtint8.models.graph import graph_values


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
    return prepared(g.model({"x": ["N", 2, 3]}, g.op("MatMul", [x, g.weights(6, 4)], "layer")))


def size_of(shapes, model, name):
    return shapes.of(next(value for value in graph_values(model.graph) if value.name == name))


def test_shapes_of_tensors_and_integers_computed_from_shapes():
    model = reshaped()
    found = shapes_of_samples(model, {"x": normal(2, 2, 3)})
    sizes = {name: size_of(found, model, name) for name in ("x", "flat_out", "layer_out")}
    assert sizes == {"x": (2, 2, 3), "flat_out": (2, 6), "layer_out": (2, 4)}
    values = {value.name: value for value in graph_values(model.graph)}
    np.testing.assert_array_equal(found.integers_of(values["target_out"]), [2, -1])


@pytest.mark.parametrize(("count", "found"), [("N", 2), (4, 4)])
def test_two_samples_are_enough_where_the_model_takes_any_number(count, found):
    g = Shaped(quantized=False)
    model = prepared(g.model({"x": [count, 3]}, g.op("MatMul", ["x", g.weights(3, 2)], "layer")))
    assert size_of(shapes_of_samples(model, {"x": normal(4, 3)}), model, "layer_out") == (found, 2)
