"""Sizes that a graph computes from the shapes of its tensors."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.trtint8.onnx_models import Graph
from trtint8.models.samples.batch_sizes import BatchSizes


def integers(g, *values):
    return g.constant(np.array(values, np.int64))


def scalar(g, value):
    return g.constant(np.int64(value))


def shape_of(g, **attributes):
    return g.op("Shape", ["x"], "shape", **attributes)


def followed(build, shape=("N", 4, 6)):
    """What is known of the last value that is built, from x of a shape."""
    g = Graph(quantized=False)
    last = build(g)
    made = onnx.shape_inference.infer_shapes(g.model({"x": list(shape)}, last))
    graph, sizes = ir.from_proto(made).graph, BatchSizes()
    for node in graph:
        sizes.follow(node)
    value = graph.outputs[0]
    assert value in sizes and graph.inputs[0] not in sizes
    return sizes.of(value)


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (shape_of, (None, 4, 6)),
        (lambda g: shape_of(g, start=1), (4, 6)),
        (lambda g: shape_of(g, start=-3, end=-1), (None, 4)),
        (lambda g: g.op("Gather", [shape_of(g), scalar(g, 0)], "y"), (None,)),
        (lambda g: g.op("Gather", [shape_of(g), integers(g, 2, -2)], "y"), (6, 4)),
        (lambda g: g.op("Slice", [shape_of(g), integers(g, 0), integers(g, 2)], "y"), (None, 4)),
        (lambda g: g.op("Slice", [shape_of(g), *[integers(g, i) for i in (1, 9, 0, 1)]], "y"), (4, 6)),
        (lambda g: g.op("Slice", [shape_of(g), *[integers(g, i) for i in (0, 9, 0, 2)]], "y"), None),
        (lambda g: g.op("Concat", [shape_of(g), integers(g, -1)], "y", axis=0), (None, 4, 6, -1)),
        (lambda g: g.op("Cast", [shape_of(g)], "y", to=onnx.TensorProto.INT32), (None, 4, 6)),
        (lambda g: g.op("Mul", [shape_of(g), integers(g, 2)], "y"), None),
    ],
)
def test_operators(build, found):
    assert followed(build) == found


def test_sizes_that_are_open_are_not_known():
    assert followed(shape_of, ("N", "length", 6)) is None
    assert followed(lambda g: g.op("Concat", [shape_of(g), integers(g, 1)], "y", axis=0), ("N", "L")) is None


def test_an_index_that_no_shape_has():
    assert followed(lambda g: g.op("Gather", [shape_of(g), scalar(g, 7)], "y")) is None


def test_constants_are_known():
    g = Graph(quantized=False)
    g.op("Add", ["x", integers(g, 3, 5)], "y")
    graph = ir.from_proto(g.model({"x": ["N"]}, "y_out")).graph
    assert BatchSizes().of(graph.node(0).inputs[1]) == (3, 5)
    assert BatchSizes().of(None) is None


def test_numbers_that_are_no_sizes():
    def scaled(g):
        limits = g.constant(np.array([np.nan, -np.inf, 2], np.float32))
        return g.op("Mul", [limits, g.op("Cast", [shape_of(g)], "float", to=onnx.TensorProto.FLOAT)], "y")

    assert followed(scaled) is None
