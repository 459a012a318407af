"""Gradients of normalizations and of Softmax."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import (
    assert_gradients,
    network,
    of_one,
    run,
    with_gradients,
)
from trtint8.sensitivity.gradients.normalizations import NORMALIZATIONS
from trtint8.sensitivity.gradients.rule import NoGradientError

X = {"x": ["N", 3, 5]}
GROUPS = {"x": ["N", 6, 2, 3]}


CASES = {
    "Softmax": of_one("Softmax", axis=1),
    "LayerNormalization": of_one("LayerNormalization", [1, 2, 3, 4, 5], [0, 1, 0, 1, 0], axis=-1),
    "BatchNormalization": of_one("BatchNormalization", [1, 2, 3], [0, 1, 2], [0.5, 0, 1], [1, 2, 3]),
    "InstanceNormalization": of_one("InstanceNormalization", [1, 2, 3], [0, 1, 2], epsilon=0.1),
    "LogSoftmax": of_one("LogSoftmax", axis=1),
    "LpNormalization": of_one("LpNormalization", axis=1),
}

#: Of operators that take images alone, or are new in opset 18, 21 or 23.
OTHERS = [
    (17, GROUPS, of_one("LRN", size=3, alpha=2.0, beta=0.6, bias=0.7)),
    (17, GROUPS, of_one("LRN", size=5, alpha=3.0)),
    (18, GROUPS, of_one("GroupNormalization", [1, 2], [0, 1], num_groups=2)),
    (21, GROUPS, of_one("GroupNormalization", range(1, 7), range(6), num_groups=3, epsilon=0.1)),
    (23, X, of_one("RMSNormalization", [1, 2, 3, 4, 5], epsilon=0.1)),
    (23, X, of_one("RMSNormalization", np.arange(1, 16).reshape(3, 5), axis=1)),
]


@pytest.mark.parametrize("kind", CASES)
def test_of_one_tensor(kind):
    nodes, constants = CASES[kind]
    assert_gradients(nodes, X, constants, step=1e-3)


@pytest.mark.parametrize(("opset", "shapes", "case"), OTHERS)
def test_of_one_tensor_of_other_operators(opset, shapes, case):
    nodes, constants = case
    assert_gradients(nodes, shapes, constants, opset=opset, step=1e-3)


def test_values_of_length_zero_have_no_infinite_gradient():
    model = with_gradients(network([("LpNormalization", ["x"], "y", {})], X), ["x"])
    feed = {"x": np.zeros((1, 3, 5), np.float32), "direction": np.ones((1, 3, 5), np.float32)}
    _, gradient = run(model, feed)
    assert np.isfinite(gradient).all()


def test_a_window_without_a_middle_has_no_gradient():
    nodes, constants = of_one("LRN", size=2)
    with pytest.raises(NoGradientError, match="its window has no channel in the middle"):
        with_gradients(network(nodes, GROUPS, constants), ["x"])


def test_another_norm_has_no_gradient():
    nodes, constants = of_one("LpNormalization", p=1)
    with pytest.raises(NoGradientError, match="'y': it divides by another norm than the Euclidean one"):
        assert_gradients(nodes, X, constants)


def test_every_rule_is_tested():
    assert {*CASES, *(nodes[0][0] for _, _, (nodes, _) in OTHERS)} == set(NORMALIZATIONS)
