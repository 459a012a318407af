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
    with pytest.raises(NoGradientError, match="Det 'y': the gradient of this operator is not known"):
        assert_gradients([("Det", ["x"], "y", {})], {"x": ["N", 2, 2]})


def test_what_does_not_depend_on_the_tensors_needs_no_rule():
    nodes = [("Sign", ["c"], "s", {}), ("Add", ["x", "s"], "y", {})]
    assert_gradients(nodes, {"x": ["N", 2]}, {"c": np.ones((1, 2), np.float32)})


@pytest.mark.parametrize(
    ("node", "computed", "missing"),
    [
        (("LayerNormalization", ["x", "a"], "y", {}), [0], 1),
        (("LayerNormalization", ["x", "ones", "a"], "y", {}), [0], 2),
        (("Clip", ["x", "", "a"], "y", {}), [0, 1], 2),
        (("Pad", ["x", "pads", "a"], "y", {}), [0, 1], 2),
        (("BatchNormalization", ["x", "ones", "a", "ones", "ones"], "y", {}), [0], 2),
    ],
    ids=["scale", "bias", "bound", "padding", "bias of channels"],
)
def test_an_input_that_a_rule_leaves_out_is_refused(node, computed, missing):
    nodes = [("ReduceMean", ["x"], "a", {"axes": computed, "keepdims": 0}), node]
    constants = {"ones": np.ones(2, np.float32), "pads": np.array([0, 1, 0, 1])}
    with pytest.raises(NoGradientError, match=f"{node[0]} 'y': the gradient of its input {missing} is not"):
        assert_gradients(nodes, {"x": [1, 2]}, constants)


@pytest.mark.parametrize("kind", [10, 11], ids=["FP16", "FP64"])
def test_a_way_through_another_floating_point_type_is_refused(kind):
    nodes = [
        ("Cast", ["x"], "a", {"to": kind}),
        ("Cast", ["a"], "b", {"to": 1}),
        ("Add", ["x", "b"], "y", {}),
    ]
    with pytest.raises(NoGradientError, match=r"Cast '.': it changes the type"):
        assert_gradients(nodes, {"x": ["N", 2]})
