"""Networks that compute every sample by itself, and others."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from tests.trtint8.onnx_models import Graph, conv_relu_conv
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.models.samples.separate import BatchSizes, Unknown, joined_by_graph
from trtint8.models.session import open_graph_model
from trtint8.models.shapes import declared_sizes


def graph_of(message):
    """The graph with inferred shapes."""
    return ir.from_proto(onnx.shape_inference.infer_shapes(message))


def test_convolutional_networks():
    assert joined_by_graph(prepare(load_model(DEMO_MODEL)).graph_model).separate
    assert joined_by_graph(graph_of(conv_relu_conv(quantized=False))).separate


def test_an_output_that_is_no_sample():
    def given(output):
        g = Graph(quantized=False)
        y, z = g.op("Relu", ["x"], "y"), g.op("Relu", [g.constant(np.ones((1, 4), np.float32))], "z")
        return graph_of(g.model({"x": ["N", 4]}, {"y": y, "z": z}[output]))

    assert joined_by_graph(given("y")).separate and joined_by_graph(given("y")).has_rows
    assert joined_by_graph(given("z")).separate and not joined_by_graph(given("z")).has_rows


def test_a_fixed_batch_cannot_be_divided():
    g = Graph(quantized=False)
    assert not joined_by_graph(graph_of(g.model({"x": [3, 4]}, g.op("Relu", ["x"], "y")))).separate


@pytest.mark.parametrize(
    ("shape", "separate"), [(["N", "M"], True), (["N", "N"], False), (["M", "N"], False)]
)
def test_an_axis_as_long_as_there_are_samples(shape, separate):
    g = Graph(quantized=False)
    y = g.op("ReduceMean", ["b"], "y", axes=[1])
    model = g.model({"a": ["N", 4], "b": shape}, y)
    assert joined_by_graph(graph_of(model)).separate == separate


def test_two_inputs_are_combined_sample_by_sample():
    def combined(kind):
        g = Graph(quantized=False)
        return graph_of(g.model({"a": ["N", 4, 4], "b": ["N", 4, 4]}, g.op(kind, ["a", "b"], "y")))

    assert joined_by_graph(combined("MatMul")).separate
    assert not joined_by_graph(combined("NoSuchOperator")).separate


def test_products_of_all_samples_with_all():
    g = Graph(quantized=False)
    y = g.op("MatMul", ["a", "b"], "y")
    assert not joined_by_graph(graph_of(g.model({"a": ["N", 4], "b": ["N", 4]}, y))).separate


def test_an_operator_of_another_domain():
    graph_model = graph_of(conv_relu_conv(quantized=False))
    graph_model.graph.node(1).domain = "com.example"
    assert not joined_by_graph(graph_model).separate


def test_a_branch_that_could_read_anything():
    g = Graph(quantized=False)
    yes, no = (
        helper.make_graph(
            [helper.make_node(kind, ["x"], [f"{kind}_y"])],
            kind,
            [],
            [helper.make_tensor_value_info(f"{kind}_y", 1, None)],
        )
        for kind in ("Relu", "Neg")
    )
    y = g.op("If", [g.constant(np.array(True))], "y", then_branch=yes, else_branch=no)
    assert not joined_by_graph(ir.from_proto(g.model({"x": ["N", 6]}, y))).separate


#: Values of x, of shape (samples, 4, 6, 6) or (samples, 6).
IMAGES = np.random.default_rng(0).normal(size=(3, 4, 6, 6)).astype(np.float32)
ROWS = IMAGES[:, 0, 0]


def integers(g, *values):
    return g.constant(np.array(values, np.int64))


def sizes(g, *parts):
    """Sizes that are computed from the shape of x: numbers stand for themselves, strings for an axis of x."""
    shape = g.op("Shape", ["x"], "shape")
    pieces = [
        g.op("Gather", [shape, integers(g, int(part))], f"size{part}")
        if isinstance(part, str)
        else integers(g, part)
        for part in parts
    ]
    return g.op("Concat", pieces, "sizes", axis=0)


def copies(g):
    """As many copies of each sample as there are samples, along axis 1."""
    wanted = g.op("Gather", [g.op("Shape", ["x"], "all"), integers(g, 0, 0, 1, 2, 3)], "wanted")
    return g.op("Expand", [g.op("Unsqueeze", ["x", integers(g, 1)], "one"), wanted], "copies")


def twice(g):
    """Sizes of which one is twice the number of samples."""
    double = g.op(
        "Mul", [g.op("Gather", [g.op("Shape", ["x"], "all"), integers(g, 0)], "n"), integers(g, 2)], "two"
    )
    return g.op("Concat", [integers(g, -1), double], "doubled", axis=0)


def expanded(g, name, wanted):
    """What PyTorch exports for ``expand``, where -1 keeps a size: 1 takes its place."""
    ones = g.op("ConstantOfShape", [g.op("Shape", [wanted], "rank")], "ones", value=_ONE)
    keeps = g.op("Equal", [wanted, g.op("Mul", [ones, g.constant(np.int64(-1))], "minus")], "keeps")
    return g.op("Expand", [name, g.op("Where", [keeps, ones, wanted], "kept")], "expanded")


def third_of_channels(g):
    """What PyTorch exports for the first of three chunks of the last axis, and heads of it."""
    two = g.op("Add", [sizes(g, "3"), integers(g, 2)], "two")
    length = g.op("Div", [two, integers(g, 3)], "length")
    return g.op("Slice", ["x", integers(g, 0), length, integers(g, 3)], "third")


def places(g):
    """Where the largest values of x are, as floats."""
    g.nodes.append(
        helper.make_node("MaxPool", ["x"], ["largest", "places"], name="pool", kernel_shape=[2, 2])
    )
    return g.op("Cast", ["places"], "y", to=onnx.TensorProto.FLOAT)


def columns(g):
    """How many columns a table of as many columns as samples has, as a float."""
    table = g.op("ConstantOfShape", [sizes(g, 3, "0")], "table", value=_ONE)
    return g.op("Cast", [g.op("Shape", [table], "columns", start=1)], "float", to=onnx.TensorProto.FLOAT)


_ONE = helper.make_tensor("value", onnx.TensorProto.INT64, [1], [1])


def pair(g, scale, axis=1):
    """x through a Q/DQ pair."""
    parameters = [g.constant(np.full(scale, 0.01, np.float32)), g.constant(np.zeros(scale, np.int8))]
    quantized = g.op("QuantizeLinear", ["x", *parameters], "q", axis=axis)
    return g.op("DequantizeLinear", [quantized, *parameters], "y", axis=axis)


def places_of(g):
    """Two maps of numbers between -1 and 1, computed from each sample, as places of a GridSample."""
    parts = g.op("Slice", ["x", integers(g, 0), integers(g, 2), integers(g, 1)], "two")
    return g.op("Transpose", [g.op("Tanh", [parts], "places")], "turned", perm=[0, 2, 3, 1])


def sampled(g, images):
    """Images that are looked up at places which are computed of each sample of x."""
    part = g.op("Slice", ["x", integers(g, 0), integers(g, 2), integers(g, 1)], "part")
    return g.op("GridSample", [images, g.op("Transpose", [part], "grid", perm=[0, 2, 3, 1])], "y")


def largest(g, axis):
    """The two largest elements along an axis, as floats."""
    g.nodes.append(helper.make_node("TopK", ["x", integers(g, 2)], ["y_out", "at"], name="y", axis=axis))
    return "y_out"


def place(g, axis):
    """Where the largest elements along an axis are, as floats."""
    return g.op("Cast", [g.op("ArgMax", ["x"], "at", axis=axis)], "y", to=onnx.TensorProto.FLOAT)


def slope(g, shape):
    return g.constant(np.full(shape, 0.25, np.float32))


#: What is done with images, and whether samples stay apart.
WITH_IMAGES = {
    "Conv": (lambda g: g.op("Conv", ["x", g.weights(5, 4, 3, 3)], "y", pads=[1] * 4), True),
    "ConvTranspose": (lambda g: g.op("ConvTranspose", ["x", g.weights(4, 5, 3, 3)], "y"), True),
    "neighbouring channels": (lambda g: g.op("LRN", ["x"], "y", size=3), True),
    "values at computed places": (
        lambda g: g.op("GridSample", ["x", places_of(g)], "y", mode="bilinear", align_corners=1),
        True,
    ),
    "values of one constant map for each sample": (
        lambda g: g.op("GridSample", [g.weights(3, 4, 6, 6), places_of(g)], "y", mode="bilinear"),
        False,
    ),
    "values at the same places in all samples": (
        lambda g: g.op("GridSample", ["x", g.weights(3, 5, 5, 2)], "y", mode="bilinear"),
        False,
    ),
    "pooling": (lambda g: g.op("MaxPool", ["x"], "y", kernel_shape=[2, 2]), True),
    "places of the largest values": (places, False),
    "activation": (lambda g: g.op("Relu", ["x"], "y"), True),
    "sum with itself": (lambda g: g.op("Add", ["x", g.op("Relu", ["x"], "r")], "y"), True),
    "slope per channel": (lambda g: g.op("PRelu", ["x", slope(g, (4, 1, 1))], "y"), True),
    "constant of one sample": (lambda g: g.op("Mul", ["x", slope(g, (1, 4, 1, 1))], "y"), True),
    "constant of three samples": (lambda g: g.op("Mul", ["x", slope(g, (3, 1, 1, 1))], "y"), False),
    "softmax of channels": (lambda g: g.op("Softmax", ["x"], "y", axis=1), True),
    "softmax of samples": (lambda g: g.op("Softmax", ["x"], "y", axis=0), False),
    "softmax of samples from the end": (lambda g: g.op("Softmax", ["x"], "y", axis=-4), False),
    "turned in a sample": (lambda g: g.op("Transpose", ["x"], "y", perm=[0, 2, 3, 1]), True),
    "turned": (lambda g: g.op("Transpose", ["x"], "y", perm=[1, 0, 2, 3]), False),
    "turned without a word": (lambda g: g.op("Transpose", ["x"], "y"), False),
    "joined channels": (lambda g: g.op("Concat", ["x", "x"], "y", axis=1), True),
    "joined samples": (lambda g: g.op("Concat", ["x", "x"], "y", axis=0), False),
    "mean of places": (lambda g: g.op("ReduceMean", ["x"], "y", axes=[2, 3]), True),
    "mean of samples": (lambda g: g.op("ReduceMean", ["x"], "y", axes=[0]), False),
    "mean of all": (lambda g: g.op("ReduceMean", ["x"], "y"), False),
    "sum of channels": (lambda g: g.op("ReduceSum", ["x", integers(g, -3)], "y"), True),
    "sum of samples": (lambda g: g.op("ReduceSum", ["x", integers(g, 0)], "y"), False),
    "flat": (lambda g: g.op("Flatten", ["x"], "y"), True),
    "flat across samples": (lambda g: g.op("Flatten", ["x"], "y", axis=2), False),
    "same number of rows": (lambda g: g.op("Reshape", ["x", integers(g, 0, -1)], "y"), True),
    "rows as long as samples": (lambda g: g.op("Reshape", ["x", integers(g, -1, 144)], "y"), True),
    "rows as long as samples, where zeros are sizes": (
        lambda g: g.op("Reshape", ["x", integers(g, -1, 144)], "y", allowzero=1),
        True,
    ),
    "rows by the shape, where zeros are sizes": (
        lambda g: g.op("Reshape", ["x", sizes(g, "0", -1)], "y", allowzero=1),
        True,
    ),
    "no rows": (lambda g: g.op("Reshape", ["x", integers(g, 0, 144)], "y", allowzero=1), False),
    "shorter rows": (lambda g: g.op("Reshape", ["x", integers(g, -1, 36)], "y"), False),
    "rows by the shape": (lambda g: g.op("Reshape", ["x", sizes(g, "0", -1)], "y"), True),
    "heads by the shape": (lambda g: g.op("Reshape", ["x", sizes(g, "0", 2, 2, "2", "3")], "y"), True),
    "another axis first": (lambda g: g.op("Reshape", ["x", sizes(g, "2", -1)], "y"), False),
    "as many copies of a sample as there are samples": (
        lambda g: g.op("ReduceSum", [copies(g), integers(g, 1)], "y"),
        False,
    ),
    "rows that grow with the samples": (
        lambda g: g.op("Reshape", ["x", g.op("Concat", [sizes(g, "0"), twice(g)], "target", axis=0)], "y"),
        False,
    ),
    "samples as a number": (
        lambda g: g.op("Div", ["x", g.op("Cast", [sizes(g, "0")], "n", to=1)], "y"),
        False,
    ),
    "divided by a size of every sample": (
        lambda g: g.op("Div", ["x", g.op("Sqrt", [g.op("Cast", [sizes(g, "2")], "n", to=1)], "r")], "y"),
        True,
    ),
    "rows of as many as samples": (lambda g: g.op("Reshape", ["x", sizes(g, -1, "0")], "y"), False),
    "as many columns as samples": (lambda g: g.op("Div", ["x", columns(g)], "y"), False),
    "part by the shape": (third_of_channels, True),
    "heads of a part by the shape": (
        lambda g: g.op("Reshape", [third_of_channels(g), integers(g, -1, 4, 3, 2, 2)], "y"),
        True,
    ),
    "shorter rows of a part by the shape": (
        lambda g: g.op("Reshape", [third_of_channels(g), integers(g, -1, 12)], "y"),
        False,
    ),
    "as many parts as samples": (
        lambda g: g.op("Slice", ["x", integers(g, 0), sizes(g, "0"), integers(g, 1)], "y"),
        False,
    ),
    "part of the channels": (
        lambda g: g.op("Slice", ["x", integers(g, 1), integers(g, 3), integers(g, 1)], "y"),
        True,
    ),
    "part of the samples": (
        lambda g: g.op("Slice", ["x", integers(g, 1), integers(g, 3), integers(g, 0)], "y"),
        False,
    ),
    "every second channel": (lambda g: g.op("Gather", ["x", integers(g, 0, 2)], "y", axis=1), True),
    "the first sample": (lambda g: g.op("Gather", ["x", integers(g, 0)], "y"), False),
    "larger": (
        lambda g: g.op("Resize", ["x", "", g.constant(np.array([1, 1, 2, 2], np.float32))], "y"),
        True,
    ),
    "edges": (lambda g: g.op("Pad", ["x", integers(g, 0, 0, 1, 1, 0, 0, 1, 1)], "y"), True),
    "another sample at the end": (
        lambda g: g.op("Pad", ["x", integers(g, 0, 0, 0, 0, 1, 0, 0, 0)], "y"),
        False,
    ),
    "a new axis": (lambda g: g.op("Unsqueeze", ["x", integers(g, 1)], "y"), True),
    "a new axis before samples": (lambda g: g.op("Unsqueeze", ["x", integers(g, 0)], "y"), False),
    "product of matrices": (lambda g: g.op("MatMul", ["x", g.weights(6, 5)], "y"), True),
    "product of a sample with itself": (lambda g: g.op("MatMul", ["x", "x"], "y"), True),
    "a token that is expanded": (
        lambda g: g.op(
            "Concat", ["x", expanded(g, g.weights(1, 1, 6, 6), sizes(g, "0", -1, -1, -1))], "y", axis=1
        ),
        True,
    ),
    "a token for each of the rows": (
        lambda g: g.op(
            "Concat", ["x", expanded(g, g.weights(1, 1, 6, 6), sizes(g, "2", 4, 6, 6))], "y", axis=1
        ),
        False,
    ),
    "Q/DQ pair": (lambda g: pair(g, ()), True),
    "Q/DQ pair with a scale per channel": (lambda g: pair(g, 4), True),
    "Q/DQ pair with a scale per column": (lambda g: pair(g, 6, axis=-1), True),
    "Q/DQ pair with a scale per sample": (lambda g: pair(g, 3, axis=0), False),
    "Q/DQ pair with a scale per sample, from the end": (lambda g: pair(g, 3, axis=-4), False),
    "looked up at places of its own": (lambda g: sampled(g, "x"), True),
    "looked up in constants": (lambda g: sampled(g, g.weights(3, 4, 6, 6)), False),
    "divided by neighbouring channels": (lambda g: g.op("LRN", ["x"], "y", size=3, alpha=2.0), True),
    "length of each channel": (lambda g: g.op("GlobalLpPool", ["x"], "y"), True),
    "largest channels": (lambda g: largest(g, 1), True),
    "largest samples": (lambda g: largest(g, 0), False),
    "place of the largest channel": (lambda g: place(g, 1), True),
    "number of the largest sample": (lambda g: place(g, 0), False),
    "divided by lengths": (lambda g: g.op("LpNormalization", ["x"], "y", axis=1), True),
    "divided by lengths of samples": (lambda g: g.op("LpNormalization", ["x"], "y", axis=0), False),
    "running sum of samples": (lambda g: g.op("CumSum", ["x", integers(g, 0)], "y"), False),
    "a token for every sample": (
        lambda g: g.op(
            "Concat",
            ["x", g.op("Expand", [g.weights(1, 1, 6, 6), sizes(g, "0", 1, 6, 6)], "token")],
            "y",
            axis=1,
        ),
        True,
    ),
}

#: The same of rows.
WITH_ROWS = {
    "fully connected": (lambda g: g.op("Gemm", ["x", g.weights(6, 5), g.weights(5)], "y"), True),
    "a bias per sample": (lambda g: g.op("Gemm", ["x", g.weights(6, 5), g.weights(3, 5)], "y"), False),
    "turned product": (lambda g: g.op("Gemm", ["x", g.weights(3, 5)], "y", transA=1), False),
    "product from the left": (lambda g: g.op("MatMul", [g.weights(2, 3), "x"], "y"), False),
    "normalization": (lambda g: g.op("LayerNormalization", ["x", g.weights(6), g.weights(6)], "y"), True),
    "parts": (lambda g: g.nodes.append(_split(axis=1)) or "y_out", True),
    "parts of the batch": (lambda g: g.nodes.append(_split(axis=0)) or "y_out", False),
}


def _split(axis):
    return helper.make_node("Split", ["x"], ["y_out", "rest"], name="y", axis=axis)


def rules_graph_of(build, shape):
    """The graph with inferred shapes."""
    g = Graph(quantized=False)
    made = g.model({"x": shape}, build(g))
    return ir.from_proto(onnx.shape_inference.infer_shapes(made, data_prop=True))


@pytest.mark.parametrize(
    ("cases", "values", "name"),
    [(WITH_IMAGES, IMAGES, name) for name in WITH_IMAGES] + [(WITH_ROWS, ROWS, name) for name in WITH_ROWS],
    ids=[*WITH_IMAGES, *WITH_ROWS],
)
def test_operators(cases, values, name):
    build, separate = cases[name]
    graph_model = rules_graph_of(build, ["N", *values.shape[1:]])
    assert joined_by_graph(graph_model).separate == separate
    if separate:  # then a sample alone gives what it gives among others
        session = open_graph_model(graph_model)
        (together,) = session.run({"x": values})[:1]
        alone = [session.run({"x": values[i : i + 1]})[0] for i in range(len(values))]
        np.testing.assert_allclose(np.concatenate(alone), together, rtol=1e-5, atol=1e-6)


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
def test_batch_sizes_operators(build, found):
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
