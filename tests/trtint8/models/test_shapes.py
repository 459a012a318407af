"""Shapes that exporters compute at run time."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.trtint8.onnx_models import normal, parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.shapes import StaticShapes, multiply_adds, open_inputs


def reshaped(divided):
    """A Reshape of x to (batch, length, 4, width / 4), with sizes from a Shape."""
    width = "Div (size2, four)" if divided else "Identity (rest)"
    made = parsed(
        "float[N, 7, 24] x",
        "float[] product_out",
        f"""shape = Shape (x)
        size0 = Slice (shape, zero, one) size1 = Slice (shape, one, two) size2 = Slice (shape, two, three)
        width = {width} sizes = Concat <axis = 0> (size0, size1, four, width)
        heads_out = Reshape (x, sizes) product_out = MatMul (heads_out, w)""",
        w=normal(6, 5),
        rest=np.array([-1]),
        **{name: np.array([i]) for i, name in enumerate(("zero", "one", "two", "three", "four"))},
    )
    model = prepare(load_model(made)).graph_model
    return model, {value.name: value for node in model.graph for value in node.outputs}


@pytest.mark.parametrize("divided", [False, True])
def test_sizes_that_follow_from_others(divided):
    model, values = reshaped(divided)
    before = [str(value.shape) for value in values.values()], len(model.graph)
    shapes = StaticShapes(model)
    assert shapes.of(values["heads_out"]) == (1, 7, 4, 6)
    assert shapes.of(values["product_out"])[1:] == (7, 4, 5)
    assert ([str(value.shape) for value in values.values()], len(model.graph)) == before


def prepared(inputs, body, **constants):
    return prepare(load_model(parsed(inputs, "float[] y", body, **constants))).graph_model


def test_nothing_is_computed_where_only_the_first_size_is_open():
    model = load_model(parsed("float[N, 3, 5] x", "float[] y", "y = Relu (x)")).graph_model
    shapes = StaticShapes(model)
    assert shapes.of(model.graph.inputs[0]) == (None, 3, 5)
    assert "_computed" not in vars(shapes)


def test_the_number_of_samples_is_computed_where_the_inputs_tell_it():
    model, values = reshaped(divided=True)
    heads = values["heads_out"]
    heads.shape = ir.Shape(["unknown", 7, 4, 6])
    assert StaticShapes(model).of(heads) == (None, 7, 4, 6)
    assert StaticShapes(model, {"x": (3, 7, 24)}).of(heads) == (3, 7, 4, 6)


def test_a_tensor_of_unknown_rank():
    body = "r = Reshape (x, sizes) y = Reshape (r, flat)"
    model = prepared("float[N, 8] x, int64[rank] sizes", body, flat=np.array([-1]))
    assert StaticShapes(model).of(model.graph.node(0).outputs[0]) is None


def test_a_single_number_has_no_sizes():
    model = prepared("float[N, 8] x", "y = ReduceSum <keepdims = 0> (x)")
    (output,) = model.graph.outputs
    output.shape = None
    assert StaticShapes(model).of(output) == ()


def test_sizes_that_are_open_stay_so_unless_they_are_given():
    model = prepared("float[N, length, 8] x", "y = MatMul (x, w)", w=normal(8, 4))
    output = model.graph.outputs[0]
    assert StaticShapes(model, {"x": (3, 7, 8)}).of(output) == (3, 7, 4)
    assert StaticShapes(model, {"x": (3, 9, 8)}).of(output) == (3, 9, 4)
    assert StaticShapes(model).of(output) == (1, None, 4)
    assert StaticShapes(model).of(None) is None


@pytest.mark.parametrize(
    ("shape", "is_open"),
    [
        ("", False),
        ("[N]", False),
        ("[N, 3]", False),
        ("[N, length]", True),
        ("[2, 3, ?]", True),
        ("[]", True),
    ],
)
def test_inputs_with_an_open_size(shape, is_open):
    model = ir.from_proto(parsed(f"float{shape} x", "float[] y", "y = Relu (x)"))
    assert open_inputs(model) == (("x",) if is_open else ())


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
        # What is not counted.
        ("MatMul", [None, (64, 32)], (2, 10, 32), {}, None),
        ("LSTM", [None, (2, 128, 16), (2, 128, 32)], None, {}, None),
        ("Gemm", [(3,), (3, 3)], (3,), {}, None),
        ("Einsum", [(2, 10, 64), (64, 32)], (2, 10, 32), {"equation": "...i,ij->...j"}, None),
        ("Relu", [(2, 3)], (2, 3), {}, None),
    ],
)
def test_products(operator, inputs, output, attributes, expected):
    values = [ir.Value(name=str(index)) for index in range(len(inputs))]
    node = ir.node(operator, values, attributes)
    shapes = dict(zip((*values, *node.outputs), (*inputs, output), strict=True))
    assert multiply_adds(node, shapes.get) == expected
