"""Layers in every form, and where their channels lie."""

import onnx_ir as ir
import pytest

from tests.trtint8.simulation.opened import WEIGHTS, opened_products
from trtint8.models.graph_writer import GraphWriter
from trtint8.quantization.placement import Edge
from trtint8.simulation.networks import Form, Layer, QuantizedLayers, find_layers


@pytest.mark.parametrize(
    ("kind", "index", "attributes", "rank", "axis"),
    [
        ("Conv", 0, {}, 3, 1),
        ("Conv", 0, {}, 4, 1),
        ("ConvTranspose", 0, {}, 5, 1),
        ("GlobalAveragePool", 0, {}, 3, 1),
        ("MatMul", 0, {}, 2, 1),
        ("MatMul", 0, {}, 4, 3),
        ("MatMul", 1, {}, 4, 2),
        ("Gemm", 0, {}, 2, 1),
        ("Gemm", 0, {"transA": 1}, 2, 0),
        ("Gemm", 1, {"transA": 1}, 2, 0),
        ("Gemm", 1, {"transB": 1}, 2, 1),
        ("Add", 0, {}, 4, 1),
        ("Add", 1, {}, 3, 2),
    ],
)
def test_channels_lie_where_the_operator_has_them(kind, index, attributes, rank, axis):
    node = ir.node(kind, [ir.Value(name="x"), ir.Value(name="z")], attributes, name="layer")
    assert Layer(node, (Edge("layer", index, "xz"[index]),), ()).channel_axis(rank) == axis


def test_what_layers_have_in_common_is_appended_once():
    opened = opened_products()
    graph = opened.model.clone().graph
    (first, second) = find_layers(graph, opened.quantizer.placement)
    quantized = QuantizedLayers(GraphWriter(graph), opened.quantizer)
    constants = len(graph.initializers)
    quantized.append(first, {})
    quantized.append(second, {second.node.inputs[0]: first.node.inputs[0]})
    quantized.append(first, {}, Form.WEIGHTS)
    assert [node.op_type for node in graph].count("QuantizeLinear") == 1
    # Rounded weights, which both layers read, one scale and its zero point; and the scale of the second.
    added = list(graph.initializers)[constants:]
    assert [graph.initializers[name].shape for name in added].count(WEIGHTS.shape) == 1
