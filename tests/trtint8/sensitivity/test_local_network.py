"""The errors at every layer in one session, beside those of the layers run by themselves."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import Shaped
from tests.trtint8.simulation.two_products import WEIGHTS, X, opened_products
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.local_network import LocalNetwork
from trtint8.simulation.layers import Quantizer
from trtint8.simulation.segments import cut, propagate


def test_errors_are_those_of_layers_run_by_themselves():
    opened = opened_products()
    names = ("first", "second")
    wanted, found = LocalMeter(names), LocalMeter(names)
    propagate(opened.network, {"x": X}, wanted.watch(len(X), alone=True))
    network = LocalNetwork(opened.model, opened.quantizer, opened.network, threads=1)
    reference, measured = network.measure({"x": X})
    np.testing.assert_allclose(reference["second_out"], X @ WEIGHTS @ WEIGHTS, rtol=1e-6)
    found.add(len(X), measured)
    for name in names:
        assert found.levels(name) == pytest.approx(wanted.levels(name), abs=1e-3)
        np.testing.assert_array_equal(found.channels(name), wanted.channels(name))
    assert found.samples == 2
    np.testing.assert_array_equal(measured["first"].channels, np.float32([1.0, 0.7]).astype(np.float64))


def test_several_runs_add_up():
    opened = opened_products()
    network = LocalNetwork(opened.model, opened.quantizer, opened.network, threads=1)
    whole, parts = LocalMeter(("first", "second")), LocalMeter(("first", "second"))
    whole.add(2, network.measure({"x": X})[1])
    for row in (X[:1], X[1:]):
        parts.add(1, network.measure({"x": row})[1])
    assert parts.samples == 2
    assert parts.levels("second") == pytest.approx(whole.levels("second"), abs=1e-4)
    np.testing.assert_array_equal(parts.channels("second"), whole.channels("second"))


def test_what_leaves_a_layer_in_another_floating_point_type_counts():
    g = Shaped(quantized=False)
    product = g.op("MatMul", ["x", g.constant(WEIGHTS)], "first")
    double = g.op("Mul", [g.op("Cast", [product], "double", to=TensorProto.DOUBLE), g.constant(2.0)], "twice")
    made = g.model({"x": ["N", 2]}, g.op("Cast", [double], "wide", to=TensorProto.DOUBLE))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("wide_out", TensorProto.DOUBLE, ["N", 2]))
    model = prepare(load_model(made)).graph_model
    quantizer = Quantizer.of(place(model), {"x": 1.0})
    network = cut(model, quantizer)
    wanted = LocalMeter(("first",))
    propagate(network, {"x": X}, wanted.watch(len(X), alone=True))
    _, measured = LocalNetwork(model, quantizer, network, threads=1).measure({"x": X})
    found = LocalMeter(("first",))
    found.add(len(X), measured)
    assert found.levels("first")[2] == pytest.approx(wanted.levels("first")[2], abs=1e-3)
    assert measured["first"].passing == pytest.approx(4 * np.square(X @ WEIGHTS).sum(), rel=1e-5)


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
    assert measured["conv"].channels.tolist() == by_itself.channels("conv").tolist() == [1, 3]
