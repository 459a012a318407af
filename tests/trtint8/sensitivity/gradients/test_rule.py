"""Gradients in the shape of the tensor that they belong to."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.trtint8.sensitivity.gradients.differences import network
from trtint8.models.graph_writer import GraphWriter, Term, static_shape
from trtint8.sensitivity.gradients.rule import (
    BATCH,
    NoGradientError,
    Step,
    batch_is_free,
    elements_per_sample,
    infer_shapes,
    normalized,
)


def step(shapes, wanted=(0,)):
    model = network([("Add", ["x", "z"], "y", {})], shapes, {"z": np.ones((3, 1), np.float32)})
    infer_shapes(model)
    (node,) = model.graph
    gradient = ir.Value(name="d", type=ir.TensorType(ir.DataType.FLOAT))
    writer = GraphWriter(model.graph)
    return Step(writer, node, [Term(writer, gradient)], wanted)


def test_a_gradient_is_summed_only_where_the_input_was_broadcast():
    found = step({"x": ["N", 3, 5]})
    assert found.like(0, found.gradient) is found.gradient
    found = step({"x": [1, 5]})
    assert found.like(0, found.gradient) is not found.gradient
    assert [node.op_type for node in found.writer.graph] == ["Add", "ReduceSum", "Shape", "Reshape"]


def test_what_a_node_says_of_itself():
    found = step({"x": ["N", 3, 5]})
    assert found.y.value.name == "y" and found.attributes == {}
    assert found.sizes(found.x, [1, 2]) == [3, 5]
    assert found.constant(1).shape == (3, 1)
    for ask, reason in (
        (lambda: found.sizes(found.x, [0]), "the shape of 'x' depends on the data"),
        (lambda: found.constant(0), "its input 0 is computed"),
        (lambda: found.input(2), "it has no input 2"),
    ):
        with pytest.raises(NoGradientError, match=f"Add 'y': {reason}"):
            ask()


def test_axes_are_counted_from_the_first():
    assert normalized([-1, 0], 3) == [2, 0]


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


def test_elements_per_sample_are_known_where_samples_are_flattened():
    nodes = [
        ("Reshape", ["x", "tokens"], "flat", {}),
        ("Reshape", ["x", "rows"], "pairs", {}),
        ("Transpose", ["x"], "turned", {"perm": [1, 2, 0]}),
        ("Add", ["flat", "flat"], "y", {}),
    ]
    constants = {"tokens": np.array([-1, 6], np.int64), "rows": np.array([-1, 2], np.int64)}
    model = network(nodes, {"x": ["N", 4, 6]}, constants)
    found = shapes(model)
    assert found["flat"] == found["y"] != found["pairs"]
    assert [found["flat"][1], found["pairs"][1]] == [6, 2]
    assert found["turned"] == [4, 6, BATCH]
    assert [elements_per_sample(node.outputs[0]) for node in model.graph] == [24] * 4


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


def test_shapes_of_a_fixed_batch_that_are_computed_when_it_runs():
    """As exporters write x.view(x.shape[0], -1)."""
    nodes = [
        ("Shape", ["x"], "sizes", {}),
        ("Gather", ["sizes", "zero"], "samples", {"axis": 0}),
        ("Concat", ["samples", "rest"], "to", {"axis": 0}),
        ("Reshape", ["x", "to"], "flat", {}),
        ("Relu", ["flat"], "y", {}),
    ]
    model = network(nodes, {"x": [2, 3, 4]}, {"zero": np.array([0]), "rest": np.array([-1])})
    for node in model.graph:
        node.outputs[0].shape = None
    assert shapes(model)["y"] == [2, 12]


def test_batches_that_some_inputs_fix_and_others_leave_open_are_left_as_they_are():
    model = network([("MatMul", ["x", "z"], "y", {})], {"x": ["N", 4, 3, 5], "z": [4, 5, 6]})
    before = shapes(model)
    assert before["y"][0] == "N" and before["y"][1:] == [4, 3, 6]


def test_sizes_that_are_given_for_a_fixed_batch():
    """As exporters write x.view(1, 3, -1)."""
    nodes = [("Reshape", ["x", "to"], "flat", {}), ("Relu", ["flat"], "y", {})]
    model = network(nodes, {"x": [1, 3, "h", "w"]}, {"to": np.array([1, 3, -1], np.int64)})
    infer_shapes(model, {"x": (0, 3, 4, 5)})
    assert [static_shape(node.outputs[0]) for node in model.graph] == [[1, 3, 20]] * 2


def test_sizes_beside_the_samples_stay_unknown():
    model = network([("Relu", ["x"], "y", {})], {"x": ["N", 3, "h"]})
    first, second, third = shapes(model)["y"]
    assert (first, second) == (BATCH, 3) and not isinstance(third, int)
    assert elements_per_sample(model.graph[0].outputs[0]) == 3


def test_sizes_that_only_partly_grow_with_the_samples_stay_unknown():
    model = network(
        [("Concat", ["x", "more"], "y", {"axis": 0})], {"x": ["N", 2]}, {"more": np.ones((1, 2), np.float32)}
    )
    assert shapes(model) == {"y": [None, 2]}
