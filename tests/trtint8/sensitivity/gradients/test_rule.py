"""Gradients in the shape of the tensor that they belong to."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.trtint8.sensitivity.gradients.differences import network
from trtint8.models.graph_writer import GraphWriter
from trtint8.sensitivity.gradients.rule import NoGradientError, Step, normalized
from trtint8.sensitivity.gradients.shapes import infer_shapes


def step(shapes, wanted=(0,)):
    model = network([("Add", ["x", "z"], "y", {})], shapes, {"z": np.ones((3, 1), np.float32)})
    infer_shapes(model)
    (node,) = model.graph
    gradient = ir.Value(name="d", type=ir.TensorType(ir.DataType.FLOAT))
    return Step(GraphWriter(model.graph), node, [gradient], wanted)


def test_a_gradient_is_summed_only_where_the_input_was_broadcast():
    found = step({"x": ["N", 3, 5]})
    assert found.like(0, found.gradient) is found.gradient
    found = step({"x": [1, 5]})
    assert found.like(0, found.gradient) is not found.gradient
    assert [node.op_type for node in found.writer.graph] == ["Add", "ReduceSum", "Shape", "Reshape"]


def test_what_a_node_says_of_itself():
    found = step({"x": ["N", 3, 5]})
    assert found.output.name == "y" and found.attributes == {}
    assert found.sizes(found.input(0), [1, 2]) == [3, 5]
    assert found.constant(1).shape == (3, 1)
    for ask, reason in (
        (lambda: found.sizes(found.input(0), [0]), "the shape of 'x' depends on the data"),
        (lambda: found.constant(0), "its input 0 is computed"),
        (lambda: found.input(2), "it has no input 2"),
    ):
        with pytest.raises(NoGradientError, match=f"Add 'y': {reason}"):
            ask()


def test_axes_are_counted_from_the_first():
    assert normalized([-1, 0], 3) == [2, 0]
