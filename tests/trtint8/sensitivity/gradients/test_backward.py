"""Gradients through several nodes."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import assert_gradients, network, run, with_gradients
from trtint8.sensitivity.gradients.rule import NoGradientError

WEIGHTS = np.array([[1, 2], [3, 4]], np.float32)


def test_a_tensor_that_is_read_twice_gets_both_gradients():
    nodes = [
        ("MatMul", ["x", "w"], "a", {}),
        ("Tanh", ["a"], "b", {}),
        ("Mul", ["a", "b"], "c", {}),
        ("Add", ["c", "x"], "y", {}),
    ]
    assert_gradients(nodes, {"x": ["N", 2]}, {"w": WEIGHTS}, step=1e-3)


def test_gradients_of_tensors_inside():
    model = network(
        [("MatMul", ["x", "w"], "a", {}), ("MatMul", ["a", "w"], "y", {})], {"x": ["N", 2]}, {"w": WEIGHTS}
    )
    made = with_gradients(model, ["a", "y"])
    direction = np.array([[1, -1]], np.float32)
    _, inside, last = run(made, {"x": np.ones((1, 2), np.float32), "direction": direction})
    np.testing.assert_array_equal(inside, direction @ WEIGHTS.T)
    np.testing.assert_array_equal(last, direction)


def test_an_operator_without_a_rule():
    with pytest.raises(NoGradientError, match="Softsign 'y': the gradient of this operator is not known"):
        assert_gradients([("Softsign", ["x"], "y", {})], {"x": ["N", 2]})


def test_what_does_not_depend_on_the_tensors_needs_no_rule():
    nodes = [("Softsign", ["c"], "s", {}), ("Add", ["x", "s"], "y", {})]
    assert_gradients(nodes, {"x": ["N", 2]}, {"c": np.ones((1, 2), np.float32)})
