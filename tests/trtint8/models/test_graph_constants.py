"""Constants of a graph: read, and added."""

import numpy as np
import onnx_ir as ir

from tests.trtint8.onnx_models import Graph
from trtint8.models.graph_constants import add_initializer, constant


def test_constants_are_read_and_other_values_are_none():
    g = Graph()
    model = ir.from_proto(g.model({"x": [2]}, g.op("Add", ["x", g.constant(np.float32([1, 2]))], "add")))
    (add,) = model.graph
    assert constant(add.inputs[0]) is None
    assert constant(add.inputs[1]).tolist() == [1.0, 2.0]
    assert constant(None) is None


def test_an_added_constant_stands_in_the_graph():
    g = Graph()
    model = ir.from_proto(g.model({"x": [2]}, g.op("Relu", ["x"], "relu")))
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    value = add_initializer(model.graph, "new", array)
    assert (value.name, value.dtype, tuple(value.shape.numpy())) == ("new", ir.DataType.INT8, (2, 3))
    assert model.graph.initializers["new"] is value
    np.testing.assert_array_equal(constant(value), array)
