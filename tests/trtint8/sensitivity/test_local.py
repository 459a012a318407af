"""The error at each layer, by hand."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

from calibrators.histograms.rules import decibels
from tests.trtint8.onnx_models import Shaped, parsed
from tests.trtint8.simulation.two_products import WEIGHTS as LOCAL_NETWORK_WEIGHTS
from tests.trtint8.simulation.two_products import X as LOCAL_NETWORK_X
from tests.trtint8.simulation.two_products import opened_products
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.sensitivity.local import LocalMeter, LocalNetwork
from trtint8.simulation.networks import Form, Quantizer
from trtint8.simulation.segments import cut, propagate

X = np.array([[1.0, 0.3], [-0.2, 0.7]], np.float32)
WEIGHTS = np.array([[1.0, 0.1], [0.2, 0.5]], np.float32)


@pytest.fixture(scope="module")
def network():
    """Two products of the same weights."""
    g = Shaped(quantized=False)
    first = g.op("MatMul", ["x", g.constant(WEIGHTS)], "first")
    model = g.model({"x": ["N", 2]}, g.op("MatMul", [first, g.constant(WEIGHTS)], "second"))
    prepared = prepare(load_model(model)).graph_model
    return cut(prepared, Quantizer.of(place(prepared), {"x": 1.0, "first_out": 1.5}))


def power(values):
    return float(np.square(values.astype(np.float64)).sum())


def test_levels_are_those_of_the_layer_alone(network):
    meter = LocalMeter(("first", "second"))
    segment = network.segments[0]
    watch = meter.watch(len(X), alone=True)
    exact = segment.run_layer(Form.FLOAT, {"x": X})
    # The network's own noise: as if everything before had made it a tenth too large.
    watch(segment, {"x": X, "first_out": exact}, {"x": X, "first_out": exact * np.float32(1.1)})
    weights, activations, passing = meter.levels("first")
    for form, level in ((Form.WEIGHTS, weights), (Form.ACTIVATIONS, activations)):
        noise = power(exact - segment.run_layer(form, {"x": X}))
        assert level == pytest.approx(decibels(power(exact), noise))
    assert passing == pytest.approx(20.0, abs=1e-4)
    np.testing.assert_array_equal(meter.channels("first"), np.float32([1.0, 0.7]).astype(np.float64))
    assert meter.samples == 2
    assert meter.levels("second")[2] is None and meter.channels("second") is None
    assert LocalMeter(("second",)).levels("second") == (None, None, None)


def test_batches_may_differ_in_their_number_of_channels():
    """As of a product that sums over tokens."""
    meter, found = LocalMeter(("first",)), []
    for largest in ([1.0, 2.0], [3.0, 1.0], [2.0, 4.0, 1.0]):
        meter.merge(LocalMeter(("first",), 1, channels={"first": largest}))
        found.append(meter.channels("first").tolist())
    assert found == [[1.0, 2.0], [3.0, 2.0], [2.0, 4.0, 1.0]]


def test_merging_adds_up_and_a_state_survives_json(network):
    whole, parts = LocalMeter(("first", "second")), LocalMeter(("first", "second"))
    segment = network.segments[0]
    for rows in (X[:1], X[1:]):
        exact = segment.run_layer(Form.FLOAT, {"x": rows})
        floats = {"x": rows, "first_out": exact}
        one = LocalMeter(("first", "second"))
        one.watch(1, alone=True)(segment, floats, floats)
        parts.merge(one)
        whole.watch(1, alone=True)(segment, floats, floats)
    assert parts.samples == whole.samples == 2
    assert parts.levels("first") == pytest.approx(whole.levels("first"))
    assert parts.levels("first")[2] == np.inf
    np.testing.assert_array_equal(parts.channels("first"), np.abs(X).max(axis=0).astype(np.float64))
    again = LocalMeter(**json.loads(json.dumps(parts.state())))
    assert again.levels("first") == parts.levels("first") and again.samples == 2
    np.testing.assert_array_equal(again.channels("first"), parts.channels("first"))


def test_errors_are_those_of_layers_run_by_themselves():
    opened = opened_products()
    names = ("first", "second")
    wanted = LocalMeter(names)
    propagate(opened.network, {"x": LOCAL_NETWORK_X}, wanted.watch(len(LOCAL_NETWORK_X), alone=True))
    network = LocalNetwork(opened.model, opened.quantizer, opened.network, threads=1)
    reference, found = network.measure({"x": LOCAL_NETWORK_X})
    np.testing.assert_allclose(
        reference["second_out"], LOCAL_NETWORK_X @ LOCAL_NETWORK_WEIGHTS @ LOCAL_NETWORK_WEIGHTS, rtol=1e-6
    )
    for name in names:
        assert found.levels(name) == pytest.approx(wanted.levels(name), abs=1e-3)
        np.testing.assert_array_equal(found.channels(name), wanted.channels(name))
    assert found.samples == 2
    np.testing.assert_array_equal(found.channels("first"), np.float32([1.0, 0.7]).astype(np.float64))


def test_several_runs_add_up():
    opened = opened_products()
    network = LocalNetwork(opened.model, opened.quantizer, opened.network, threads=1)
    whole, parts = network.measure({"x": LOCAL_NETWORK_X})[1], LocalMeter(("first", "second"))
    for row in (LOCAL_NETWORK_X[:1], LOCAL_NETWORK_X[1:]):
        parts.merge(network.measure({"x": row})[1])
    assert parts.samples == 2
    assert parts.levels("second") == pytest.approx(whole.levels("second"), abs=1e-4)
    np.testing.assert_array_equal(parts.channels("second"), whole.channels("second"))


def test_what_leaves_a_layer_in_another_floating_point_type_counts():
    g = Shaped(quantized=False)
    product = g.op("MatMul", ["x", g.constant(LOCAL_NETWORK_WEIGHTS)], "first")
    double = g.op("Mul", [g.op("Cast", [product], "double", to=TensorProto.DOUBLE), g.constant(2.0)], "twice")
    made = g.model({"x": ["N", 2]}, g.op("Cast", [double], "wide", to=TensorProto.DOUBLE))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("wide_out", TensorProto.DOUBLE, ["N", 2]))
    model = prepare(load_model(made)).graph_model
    quantizer = Quantizer.of(place(model), {"x": 1.0})
    network = cut(model, quantizer)
    wanted = LocalMeter(("first",))
    propagate(network, {"x": LOCAL_NETWORK_X}, wanted.watch(len(LOCAL_NETWORK_X), alone=True))
    _, found = LocalNetwork(model, quantizer, network, threads=1).measure({"x": LOCAL_NETWORK_X})
    assert found.levels("first")[2] == pytest.approx(wanted.levels("first")[2], abs=1e-3)
    assert found.state()["sums"]["first"][3] == pytest.approx(
        4 * np.square(LOCAL_NETWORK_X @ LOCAL_NETWORK_WEIGHTS).sum(), rel=1e-5
    )


def test_channels_of_a_convolution_over_time_are_no_time_steps():
    g = Shaped(quantized=False)
    conv = g.op("Conv", ["x", g.weights(4, 2, 3)], "conv")
    model = prepare(load_model(g.model({"x": ["N", 2, 5]}, conv))).graph_model
    quantizer = Quantizer.of(place(model), {"x": 4.0})
    network = cut(model, quantizer)
    x = np.zeros((1, 2, 5), np.float32)
    x[0, :, 0] = (1, 3)  # later on there is only silence
    by_itself = LocalMeter(("conv",))
    propagate(network, {"x": x}, by_itself.watch(1, alone=True))
    _, measured = LocalNetwork(model, quantizer, network, threads=1).measure({"x": x})
    assert measured.channels("conv").tolist() == by_itself.channels("conv").tolist() == [1, 3]


@pytest.mark.parametrize("threshold", [0.0, 0.49])  # of the second, INT8 finds another number of values
def test_where_masks_and_sizes_depend_on_values(threshold):
    model = parsed(
        "float[N, 4] x", "float[M] y",
        "a = MatMul (x, w) g = Greater (a, t) f = Reshape (g, s) b = Reshape (a, s) c = Compress (b, f) "
        "y = Neg (c)",
        w=np.eye(4, dtype=np.float32), t=np.float32(threshold), s=np.array([-1]),
    )  # fmt: skip
    model = prepare(load_model(model.SerializeToString())).graph_model
    quantizer = Quantizer.of(place(model), {"x": 127.0})
    network = cut(model, quantizer)
    x = np.array([[0.4, 0.6, 1.2, -3.3], [0.495, 2.0, 7.7, 5.1]], np.float32)
    (name,) = (layer.name for layer in network.layers)
    wanted = LocalMeter((name,))
    propagate(network, {"x": x}, wanted.watch(len(x), alone=True))
    _, found = LocalNetwork(model, quantizer, network, threads=1).measure({"x": x})
    assert found.levels(name) == pytest.approx(wanted.levels(name), abs=1e-3)
