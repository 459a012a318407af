"""What each operator does with the samples of a batch."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from tests.trtint8.onnx_models import Graph
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.session import open_graph_model

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


def graph_of(build, shape):
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
    graph_model = graph_of(build, ["N", *values.shape[1:]])
    assert joined_by_graph(graph_model).separate == separate
    if separate:  # then a sample alone gives what it gives among others
        session = open_graph_model(graph_model)
        (together,) = session.run({"x": values})[:1]
        alone = [session.run({"x": values[i : i + 1]})[0] for i in range(len(values))]
        np.testing.assert_allclose(np.concatenate(alone), together, rtol=1e-5, atol=1e-6)
