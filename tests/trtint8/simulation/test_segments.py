"""A network cut at its layers; test_propagation.py has whole networks of many kinds."""

import numpy as np
import pytest

from tests.trtint8.simulation.opened import opened
from tests.trtint8.tuning.networks import normal
from trtint8.simulation.networks import Form
from trtint8.simulation.segments import LayerAlone

X = np.array([[1.0, 0.3], [-0.2, 0.7]], np.float32)
FIRST, SECOND = np.array([[1.0, 0.1], [0.2, 0.5]], np.float32), np.array([[0.4, 1.0], [1.0, 0.3]], np.float32)


@pytest.fixture(scope="module")
def network():
    """Doubling, a product, a Relu, a product, and the sum with what was doubled."""
    text = (
        "doubled = Mul (x, two) first = MatMul (doubled, v) relu = Relu (first) second = MatMul (relu, w) "
        "less = Sub (second, doubled) where float two = {2}, float[2, 2] v = {1.0, 0.1, 0.2, 0.5}, "
        "float[2, 2] w = {0.4, 1.0, 1.0, 0.3}"
    )
    return opened("float[N, 2] x", text, "float[N, 2] less", 2.54).network


def fake(values, scale):
    return np.clip(np.rint(values / np.float32(scale)), -128, 127) * np.float32(scale)


def test_segments_begin_at_layers(network):
    assert [segment.layer and segment.layer.name for segment in network.segments] == [None, "first", "second"]
    assert [layer.name for layer in network.layers] == ["first", "second"]
    assert [segment.inputs for segment in network.segments] == [
        ("x",),
        ("doubled",),
        ("relu", "doubled"),
    ]
    assert [segment.outputs for segment in network.segments] == [
        ("doubled",),
        ("relu",),
        ("less",),
    ]
    assert network.outputs == ("less",)
    assert [network.last_read_by(number) for number in range(3)] == [
        {"x"},
        set(),
        {"relu", "doubled"},
    ]


def test_segments_in_float_compute_the_model(network):
    wanted = np.maximum(2 * X @ FIRST, 0) @ SECOND - 2 * X
    np.testing.assert_allclose(network.run_float({"x": X})["less"], wanted, rtol=1e-5, atol=1e-6)


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
        np.testing.assert_allclose(segment.run_layer(form, {"doubled": 2 * X}), product, rtol=1e-5, atol=1e-6)
        found = segment.run(form, {"doubled": 2 * X})["relu"]
        np.testing.assert_allclose(found, np.maximum(product, 0), rtol=1e-5, atol=1e-6)


def test_every_layer_reads_what_the_float_model_computes():
    text = (
        "first = MatMul (x, a) relu = Relu (first) second = MatMul (relu, b) third = MatMul (second, c) "
        "add = Add (third, relu) where float[4, 4] a, float[4, 4] b, float[4, 4] c"
    )
    model = opened("float[N, 4] x", text, "float[N, 4] add", 1.0)
    network, weights = (
        model.network,
        [model.model.graph.initializers[name].const_value.numpy() for name in "ab"],
    )
    x = normal(3, 4)
    relu = np.maximum(x @ weights[0], 0)
    wanted = {"x": x, "relu": relu, "second": relu @ weights[1]}
    seen = []
    for segment, layer, tensors in network.float_layers({"x": x}):
        seen.append(layer.name)
        for edge in layer.activations:
            np.testing.assert_allclose(tensors[edge.tensor], wanted[edge.tensor], rtol=1e-5, atol=1e-5)
        # What nothing reads any more is dropped.
        assert ("x" in tensors) == (layer.name == "first")
        assert segment.run_layer(Form.FLOAT, tensors).shape == (3, 4)
    assert [name for name in seen if name != "add"] == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("operator", "shape", "size"),
    [
        ("Conv (x, w, b)", (4, 1, 1), (3, 4, 1, 1)),
        ("Gemm (x, w, b)", (4,), (4, 3)),
        ("MatMul (x, w)", (4,), (4, 3)),
    ],
)
def test_a_layer_by_itself_has_no_bias_and_takes_any_weights(operator, shape, size):
    text = f"y = {operator} where float{list(size)} w, float[3] b"
    model = opened(f"float[N, {', '.join(map(str, shape))}] x", text)
    readers = len(model.model.graph.inputs[0].uses())
    alone = LayerAlone(model.model, *model.layers, model.quantizer.placement)
    assert len(model.model.graph.inputs[0].uses()) == readers
    values, weights = normal(5, *shape), normal(*size, seed=1)
    matrix = weights.reshape(3, 4).T if len(size) == 4 else weights
    exact = values.reshape(5, 4) @ matrix
    np.testing.assert_allclose(alone.run(values, weights).reshape(5, 3), exact, rtol=1e-5, atol=1e-6)
    steps = np.abs(matrix).max(axis=0) / np.float32(127)
    rounded = fake(values.reshape(5, 4), 2 / 127) @ fake(matrix, steps)
    found = alone.run_int8(values, weights, 2.0).reshape(5, 3)
    np.testing.assert_allclose(found, rounded, rtol=1e-5, atol=1e-6)
