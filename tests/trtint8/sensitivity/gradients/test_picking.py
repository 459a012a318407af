"""Gradients of operators that pick elements, and of those that replace some."""

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import (
    assert_gradients,
    integers,
    network,
    with_gradients,
)
from trtint8.sensitivity.gradients.picking import PICKING
from trtint8.sensitivity.gradients.rule import NoGradientError

X = {"x": ["N", 4, 6]}
BOTH = {"x": [2, 4, 6], "new": [2, 2, 6]}


CASES = {
    "Slice": (
        [("Slice", ["x", "from", "to", "axes", "steps"], "y", {})],
        integers(**{"from": [1, 5], "to": [4, -7], "axes": [1, 2], "steps": [2, -2]}),
    ),
    "Gather": ([("Gather", ["x", "places"], "y", {"axis": 1})], integers(places=[[0, 3], [3, -1]])),
    "GatherElements": (
        [("GatherElements", ["x", "places"], "y", {"axis": 2})],
        integers(places=[[[0, 5], [1, 1]], [[-1, 2], [3, 3]]]),
    ),
    "GatherND": ([("GatherND", ["x", "places"], "y", {})], integers(places=[[0, 3], [1, -1], [0, 3]])),
    "TopK": ([("TopK", ["x", "k"], "y places", {"axis": 1})], integers(k=[3])),
    "ScatterND": (
        [("ScatterND", ["x", "places", "picked"], "y", {})],
        {**integers(places=[[0, 3], [1, 1]]), "picked": np.ones((2, 6), np.float32)},
    ),
    "ScatterElements": (
        [("ScatterElements", ["x", "places", "picked"], "y", {"axis": 1})],
        {**integers(places=np.full((2, 1, 6), 2)), "picked": np.ones((2, 1, 6), np.float32)},
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


def test_every_rule_is_tested():
    assert set(CASES) == set(PICKING)


@pytest.mark.parametrize("picked", PICKED)
def test_gradients_of_elements_that_are_picked(picked):
    nodes, constants = PICKED[picked]
    assert_gradients(nodes, X, constants)


def test_elements_that_are_picked_along_samples():
    """As the last token of every sample, whose place is computed."""
    places = integers(places=[[3], [1]])
    assert_gradients([("GatherND", ["x", "places"], "y", {"batch_dims": 1})], {"x": [2, 4, 6]}, places)


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize(
    ("kind", "places", "attributes"),
    [
        ("ScatterND", [[[0, 3], [0, 1]], [[1, 0], [1, 2]]], {}),
        ("ScatterElements", np.array([[[3], [1]], [[0], [2]]]).repeat(6, axis=2), {"axis": 1}),
    ],
)
def test_what_is_replaced_and_what_comes_in_its_place(kind, places, attributes, reduction):
    nodes = [(kind, ["x", "places", "new"], "y", {**attributes, "reduction": reduction})]
    assert_gradients(nodes, BOTH, integers(places=places), opset=18)


def test_elements_that_are_multiplied_in_place_have_no_gradient():
    nodes = [("ScatterND", ["x", "places", "new"], "y", {"reduction": "mul"})]
    places = integers(places=[[[0, 3], [0, 1]], [[1, 0], [1, 2]]])
    with pytest.raises(NoGradientError, match="its reduction is 'mul'"):
        with_gradients(network(nodes, BOTH, places, opset=18), list(BOTH))
