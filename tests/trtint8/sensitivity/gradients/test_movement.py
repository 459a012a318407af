"""Gradients of operators that move, join, repeat or add up elements."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import assert_gradients, integers
from trtint8.sensitivity.gradients.movement import MOVEMENT

X = {"x": ["N", 4, 6]}


CASES = {
    "Reshape": ([("Reshape", ["x", "to"], "y", {})], integers(to=[0, 3, 8])),
    "Flatten": ([("Flatten", ["x"], "y", {})], {}),
    "Unsqueeze": ([("Unsqueeze", ["x", "axes"], "y", {})], integers(axes=[1])),
    "Squeeze": (
        [("ReduceMean", ["x"], "m", {"axes": [1]}), ("Squeeze", ["m", "axes"], "y", {})],
        integers(axes=[1]),
    ),
    "Transpose": ([("Transpose", ["x"], "y", {"perm": [2, 0, 1]})], {}),
    "Concat": ([("Relu", ["x"], "r", {}), ("Concat", ["x", "r", "x"], "y", {"axis": 2})], {}),
    "Pad": ([("Pad", ["x", "pads"], "y", {})], integers(pads=[0, 1, 0, 0, 2, 3])),
    "Split": (
        [
            ("Split", ["x", "sizes"], "a b c", {"axis": 1}),
            ("Mul", ["a", "c"], "y", {}),
        ],
        integers(sizes=[1, 2, 1]),
    ),
    "Expand": (
        [("ReduceMean", ["x"], "m", {"axes": [1]}), ("Expand", ["m", "to"], "y", {})],
        integers(to=[5, 1, 4, 1]),
    ),
    "CumSum": ([("CumSum", ["x", "axis"], "y", {})], integers(axis=1)),
    "Tile": ([("Tile", ["x", "times"], "y", {})], integers(times=[1, 2, 3])),
    "DepthToSpace": (
        [("Reshape", ["x", "to"], "r", {}), ("DepthToSpace", ["r"], "y", {"blocksize": 2})],
        integers(to=[0, 4, 2, 3]),
    ),
    "SpaceToDepth": (
        [("Reshape", ["x", "to"], "r", {}), ("SpaceToDepth", ["r"], "y", {"blocksize": 2})],
        integers(to=[0, 1, 4, 6]),
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_gradient(kind):
    nodes, constants = CASES[kind]
    assert_gradients(nodes, X, constants)


def test_pixels_from_channels_that_are_ordered_by_channel():
    nodes = [
        ("Reshape", ["x", "to"], "r", {}),
        ("DepthToSpace", ["r"], "y", {"blocksize": 2, "mode": "CRD"}),
    ]
    assert_gradients(nodes, X, integers(to=[0, 8, 1, 3]))


def test_every_rule_is_tested():
    assert set(CASES) == set(MOVEMENT)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_sums_up_to_every_element(reverse, exclusive):
    nodes = [("CumSum", ["x", "axis"], "y", {"reverse": reverse, "exclusive": exclusive})]
    assert_gradients(nodes, X, integers(axis=-1))


def test_a_pad_that_cuts_off():
    assert_gradients([("Pad", ["x", "pads"], "y", {})], X, integers(pads=[0, -1, 2, 0, -1, -3]))


def test_a_pad_whose_sizes_are_computed():
    nodes = [("Neg", ["less"], "pads", {}), ("Pad", ["x", "pads"], "y", {})]
    assert_gradients(nodes, X, integers(less=[0, -1, 0, 0, -2, -3]))


def test_copies_whose_number_is_computed():
    nodes = [("Neg", ["less"], "times", {}), ("Tile", ["x", "times"], "y", {})]
    assert_gradients(nodes, X, integers(less=[-1, -3, -2]))


def test_a_pad_of_some_axes():
    nodes = [("Pad", ["x", "pads", "", "axes"], "y", {})]
    assert_gradients(nodes, X, integers(pads=[1, 2], axes=[-1]), opset=18)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_a_pad_that_repeats_elements_and_has_a_number_to_pad_with(mode):
    nodes = [("Pad", ["x", "pads", "zero", "axes"], "y", {"mode": mode})]
    assert_gradients(nodes, X, {**integers(pads=[1, 2, 0, 3], axes=[1, 2]), "zero": np.float32(0)}, opset=18)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_a_pad_that_repeats_elements(mode):
    nodes = [("Pad", ["x", "pads"], "y", {"mode": mode})]
    assert_gradients(nodes, X, integers(pads=[0, 1, 2, 0, 2, 3]))
