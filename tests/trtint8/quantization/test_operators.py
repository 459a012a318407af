"""Properties of operators on which placement rests: a node for each."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.trtint8.onnx_models import Graph
from trtint8.quantization.operators import commutes_with_quantization, weight_axis


def node_of(operator, *weights, domain="", **attributes):
    """The node of a graph that reads ``x`` and constants."""
    g = Graph()
    model = g.model(
        {"x": ["N", 4, 4, 4]}, g.op(operator, ["x", *map(g.constant, weights)], "node", **attributes)
    )
    model.graph.node[0].domain = domain
    return ir.from_proto(model).graph[0]


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize("operator", ["Gemm", "MatMul"])
def test_a_constant_first_operand_has_one_scale(operator):
    node = node_of(operator, zeros(4, 8))
    assert weight_axis(node, node.inputs[0]) is None


@pytest.mark.parametrize("operator", ["MaxPool", "Transpose", "Reshape", "Split", "Dropout", "GlobalMaxPool"])
def test_what_only_copies_or_selects_values_commutes(operator):
    assert commutes_with_quantization(node_of(operator))
    assert not commutes_with_quantization(node_of(operator, domain="mine"))


@pytest.mark.parametrize("operator", ["Relu", "AveragePool", "Concat", "Add", "Conv", "Softmax"])
def test_what_computes_does_not(operator):
    assert not commutes_with_quantization(node_of(operator))


@pytest.mark.parametrize(("mode", "commutes"), [("nearest", True), ("linear", False), ("cubic", False)])
def test_resizing(mode, commutes):
    assert commutes_with_quantization(node_of("Resize", mode=mode)) is commutes
    assert commutes_with_quantization(node_of("Resize"))


@pytest.mark.parametrize(
    ("value", "mode", "commutes"),
    [(0.0, "constant", True), (1.0, "constant", False), (1.0, "reflect", True), (1.0, "edge", True)],
)
def test_padding(value, mode, commutes):
    pads = np.zeros(8, np.int64)
    assert commutes_with_quantization(node_of("Pad", pads, np.float32(value), mode=mode)) is commutes
    assert commutes_with_quantization(node_of("Pad", pads))
