"""The channels of weights."""

import numpy as np

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import prepared
from trtint8.equalization.following.weights import (
    channel_numbers,
    has_constant_bias,
    input_ranges,
    is_linear,
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
