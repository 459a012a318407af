"""A network cut at its layers; test_propagation.py has whole networks of many kinds."""

import numpy as np
import pytest

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.quantization.placement import place
from trtint8.simulation.networks import Form, Quantizer, find_layers
from trtint8.simulation.segments import LayerAlone, cut

X = np.array([[1.0, 0.3], [-0.2, 0.7]], np.float32)
FIRST, SECOND = np.array([[1.0, 0.1], [0.2, 0.5]], np.float32), np.array([[0.4, 1.0], [1.0, 0.3]], np.float32)


@pytest.fixture(scope="module")
def network():
    """Doubling, a product, a Relu, a product, and the sum with what was doubled."""
    g = Shaped(quantized=False)
    doubled = g.op("Mul", ["x", g.constant(np.float32(2))], "doubled")
    relu = g.op("Relu", [g.op("MatMul", [doubled, g.constant(FIRST)], "first")], "relu")
    second = g.op("MatMul", [relu, g.constant(SECOND)], "second")
    made = prepared(g.model({"x": ["N", 2]}, g.op("Sub", [second, doubled], "less")))
    placement = place(made)
    return cut(made, Quantizer.of(placement, dict.fromkeys(placement.tensors, 2.54)))


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
    wanted = np.maximum(2 * X @ FIRST, 0) @ SECOND - 2 * X
    np.testing.assert_allclose(network.run_float({"x": X})["less_out"], wanted, rtol=1e-5, atol=1e-6)


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


def test_every_layer_reads_what_the_float_model_computes():
    g = Shaped(quantized=False)
    weights = [g.random.standard_normal((4, 4)).astype(np.float32) for _ in range(3)]
    first = g.op("Relu", [g.op("MatMul", ["x", g.constant(weights[0])], "first")], "relu")
    second = g.op("MatMul", [first, g.constant(weights[1])], "second")
    third = g.op("MatMul", [second, g.constant(weights[2])], "third")
    model = prepared(g.model({"x": ["N", 4]}, g.op("Add", [third, first], "add")))
    placement = place(model)
    network = cut(model, Quantizer.of(placement, dict.fromkeys(placement.tensors, 1.0)))
    x = normal(3, 4)
    relu = np.maximum(x @ weights[0], 0)
    wanted = {"x": x, "relu_out": relu, "second_out": relu @ weights[1]}
    seen = []
    for segment, layer, tensors in network.float_layers({"x": x}):
        seen.append(layer.name)
        for edge in layer.activations:
            np.testing.assert_allclose(tensors[edge.tensor], wanted[edge.tensor], rtol=1e-5, atol=1e-5)
        # What nothing reads any more is dropped.
        assert ("x" in tensors) == (layer.name == "first")
        assert segment.run_layer(Form.FLOAT, tensors).shape == (3, 4)
    assert [name for name in seen if name != "add"] == ["first", "second", "third"]


@pytest.mark.parametrize(("operator", "size"), [("Conv", (3, 4, 1, 1)), ("Gemm", (4, 3)), ("MatMul", (4, 3))])
def test_a_layer_by_itself_has_no_bias_and_takes_any_weights(operator, size):
    g = Shaped(quantized=False)
    bias = [] if operator == "MatMul" else [g.weights(3)]
    shape = ["N", 4, 1, 1] if operator == "Conv" else ["N", 4]
    model = prepared(g.model({"x": shape}, g.op(operator, ["x", g.weights(*size), *bias], "layer")))
    placement = place(model)
    readers = len(model.graph.inputs[0].uses())
    alone = LayerAlone(model, *find_layers(model.graph, placement), placement)
    assert len(model.graph.inputs[0].uses()) == readers
    values, weights = normal(5, *shape[1:]), normal(*size, seed=1)
    matrix = weights.reshape(3, 4).T if operator == "Conv" else weights
    exact = values.reshape(5, 4) @ matrix
    np.testing.assert_allclose(alone.run(values, weights).reshape(5, 3), exact, rtol=1e-5, atol=1e-6)
    steps = np.abs(matrix).max(axis=0) / np.float32(127)
    rounded = fake(values.reshape(5, 4), 2 / 127) @ fake(matrix, steps)
    found = alone.run_int8(values, weights, 2.0).reshape(5, 3)
    np.testing.assert_allclose(found, rounded, rtol=1e-5, atol=1e-6)
