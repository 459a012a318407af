"""Why single nodes stay in float: one tiny graph for each rule of each target."""

import numpy as np
import pytest

from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.obstacles import obstacle
from trtint8.quantization.targets import target_named


def reason(target, operator, x, *weights, **attributes):
    """Why an operator on ``x`` with constant weights stays in float on a target."""
    g = Shaped()
    inputs = ["x", *(g.weights(*shape) for shape in weights)]
    if not weights:
        inputs.append("z")
    y = g.op(operator, inputs, "op", **attributes)
    model = g.model({"x": x} | ({} if weights else {"z": [*x[:-2], x[-1], 1]}), y)
    (node,) = (node for node in prepare(load_model(model)).graph_model.graph if node.name == "op")
    return obstacle(node, target_named(target))


IMAGE, DEEP = [1, 32, 8, 8], [1, 32, 4, 8, 8]


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("tensorrt", None),
        ("tensorrt-8.6", None),
        ("tensorrt-11", None),
        ("rtx", "TensorRT for RTX has no INT8 kernel for it"),
        ("dla", None),
    ],
)
def test_conv_transpose(target, found):
    assert reason(target, "ConvTranspose", IMAGE, (32, 16, 2, 2)) == found


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("tensorrt", None),
        ("tensorrt-8.6", "TensorRT 8.6 refuses grouped ones in INT8"),
        ("tensorrt-10", None),
        ("dla", "the DLA has no grouped ones"),
    ],
)
def test_grouped_conv_transpose(target, found):
    assert reason(target, "ConvTranspose", IMAGE, (32, 8, 2, 2), group=2) == found


def few(inputs, outputs, per_group=""):
    return f"with {inputs} input channels{per_group} and {outputs} output channels, INT8 gains nothing"


@pytest.mark.parametrize(
    ("weights", "groups", "first", "found"),
    [
        ((32, 32, 3, 3), 1, False, None),
        ((16, 4, 3, 3), 1, False, None),
        ((15, 4, 3, 3), 1, False, few(4, 15)),
        ((8, 4, 3, 3), 1, False, few(4, 8)),
        ((8, 4, 3, 3), 1, True, None),
        ((16, 4, 3, 1), 1, False, few(4, 16)),
        ((32, 1, 3, 3), 32, False, None),
        ((32, 1, 1, 1), 32, False, few(1, 32, " per group")),
        ((28, 1, 3, 3), 28, False, few(1, 28, " per group")),
    ],
)
def test_convolutions_of_few_channels(weights, groups, first, found):
    g = Shaped()
    source = "x" if first else g.op("Relu", ["x"], "relu")
    y = g.op("Conv", [source, g.weights(*weights)], "op", group=groups)
    model = g.model({"x": [1, weights[1] * groups, 8, 8]}, y)
    (node,) = (node for node in prepare(load_model(model)).graph_model.graph if node.name == "op")
    assert obstacle(node, target_named("tensorrt-10")) == found
    assert obstacle(node, target_named("rtx")) is None


VECTOR = "it is a product of a matrix and a vector, which INT8 does not make faster"


@pytest.mark.parametrize(
    ("operator", "x", "weights", "attributes", "found"),
    [
        ("MatMul", ["N", 32], (32, 64), {}, None),
        ("MatMul", [1, 32], (32, 64), {}, VECTOR),
        ("MatMul", [2, 1, 32], (32, 64), {}, None),
        ("Gemm", ["N", 32], (10, 32), {"transB": 1}, "with 10 columns, INT8 gains nothing"),
        ("Gemm", ["N", 8], (64, 8), {"transB": 1}, "with 8 products per element, INT8 gains nothing"),
        ("Gemm", [32, 1], (32, 64), {"transA": 1}, VECTOR),
    ],
)
def test_small_products(operator, x, weights, attributes, found):
    assert reason("tensorrt-11", operator, x, weights, **attributes) == found
    assert reason("rtx", operator, x, weights, **attributes) is None


def test_a_product_of_activations_with_a_vector():
    assert reason("tensorrt-10", "MatMul", [2, 32, 64]) == VECTOR


@pytest.mark.parametrize(
    ("operator", "x", "weights", "attributes", "found"),
    [
        ("Conv", IMAGE, (32, 32, 3, 3), {"strides": [8, 8], "pads": [1] * 4}, None),
        ("Conv", IMAGE, (32, 32, 3, 3), {"strides": [9, 9]}, "its stride is 9, and the DLA's largest is 8"),
        ("Conv", DEEP, (32, 32, 3, 3, 3), {}, "it has 3 spatial dimensions, and the DLA takes 2"),
        ("ConvTranspose", IMAGE, (32, 16, 33, 1), {}, "its kernel is 33 large, and the DLA's largest is 32"),
        ("Gemm", ["N", 32], (32, 64), {}, "the DLA has no matrix product, so it runs on the GPU"),
        ("MatMul", ["N", 32], (32, 64), {}, "the DLA has no matrix product, so it runs on the GPU"),
    ],
)
def test_dla(operator, x, weights, attributes, found):
    assert reason("dla", operator, x, weights, **attributes) == found


def test_operators_that_get_no_pairs():
    g = Shaped()
    y = g.op("Einsum", ["x", g.weights(8, 4)], "op", equation="ij,jk->i")
    (node,) = prepare(load_model(g.model({"x": ["N", 8]}, y))).graph_model.graph
    found = "it is no product of two matrices, so it cannot become a MatMul, which would be quantized"
    assert obstacle(node, target_named("rtx")) == found


def test_operands_of_another_kind():
    assert reason("tensorrt", "MatMul", ["N", 8], (8,)) == "an operand is a vector"
    g = Shaped()
    y = g.op("Conv", ["x", g.op("Mul", ["z", g.constant(np.float32(2))], "twice")], "op")
    model = prepare(load_model(g.model({"x": IMAGE, "z": [16, 32, 3, 3]}, y))).graph_model
    found = "its weights are computed at run time, and TensorRT's INT8 convolutions need constant ones"
    assert obstacle(model.graph.node(1), target_named("tensorrt")) == found
