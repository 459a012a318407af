"""Which axis of a layer's input holds the channels."""

import onnx_ir as ir
import pytest

from trtint8.quantization.placement import Edge
from trtint8.simulation.layers import Layer


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
