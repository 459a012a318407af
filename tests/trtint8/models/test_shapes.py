"""Shapes that exporters compute at run time."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import Graph, Shaped
from trtint8.models.model import load_model, prepare
from trtint8.models.shapes import StaticShapes, multiply_adds, open_inputs


def reshaped(divided):
    """A Reshape of x to (batch, length, 4, width / 4), with sizes from a Shape."""
    g = Shaped()
    shape = g.op("Shape", ["x"], "shape")
    parts = [
        g.op("Slice", [shape, g.constant(np.array([i])), g.constant(np.array([i + 1]))], f"size{i}")
        for i in range(3)
    ]
    four = g.constant(np.array([4]))
    width = g.op("Div", [parts[2], four], "width") if divided else g.constant(np.array([-1]))
    sizes = g.op("Concat", [*parts[:2], four, width], "sizes", axis=0)
    heads = g.op("Reshape", ["x", sizes], "heads")
    y = g.op("MatMul", [heads, g.weights(6, 5)], "product")
    model = prepare(load_model(g.model({"x": ["N", 7, 24]}, y))).graph_model
    return model, {value.name: value for node in model.graph for value in node.outputs}


def test_sizes_that_follow_from_others():
    for divided in (False, True):
        model, values = reshaped(divided)
        shapes = StaticShapes(model)
        assert shapes.of(values["heads_out"]) == (1, 7, 4, 6)
        assert shapes.of(values["product_out"])[1:] == (7, 4, 5)


def test_the_model_is_not_changed():
    model, values = reshaped(divided=True)
    before = [str(value.shape) for value in values.values()], len(model.graph)
    StaticShapes(model).of(values["heads_out"])
    assert ([str(value.shape) for value in values.values()], len(model.graph)) == before


def test_nothing_is_computed_where_only_the_first_size_is_open():
    g = Shaped()
    y = g.op("Relu", ["x"], "relu")
    model = load_model(g.model({"x": ["N", 3, 5]}, y)).graph_model
    shapes = StaticShapes(model)
    assert shapes.of(model.graph.inputs[0]) == (None, 3, 5)
    assert "_computed" not in vars(shapes)


def test_the_number_of_samples_is_computed_where_the_inputs_tell_it():
    model, values = reshaped(divided=True)
    heads = values["heads_out"]
    heads.shape = ir.Shape(["unknown", 7, 4, 6])
    assert StaticShapes(model).of(heads) == (None, 7, 4, 6)
    assert StaticShapes(model, {"x": (3, 7, 24)}).of(heads) == (3, 7, 4, 6)


def test_sizes_that_are_open_stay_so():
    g = Shaped()
    y = g.op("MatMul", ["x", g.weights(8, 4)], "product")
    model = prepare(load_model(g.model({"x": ["N", "length", 8]}, y))).graph_model
    assert StaticShapes(model).of(model.graph.outputs[0]) == (1, None, 4)
    assert StaticShapes(model).of(None) is None


def test_a_tensor_of_unknown_rank():
    g = Shaped()
    flat = g.op("Reshape", [g.op("Reshape", ["x", "sizes"], "reshape"), g.constant(np.array([-1]))], "flat")
    model = Graph.model(g, {"x": ["N", 8]}, flat)
    model.graph.input.append(onnx.helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, ["rank"]))
    graph_model = prepare(load_model(onnx.shape_inference.infer_shapes(model))).graph_model
    assert StaticShapes(graph_model).of(graph_model.graph.node(0).outputs[0]) is None


def test_a_single_number_has_no_sizes():
    g = Shaped()
    sum_of_all = g.op("ReduceSum", ["x"], "sum", keepdims=0)
    graph_model = prepare(load_model(g.model({"x": ["N", 8]}, sum_of_all))).graph_model
    (output,) = graph_model.graph.outputs
    output.shape = None
    assert StaticShapes(graph_model).of(output) == ()


def test_inputs_of_given_shape():
    g = Shaped()
    y = g.op("MatMul", ["x", g.weights(8, 4)], "product")
    graph_model = prepare(load_model(g.model({"x": ["N", "length", 8]}, y))).graph_model
    output = graph_model.graph.outputs[0]
    assert StaticShapes(graph_model, {"x": (3, 7, 8)}).of(output) == (3, 7, 4)
    assert StaticShapes(graph_model, {"x": (3, 9, 8)}).of(output) == (3, 9, 4)
    assert StaticShapes(graph_model).of(output) == (1, None, 4)


@pytest.mark.parametrize(
    ("shape", "is_open"),
    [
        ([], False),
        (["N"], False),
        (["N", 3], False),
        (["N", "length"], True),
        ([2, 3, None], True),
        (None, True),
    ],
)
def test_inputs_with_an_open_size(shape, is_open):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [])
    assert open_inputs(ir.from_proto(helper.make_model(graph))) == (("x",) if is_open else ())


def counted(operator, inputs, output, **attributes):
    values = [ir.Value(name=str(index)) for index in range(len(inputs))]
    node = ir.node(operator, values, attributes)
    return multiply_adds(node, dict(zip((*values, *node.outputs), (*inputs, output), strict=True)).get)


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "attributes", "expected"),
    [
        ("Conv", [(2, 8, 16, 16), (32, 4, 3, 3)], (2, 32, 8, 8), {"group": 2}, 2 * 32 * 8 * 8 * 4 * 9),
        (
            "DeformConv",
            [(2, 8, 16, 16), (32, 4, 3, 3), (2, 18, 8, 8)],
            (2, 32, 8, 8),
            {"group": 2},
            2 * 32 * 8 * 8 * 36,
        ),
        ("ConvTranspose", [(2, 8, 16, 16), (8, 32, 2, 2)], (2, 32, 32, 32), {}, 2 * 8 * 16 * 16 * 32 * 4),
        ("Gemm", [(5, 64), (32, 64)], (5, 32), {"transB": 1}, 5 * 64 * 32),
        ("Gemm", [(64, 5), (64, 32)], (5, 32), {"transA": 1}, 5 * 64 * 32),
        ("MatMul", [(2, 10, 64), (64, 32)], (2, 10, 32), {}, 2 * 10 * 64 * 32),
        ("Einsum", [(2, 10, 64), (64, 32)], (2, 32, 10), {"equation": "bti, ij -> btj"}, 2 * 10 * 64 * 32),
        ("LSTM", [(10, 3, 16), (2, 128, 16), (2, 128, 32)], None, {}, 10 * 3 * 2 * 4 * 32 * (16 + 32)),
    ],
)
def test_products(operator, inputs, output, attributes, expected):
    assert counted(operator, inputs, output, **attributes) == expected


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "attributes"),
    [
        ("MatMul", [None, (64, 32)], (2, 10, 32), {}),
        ("LSTM", [None, (2, 128, 16), (2, 128, 32)], None, {}),
        ("Gemm", [(3,), (3, 3)], (3,), {}),
        ("Einsum", [(2, 10, 64), (64, 32)], (2, 10, 32), {"equation": "...i,ij->...j"}),
        ("Relu", [(2, 3)], (2, 3), {}),
    ],
)
def test_what_is_not_counted(operator, inputs, output, attributes):
    assert counted(operator, inputs, output, **attributes) is None
