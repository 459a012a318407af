"""Sizes that a graph computes from the shapes of its tensors."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from tests.trtint8.onnx_models import Graph
from trtint8.models.samples.batch_sizes import BatchSizes, Unknown
from trtint8.models.static_shapes import declared_sizes


def integers(g, *values):
    return g.constant(np.array(values, np.int64))


def scalar(g, value):
    return g.constant(np.int64(value))


def shape_of(g, **attributes):
    return g.op("Shape", ["x"], "shape", **attributes)


UNKNOWN, OF_BATCH = Unknown.SIZE, Unknown.OF_BATCH


def kept(g, size):
    """The shape of x, where 7 takes the place of a size and of 4."""
    equal = g.op("Equal", [shape_of(g), integers(g, size, 4, 1)], "equal")
    return g.op("Where", [equal, integers(g, 7), "shape_out"], "y")


def cast(g, kind):
    """The shape of x in a type and back."""
    return g.op("Cast", [g.op("Cast", [shape_of(g)], "cast", to=kind)], "y", to=onnx.TensorProto.INT64)


def divided(g, divisor):
    """The shape of x divided by a number, in its type."""
    one, number = shape_of(g), np.array([divisor])
    if isinstance(divisor, float):
        one, number = g.op("Cast", [one], "float", to=onnx.TensorProto.FLOAT), np.float32(number)
    return g.op("Identity", [g.op("Div", [one, g.constant(number)], "divided")], "y")


def ones(g, vector, kind=np.int64):
    value = kind(1)
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    tensor = helper.make_tensor("value", kind, [1], [value])
    return g.op("ConstantOfShape", [g.op("Shape", [vector], "length")], "ones", value=tensor)


def followed(build, shape=("N", 4, 6), depends=None):
    """What is known of the last value that is built, from x of a shape."""
    g = Graph(quantized=False)
    last = build(g)
    model = g.model({"x": list(shape)}, last)
    model.graph.output[0].ClearField("type")  # it is not always that of floats
    graph, sizes = ir.from_proto(onnx.shape_inference.infer_shapes(model)).graph, BatchSizes(declared_sizes)
    for node in graph:
        sizes.follow(node)
    value = graph.outputs[0]
    assert value in sizes and graph.inputs[0] not in sizes
    assert depends is None or sizes.depends_on_samples(value) == depends
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
        (lambda g: cast(g, onnx.TensorProto.BOOL), None),
        (lambda g: cast(g, onnx.TensorProto.INT8), None),
        (lambda g: g.op("Mul", [shape_of(g), integers(g, 2)], "y"), (OF_BATCH, 8, 12)),
        (lambda g: g.op("Sub", [shape_of(g), integers(g, 5)], "y"), (OF_BATCH, -1, 1)),
        (lambda g: divided(g, 4), (OF_BATCH, 1, 1)),
        (lambda g: divided(g, 0), (OF_BATCH, UNKNOWN, UNKNOWN)),
        (lambda g: divided(g, 4.0), None),
        (lambda g: g.op("Add", [shape_of(g), integers(g, 1, 2)], "y"), None),
        (lambda g: g.op("Equal", [shape_of(g), integers(g, -1, 4, 5)], "y"), (0, 1, 0)),
        (lambda g: g.op("Equal", [shape_of(g), integers(g, 3)], "y"), (OF_BATCH, 0, 0)),
        (lambda g: kept(g, -1), (None, 7, 6)),
        (lambda g: kept(g, 3), (OF_BATCH, 7, 6)),
        (lambda g: g.op("Shape", [shape_of(g)], "y"), (3,)),
        (lambda g: ones(g, shape_of(g)), (1, 1, 1)),
        (lambda g: ones(g, shape_of(g), np.float32), None),
        (lambda g: g.op("Max", [shape_of(g), integers(g, 4)], "y"), None),
    ],
)
def test_operators(build, found):
    assert followed(build) == found


def chosen(*axes):
    return lambda g: g.op("Gather", [shape_of(g), integers(g, *axes)], "y")


def test_tables_are_not_known():
    def table(g):
        return g.op(
            "Reshape",
            [g.op("Concat", [shape_of(g), integers(g, 1)], "four", axis=0), integers(g, 2, 2)],
            "table",
        )

    def first_row(g):
        return g.op("Slice", [table(g), integers(g, 0), integers(g, 1), integers(g, 0)], "row")

    def row_of_constant(g):
        index = g.op("Sub", [chosen(1)(g), integers(g, 4)], "index")
        return g.op("Gather", [g.constant(np.array([[1, 2], [3, 4]])), index], "row")

    for build in (first_row, row_of_constant):
        assert followed(lambda g, build=build: g.op("Reshape", [build(g), integers(g, -1)], "flat")) is None


def test_sizes_that_are_open_are_not_known():
    shape = ("N", "length", 6)
    assert followed(shape_of, shape) == (None, UNKNOWN, 6)
    assert followed(chosen(0, 2), shape) == (None, 6)


def test_one_of_two_lengths_chosen_by_the_number_of_samples():
    def length(g):
        shape = shape_of(g)
        lengths = [g.op("Gather", [shape, integers(g, axis)], f"length{axis}") for axis in (0, 1, 2)]
        return g.op("Where", [g.op("Equal", [lengths[0], integers(g, 3)], "three"), *lengths[1:]], "y")

    assert followed(length, ("N", "length", "width"), depends=True) == (OF_BATCH,)
    assert followed(length, ("N", 5, 5), depends=False) == (5,)


def test_what_changes_with_the_number_of_samples():
    def root(*axes):
        return lambda g: g.op("Sqrt", [g.op("Cast", [chosen(*axes)(g)], "float", to=1)], "root")

    for build, depends in ((chosen(0, 1), True), (chosen(1, 2), False), (root(1), False), (root(0), True)):
        followed(build, depends=depends)
    followed(chosen(1), ("N", "length", 6), depends=False)


def test_the_shape_of_what_is_made_for_each_sample():
    """Of as many zeros as there are samples: their number is that of the samples, whatever it is called."""

    def zeros(g):
        count = g.op("Gather", [shape_of(g), integers(g, 0)], "count")
        return g.op("Shape", [g.op("ConstantOfShape", [count], "zeros")], "y")

    assert followed(zeros, depends=True) == (OF_BATCH,)


def test_an_index_that_no_shape_has():
    assert followed(lambda g: g.op("Gather", [shape_of(g), scalar(g, 7)], "y")) is None


def test_constants_are_known():
    g = Graph(quantized=False)
    g.op("Add", ["x", integers(g, 3, 5)], "y")
    graph = ir.from_proto(g.model({"x": ["N"]}, "y_out")).graph
    assert BatchSizes(declared_sizes).of(graph.node(0).inputs[1]) == (3, 5)
    assert BatchSizes(declared_sizes).of(None) is None


def test_vectors_without_elements():
    def doubled(g):
        sizes = shape_of(g, start=1)
        return g.op("Add", [sizes, sizes], "y")

    assert followed(doubled, ("N",), depends=False) == ()


def test_numbers_that_are_no_sizes():
    def scaled(g):
        limits = g.constant(np.array([np.nan, -np.inf, 2], np.float32))
        return g.op("Mul", [limits, g.op("Cast", [shape_of(g)], "float", to=onnx.TensorProto.FLOAT)], "y")

    assert followed(scaled) is None
