"""A network cut at its layers; test_propagation.py has whole networks of many kinds."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import Edge, place
from trtint8.sensitivity.segments import Form, Layer, Quantizer, cut

X = np.array([[1.0, 0.3], [-0.2, 0.7]], np.float32)
FIRST, SECOND = np.array([[1.0, 0.1], [0.2, 0.5]], np.float32), np.array([[0.4, 1.0], [1.0, 0.3]], np.float32)


@pytest.fixture(scope="module")
def network():
    """Doubling, a product, a Relu, a product, and the sum with what was doubled."""
    g = Shaped(quantized=False)
    doubled = g.op("Mul", ["x", g.constant(np.float32(2))], "doubled")
    relu = g.op("Relu", [g.op("MatMul", [doubled, g.constant(FIRST)], "first")], "relu")
    second = g.op("MatMul", [relu, g.constant(SECOND)], "second")
    prepared = prepare(
        load_model(g.model({"x": ["N", 2]}, g.op("Sub", [second, doubled], "less")))
    ).graph_model
    placement = place(prepared)
    return cut(prepared, Quantizer.of(placement, dict.fromkeys(placement.tensors, 2.54)))


def fake(values, scale):
    return np.clip(np.rint(values / np.float32(scale)), -128, 127) * np.float32(scale)


def test_segments_begin_at_layers(network):
    assert [segment.layer and segment.layer.name for segment in network.segments] == [None, "first", "second"]
    assert [layer.name for layer in network.layers] == ["first", "second"]
    assert [segment.inputs for segment in network.segments] == [
        ("x",),
        ("doubled_out",),
        ("relu_out", "doubled_out"),
    ]
    assert [segment.outputs for segment in network.segments] == [
        ("doubled_out",),
        ("relu_out",),
        ("less_out",),
    ]
    assert network.outputs == ("less_out",)
    assert [network.last_read_by(number) for number in range(3)] == [
        {"x"},
        set(),
        {"relu_out", "doubled_out"},
    ]


def test_segments_in_float_compute_the_model(network):
    tensors = {"x": X}
    for segment in network.segments:
        tensors |= segment.run(Form.FLOAT, tensors)
    wanted = np.maximum(2 * X @ FIRST, 0) @ SECOND - 2 * X
    np.testing.assert_allclose(tensors["less_out"], wanted, rtol=1e-5, atol=1e-6)


def test_a_layer_in_each_form(network):
    segment = network.segments[1]
    scales = np.abs(FIRST).max(axis=0) / np.float32(127)
    weights, activations = fake(FIRST, scales), fake(2 * X, 2.54 / 127)
    wanted = {
        Form.FLOAT: 2 * X @ FIRST,
        Form.WEIGHTS: 2 * X @ weights,
        Form.ACTIVATIONS: activations @ FIRST,
        Form.INT8: activations @ weights,
    }
    for form, product in wanted.items():
        np.testing.assert_allclose(
            segment.run_layer(form, {"doubled_out": 2 * X}), product, rtol=1e-5, atol=1e-6
        )
        found = segment.run(form, {"doubled_out": 2 * X})["relu_out"]
        np.testing.assert_allclose(found, np.maximum(product, 0), rtol=1e-5, atol=1e-6)


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
