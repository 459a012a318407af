"""Gradients of operators that move, join, repeat or average elements."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import assert_gradients, network, with_gradients
from trtint8.sensitivity.gradients.movement import MOVEMENT

X = {"x": ["N", 4, 6]}


def integers(**values):
    return {name: np.array(value, np.int64) for name, value in values.items()}


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
    "Slice": (
        [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
        integers(**{"from": [1, 5], "to": [4, -7], "axes": [1, 2], "steps": [2, -2]}),
    ),
    "Gather": ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[[0, 3], [3, -1]])),
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
    "DepthToSpace": (
        [("Reshape", ["x", "to"], "r", {}), ("DepthToSpace", ["r"], "y", {"blocksize": 2})],
        integers(to=[0, 4, 2, 3]),
    ),
    "SpaceToDepth": (
        [("Reshape", ["x", "to"], "r", {}), ("SpaceToDepth", ["r"], "y", {"blocksize": 2})],
        integers(to=[0, 1, 4, 6]),
    ),
}


PICKED = {
    "one element": ([("Gather", ["x", "place"], "y", {"axis": 2})], integers(place=-2)),
    "elements in another order": (
        [("Gather", ["x", "places"], "y", {"axis": -1})],
        integers(places=[4, 0, 2]),
    ),
    "neighbours": ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[1, 2])),
    "an element twice": ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[1, 1, 0])),
    "every other element": (
        [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
        integers(**{"from": [0, 0], "to": [1 << 62, 1 << 62], "axes": [-1, -2], "steps": [2, 2]}),
    ),
    "backwards to the first": (
        [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
        integers(**{"from": [-1], "to": [-(1 << 62)], "axes": [1], "steps": [-1]}),
    ),
    "beyond the end": (
        [("Slice", ["x", "from", "to", "axes"], "y", {})],
        integers(**{"from": [-3], "to": [100], "axes": [2]}),
    ),
    "some samples": (
        [("Slice", ["x", "from", "to"], "y", {})],
        integers(**{"from": [1], "to": [100]}),
    ),
}


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[0, 4])),
        (
            [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
            integers(**{"from": [0], "to": [2], "axes": [1], "steps": [0]}),
        ),
    ],
)
def test_what_cannot_be_picked_is_left_to_onnx_runtime_to_refuse(nodes, constants):
    model = with_gradients(network(nodes, X, constants), list(X))
    assert "ScatterElements" in [node.op_type for node in model.graph]


@pytest.mark.parametrize("kind", CASES)
def test_gradient(kind):
    nodes, constants = CASES[kind]
    assert_gradients(nodes, X, constants)


@pytest.mark.parametrize("picked", PICKED)
def test_gradients_of_elements_that_are_picked(picked):
    nodes, constants = PICKED[picked]
    assert_gradients(nodes, X, constants)


def test_pixels_from_channels_that_are_ordered_by_channel():
    nodes = [
        ("Reshape", ["x", "to"], "r", {}),
        ("DepthToSpace", ["r"], "y", {"blocksize": 2, "mode": "CRD"}),
    ]
    assert_gradients(nodes, X, integers(to=[0, 8, 1, 3]))


def test_every_rule_is_tested():
    assert set(CASES) == set(MOVEMENT)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_a_pad_that_repeats_elements(mode):
    nodes = [("Pad", ["x", "pads"], "y", {"mode": mode})]
    assert_gradients(nodes, X, integers(pads=[0, 1, 2, 0, 2, 3]))
