"""Gradients of sums, means, norms and extremes over axes."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import assert_gradients, network, run, with_gradients
from trtint8.sensitivity.gradients.reductions import REDUCTIONS
from trtint8.sensitivity.gradients.rule import NoGradientError

X = {"x": ["N", 4, 6]}
AXES = {"axes": np.array([2], np.int64)}

CASES = {
    "ReduceL1": ([("ReduceL1", ["x"], "y", {"axes": [2]})], {}),
    "ReduceL2": ([("ReduceL2", ["x"], "y", {"axes": [-1], "keepdims": 0})], {}),
    "ReduceLogSumExp": ([("ReduceLogSumExp", ["x"], "y", {"axes": [1, 2]})], {}),
    "ReduceMean": ([("ReduceMean", ["x"], "y", {"axes": [1, -1], "keepdims": 0})], {}),
    "ReduceMax": ([("ReduceMax", ["x"], "y", {"axes": [-1]})], {}),
    "ReduceMin": ([("ReduceMin", ["x"], "y", {"axes": [1, 2], "keepdims": 0})], {}),
    "ReduceSum": ([("ReduceSum", ["x", "axes"], "y", {})], AXES),
    "ReduceSumSquare": ([("ReduceSumSquare", ["x"], "y", {"axes": [1]})], {}),
}


@pytest.mark.parametrize("kind", CASES)
def test_gradient(kind):
    nodes, constants = CASES[kind]
    assert_gradients(nodes, X, constants, step=1e-3)


def test_axes_are_an_input_in_later_opsets():
    assert_gradients([("ReduceL2", ["x", "axes"], "y", {})], X, AXES, opset=18, step=1e-3)


@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceL2", "ReduceMax"])
def test_a_reduction_over_no_axis_is_refused(kind):
    nodes = [(kind, ["x"], "y", {"noop_with_empty_axes": 1})]
    with pytest.raises(NoGradientError, match="it reduces no axis"):
        with_gradients(network(nodes, X, opset=18), ["x"])  # some ONNX Runtimes cannot run it
    nodes = [(kind, ["x"], "y", {"noop_with_empty_axes": 0})]
    assert_gradients(nodes, {"x": [2, 4, 6]}, opset=18, step=1e-3)


def test_axes_that_are_computed_are_refused():
    nodes = [("Shape", ["x"], "shape", {"start": 1, "end": 2}), ("Sub", ["shape", "three"], "axes", {})]
    nodes.append(("ReduceMean", ["x", "axes"], "y", {}))
    with pytest.raises(NoGradientError, match="its input 1 is computed"):
        assert_gradients(nodes, X, {"three": np.array([3], np.int64)}, opset=18)


def test_a_norm_of_zero_has_the_gradient_zero():
    model = with_gradients(network([("ReduceL2", ["x"], "y", {"axes": [2]})], X), ["x"])
    feed = {"x": np.zeros((1, 4, 6), np.float32), "direction": np.ones((1, 4, 1), np.float32)}
    _, gradient = run(model, feed)
    assert not gradient.any()


def test_every_rule_is_tested():
    assert set(CASES) == set(REDUCTIONS)
