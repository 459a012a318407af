"""Operators without weights on integers, by hand."""

import numpy as np
import pytest

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.quantization.integer.exact_models import pair
from trtint8.quantization.integer.inference import run_integer


def test_matmul_of_two_activations_and_pooling_in_between():
    g = Shaped()
    pooled = g.op("MaxPool", [pair(g, "x", 0.5)], "pool", kernel_shape=[2, 2], strides=[2, 2])
    turned = g.op("Transpose", [pooled], "turn", perm=[0, 1, 3, 2])
    model = g.model(
        {"x": [1, 1, 4, 4]}, g.op("MatMul", [pair(g, pooled, 0.5), pair(g, turned, 0.5)], "matmul")
    )
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    run = run_integer(model, {"x": x})
    assert run.outputs["matmul_out"].tolist() == [[[[74.0, 170.0], [170.0, 394.0]]]]
    assert run.largest_sums == {"matmul": 4 * 394}


PLANE = np.array([[[[1.0, -2.0], [0.5, 0.3]]]], np.float32)  # [2, -4, 1, 1] * 0.5


@pytest.mark.parametrize(
    ("operator", "attributes", "wanted"),
    [
        ("GlobalAveragePool", {}, [[[[0.0]]]]),
        ("AveragePool", {"kernel_shape": [1, 2]}, [[[[-0.5], [0.5]]]]),
        ("MaxPool", {"kernel_shape": [2, 1]}, [[[[1.0, 0.5]]]]),
        ("Relu", {}, [[[[1.0, 0.0], [0.5, 0.5]]]]),
        ("Flatten", {}, [[1.0, -2.0, 0.5, 0.5]]),
    ],
)
def test_operators_on_whole_numbers(operator, attributes, wanted):
    g = Shaped()
    model = g.model({"x": [1, 1, 2, 2]}, g.op(operator, [pair(g, "x", 0.5)], "node", **attributes))
    assert run_integer(model, {"x": PLANE}).outputs["node_out"].tolist() == wanted


@pytest.mark.parametrize("second", [0.5, 0.25])
def test_sums_and_concatenations_of_one_scale_and_of_two(second):
    """At 0.5, 1.6 is 3 steps (1.5); at 0.25 it is 6 steps (1.5): the sums are the same, exactly."""
    for operator, wanted in (("Add", [[2.5, -0.5]]), ("Concat", [[1.0, -2.0, 1.5, 1.5]])):
        g = Shaped()
        inputs = [pair(g, "x", 0.5), pair(g, "z", second)]
        attributes = {"axis": 1} if operator == "Concat" else {}
        model = g.model({"x": ["N", 2], "z": ["N", 2]}, g.op(operator, inputs, "node", **attributes))
        feeds = {"x": np.array([[1.0, -2.0]], np.float32), "z": np.array([[1.6, 1.4]], np.float32)}
        assert run_integer(model, feeds).outputs["node_out"].tolist() == wanted


def test_an_average_of_whole_numbers_is_rounded_once():
    """Three values of 0.1 steps: the sum of 100 + 100 + 101 is exact before the scale touches it."""
    g = Shaped()
    model = g.model({"x": [1, 1, 3]}, g.op("GlobalAveragePool", [pair(g, "x", 0.1)], "node"))
    run = run_integer(model, {"x": np.array([[[10.0, 10.0, 10.1]]], np.float32)})
    assert run.outputs["node_out"].item() == np.float32(np.float64(301 / 3) * np.float32(0.1))
