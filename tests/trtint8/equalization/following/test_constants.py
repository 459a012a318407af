"""The channels of weights."""

import numpy as np
import pytest

from tests.trtint8.onnx_models import parsed
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


def node(text, weights, inputs="float[N, 3] x"):
    """A node that reads weights ``w``."""
    made = parsed(inputs, "float[] y", f"[node] y = {text}", w=np.float32(weights))
    return next(one for one in prepared(made).graph if one.name == "node")


IMAGES = "float[1, 4, 3, 3] x"
UP = node("ConvTranspose <group = 2> (x, w)", np.ones((4, 3, 1, 1)), IMAGES)
TURNED = node("Gemm <transB = 1> (x, w)", np.ones((2, 3)))
PLAIN = node("MatMul (x, w)", np.ones((3, 2)))


@pytest.mark.parametrize(
    ("made", "shape", "outputs", "inputs"),
    [
        (PLAIN, (3, 2), [[0, 1]] * 3, [[0, 0], [1, 1], [2, 2]]),
        (TURNED, (2, 3), [[0] * 3, [1] * 3], [[0, 1, 2]] * 2),
        (
            node("Conv <group = 2> (x, w)", np.ones((4, 2, 1, 1)), IMAGES),
            (4, 2, 1, 1),
            [[0, 0], [1, 1], [2, 2], [3, 3]],
            [[0, 1], [0, 1], [2, 3], [2, 3]],
        ),
        (
            UP,
            (4, 3, 1, 1),
            [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]],
            [[0] * 3, [1] * 3, [2] * 3, [3] * 3],
        ),
    ],
)
def test_the_channels_of_weights(made, shape, outputs, inputs):
    found = [np.broadcast_to(one, shape).reshape(shape[:2]).tolist() for one in channel_numbers(made, shape)]
    assert found == [outputs, inputs]


def test_the_axis_that_weights_are_multiplied_along():
    assert read_axis(PLAIN) == read_axis(TURNED) == -1
    assert read_axis(node("Gemm <transA = 1> (x, w)", np.ones((3, 2)), "float[3, 4] x")) == 0
    assert read_axis(UP) == 1


def test_ranges_of_the_weights_that_read_a_channel():
    weights = np.array([[1, 4], [2, 3], [16, -9], [5, 25]], np.float64).reshape(4, 2, 1, 1)
    conv = node("Conv <group = 2> (x, w)", weights, IMAGES)
    np.testing.assert_array_equal(input_ranges(conv, weights), [2, 4, 16, 25])


@pytest.mark.parametrize(
    ("made", "linear"),
    [
        (PLAIN, True),
        (node("MatMul (x, w)", np.ones((1, 3, 2)), "float[N, 4, 3] x"), False),
        (node("Mul (x, w)", np.ones((1, 3))), False),
        (node("MatMul (x, w)", np.ones((3, 0))), False),  # weights without elements are not followed
    ],
)
def test_which_nodes_are_linear(made, linear):
    assert is_linear(made) is linear


def test_biases_that_are_constant():
    assert has_constant_bias(node("Gemm (x, w)", np.ones((3, 2))))
    inputs = "float[N, 3] x, float[2] bias"
    assert not has_constant_bias(node("Gemm (x, w, bias)", np.ones((3, 2)), inputs))


def reshaped():
    body = """shape = Shape (x) rows = Gather (shape, zero) target = Concat <axis = 0> (rows, rest)
        flat = Reshape (x, target) layer = MatMul (flat, w)"""
    constants = {"zero": np.array([0]), "rest": np.array([-1]), "w": normal(6, 4)}
    return prepared(parsed("float[N, 2, 3] x", "float[] layer", body, **constants))


def size_of(shapes, model, name):
    return shapes.of(next(value for value in graph_values(model.graph) if value.name == name))


def test_shapes_of_tensors_and_integers_computed_from_shapes():
    model = reshaped()
    found = shapes_of_samples(model, {"x": normal(2, 2, 3)})
    sizes = {name: size_of(found, model, name) for name in ("x", "flat", "layer")}
    assert sizes == {"x": (2, 2, 3), "flat": (2, 6), "layer": (2, 4)}
    values = {value.name: value for value in graph_values(model.graph)}
    np.testing.assert_array_equal(found.integers_of(values["target"]), [2, -1])


@pytest.mark.parametrize(("count", "found"), [("N", 2), (4, 4)])
def test_two_samples_are_enough_where_the_model_takes_any_number(count, found):
    model = prepared(parsed(f"float[{count}, 3] x", "float[] layer", "layer = MatMul (x, w)", w=normal(3, 2)))
    assert size_of(shapes_of_samples(model, {"x": normal(4, 3)}), model, "layer") == (found, 2)
