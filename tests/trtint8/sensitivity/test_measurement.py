"""The sums of a measurement: when they are enough, and what they say."""

from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.sensitivity.measurement import Measurement
from trtint8.sensitivity.probe import Probe
from trtint8.simulation.layers import Quantizer, find_layers

INPUTS = (InputSpec("x", np.dtype(np.float32), ("N", 4)),)
X = np.random.default_rng(2).standard_normal((96, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def opened():
    """A prepared model of two products, its network and its table."""
    g = Shaped(quantized=False)
    first, second = (g.constant(g.random.standard_normal((4, 4)).astype(np.float32)) for _ in range(2))
    output = g.op("MatMul", [g.op("MatMul", ["x", first], "first"), second], "second")
    prepared = prepare(load_model(g.model({"x": ["N", 4]}, output)))
    placement = place(prepared.graph_model)
    table = CalibrationTable(dict.fromkeys(placement.tensors, 4.0))
    quantizer = Quantizer.of(placement, table.amax)
    layers = find_layers(prepared.graph_model.graph, placement)
    return SimpleNamespace(prepared=prepared, quantizer=quantizer, layers=layers, table=table)


def results(opened, read):
    """What batches of 16 samples show; counts the samples that were read."""
    probe = Probe(opened.prepared.graph_model, opened.quantizer, INPUTS, 0, None)
    probe.begin({"x": X[:16]}, 0, labelled=False)
    for start in range(0, len(X), 16):
        read.append(16)
        yield probe.run({"x": X[start : start + 16]}, None, start)


@pytest.mark.parametrize("tolerance", ["a", None, True, -1.0, float("nan")])
def test_tolerances_that_make_no_sense(opened, tolerance):
    with pytest.raises(
        CalibrationDataError, match=f"tolerance_db is {tolerance!r}; give a number of decibels"
    ):
        Measurement(opened.prepared, opened.layers, tolerance, None)


@pytest.mark.parametrize(
    ("tolerance", "samples", "converged"), [(100.0, 64, True), (0.001, 96, False), (0.0, 96, True)]
)
def test_it_stops_when_certain_and_not_before_there_are_enough_samples(opened, tolerance, samples, converged):
    measurement, read = Measurement(opened.prepared, opened.layers, tolerance, None), []
    measurement.run(results(opened, read))
    found = measurement.result(opened.table)
    assert sum(read) == found.samples == samples
    assert (found.converged, found.tolerance_db) == (converged, tolerance)
    assert [layer.node for layer in found.layers] == ["first", "second"]
    first, second = found.layers
    assert first.noise_share + second.noise_share == pytest.approx(1.0)
    ratio = 10 ** ((second.only.sqnr_db - first.only.sqnr_db) / 10)
    assert first.noise_share / second.noise_share == pytest.approx(ratio)
    assert found.table_fingerprint == opened.table.fingerprint
    assert found.model_fingerprint == opened.prepared.fingerprint


def test_no_samples(opened):
    with pytest.raises(CalibrationDataError, match="the data holds no samples"):
        Measurement(opened.prepared, opened.layers, 1.0, None).run(iter(()))
