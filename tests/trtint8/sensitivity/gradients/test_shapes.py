"""The shapes of tensors, and where samples lie."""

import numpy as np

from tests.trtint8.sensitivity.gradients.differences import network
from trtint8.sensitivity.gradients.shapes import BATCH, batch_is_free, infer_shapes
from trtint8.sensitivity.gradients.writer import static_shape


def shapes(model):
    infer_shapes(model)
    return {node.outputs[0].name: static_shape(node.outputs[0]) for node in model.graph}


def test_axes_of_samples_are_named_and_others_known():
    nodes = [
        ("Reshape", ["x", "heads"], "split", {}),
        ("Transpose", ["split"], "turned", {"perm": [1, 0, 2]}),
        ("Transpose", ["turned"], "y", {"perm": [1, 0, 2]}),
    ]
    model = network(nodes, {"x": ["N", 6]}, {"heads": np.array([-1, 2, 3], np.int64)})
    assert batch_is_free(model)
    assert shapes(model) == {"split": [BATCH, 2, 3], "turned": [2, BATCH, 3], "y": [BATCH, 2, 3]}


def test_shapes_that_are_computed_from_shapes():
    """As exporters write x.view(x.shape[0], -1, x.shape[1] // 2)."""
    nodes = [
        ("Shape", ["x"], "sizes", {}),
        ("Gather", ["sizes", "one"], "width", {"axis": 0}),
        ("Div", ["width", "two"], "half", {}),
        ("Gather", ["sizes", "zero"], "samples", {"axis": 0}),
        ("Concat", ["samples", "rest", "half"], "to", {"axis": 0}),
        ("Reshape", ["x", "to"], "y", {}),
    ]
    constants = {"zero": [0], "one": [1], "two": [2], "rest": [-1]}
    model = network(nodes, {"x": ["N", 6]}, {k: np.array(v, np.int64) for k, v in constants.items()})
    assert shapes(model)["y"] == [BATCH, 2, 3]


def test_a_fixed_batch_is_not_called_samples():
    model = network([("Relu", ["x"], "y", {})], {"x": [1, 6]})
    assert not batch_is_free(model)
    assert shapes(model) == {"y": [1, 6]}


def test_sizes_beside_the_samples_stay_unknown():
    model = network([("Relu", ["x"], "y", {})], {"x": ["N", 3, "h"]})
    first, second, third = shapes(model)["y"]
    assert (first, second) == (BATCH, 3) and not isinstance(third, int)
