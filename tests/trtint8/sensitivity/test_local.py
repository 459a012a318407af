"""The error at each layer, by hand."""

import json
import math

import numpy as np
import pytest

from calibrators.histograms.rules import decibels
from tests.trtint8.simulation.opened import WEIGHTS, X, opened, opened_products
from trtint8.sensitivity.local import LocalMeter, LocalNetwork
from trtint8.simulation.networks import Form
from trtint8.simulation.segments import propagate

NAMES = ("first", "second")


@pytest.fixture(scope="module")
def products():
    return opened_products()


def power(values):
    return float(np.square(values.astype(np.float64)).sum())


def test_levels_are_those_of_the_layer_alone(products):
    meter = LocalMeter(NAMES)
    segment = products.network.segments[0]
    watch = meter.watch(len(X), alone=True)
    exact = segment.run_layer(Form.FLOAT, {"x": X})
    # The network's own noise: as if everything before had made it a tenth too large.
    watch(segment, {"x": X, "first": exact}, {"x": X, "first": exact * np.float32(1.1)})
    weights, activations, passing = meter.levels("first")
    for form, level in ((Form.WEIGHTS, weights), (Form.ACTIVATIONS, activations)):
        noise = power(exact - segment.run_layer(form, {"x": X}))
        assert level == pytest.approx(decibels(power(exact), noise))
    assert passing == pytest.approx(20.0, abs=1e-4)
    without = LocalMeter(NAMES)
    without.watch(len(X), alone=True)(segment, {"x": X, "first": exact}, {"x": X, "first": exact})
    assert without.levels("first")[2] == math.inf
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


def by_themselves(model, x):
    """The errors of layers that are run by themselves."""
    meter = LocalMeter(layer.name for layer in model.network.layers)
    propagate(model.network, {"x": x}, meter.watch(len(x), alone=True))
    return meter


def in_one_session(model):
    return LocalNetwork(model.model, model.quantizer, model.network, threads=1)


@pytest.mark.parametrize(
    "measured", [by_themselves, lambda model, x: in_one_session(model).measure({"x": x})[1]]
)
def test_merging_adds_up_and_a_state_survives_json(products, measured):
    whole, parts = measured(products, X), LocalMeter(NAMES)
    for row in (X[:1], X[1:]):
        parts.merge(measured(products, row))
    again = LocalMeter(**json.loads(json.dumps(parts.state())))
    assert again.samples == parts.samples == whole.samples == 2
    for name in NAMES:
        assert again.levels(name) == parts.levels(name) == pytest.approx(whole.levels(name), abs=1e-4)
        np.testing.assert_array_equal(again.channels(name), parts.channels(name))
        np.testing.assert_array_equal(parts.channels(name), whole.channels(name))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (opened_products(), X),
        # What leaves a layer in another floating-point type.
        (
            opened(
                "float[N, 2] x",
                "first = MatMul (x, w) wide = Cast <to = 11> (first) y = Mul (wide, two) "
                "where float[2, 2] w = {1.0, 0.1, 0.2, 0.5}, double two = {2}",
                "double[N, 2] y",
                {"x": 1.0},
            ),
            X,
        ),
        # Masks and sizes that depend on values; of the second, INT8 finds another number of them.
        *(
            (
                opened(
                    "float[N, 4] x",
                    "a = MatMul (x, w) g = Greater (a, t) f = Reshape (g, s) b = Reshape (a, s) "
                    "c = Compress (b, f) y = Neg (c) where float[4, 4] w = "
                    f"{{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}}, float t = {{{threshold}}}, "
                    "int64[1] s = {-1}",
                    "float[M] y",
                    127.0,
                ),
                np.float32([[0.4, 0.6, 1.2, -3.3], [0.495, 2.0, 7.7, 5.1]]),
            )
            for threshold in (0.0, 0.49)
        ),
    ],
)
def test_errors_are_those_of_layers_run_by_themselves(model, x):
    wanted, (reference, found) = by_themselves(model, x), in_one_session(model).measure({"x": x})
    for name in wanted.names:
        assert found.levels(name) == pytest.approx(wanted.levels(name), abs=1e-3)
        np.testing.assert_array_equal(found.channels(name), wanted.channels(name))
    assert found.samples == len(x)
    exact = propagate(model.network, {"x": x}, lambda *_: None).reference
    for name, output in exact.items():
        np.testing.assert_allclose(reference[name], output, rtol=1e-6)


def test_sums_by_hand(products):
    _, found = in_one_session(products).measure({"x": X})
    assert found.state()["sums"]["first"][3] == pytest.approx(power(X @ WEIGHTS), rel=1e-5)
    assert found.state()["channels"]["first"] == pytest.approx([1.0, 0.7])


def test_channels_of_a_convolution_over_time_are_no_time_steps():
    model = opened("float[N, 2, 5] x", "y = Conv (x, w) where float[4, 2, 3] w")
    x = np.float32([[[1, 0, 0, 0, 0], [3, 0, 0, 0, 0]]])  # later on there is only silence
    _, found = in_one_session(model).measure({"x": x})
    np.testing.assert_array_equal(found.channels("y"), [1, 3])
    np.testing.assert_array_equal(by_themselves(model, x).channels("y"), [1, 3])
