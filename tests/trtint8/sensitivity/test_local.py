"""The error at each layer, by hand."""

import json

import numpy as np
import pytest

from calibrators.histograms.losses import decibels
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.local_network import LayerErrors
from trtint8.simulation.layers import Form, Quantizer
from trtint8.simulation.segments import cut

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
    assert meter.levels("second") == (None, None, None) and meter.channels("second") is None


def test_batches_may_differ_in_their_number_of_channels():
    """As of a product that sums over tokens."""
    meter, found = LocalMeter(("first",)), []
    for largest in ([1.0, 2.0], [3.0, 1.0], [2.0, 4.0, 1.0]):
        meter.add(1, {"first": LayerErrors(1.0, None, 0.1, 1.0, 0.1, np.array(largest))})
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
    again = LocalMeter.from_state(json.loads(json.dumps(parts.state())))
    assert again.levels("first") == parts.levels("first") and again.samples == 2
    np.testing.assert_array_equal(again.channels("first"), parts.channels("first"))
