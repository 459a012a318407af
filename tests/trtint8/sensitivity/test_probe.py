"""What one batch shows of every layer."""

import numpy as np
import pytest

import trtint8
from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.sensitivity.probe import ALL, ONLY, WITHOUT, Probe
from trtint8.sensitivity.segments import Form, Quantizer, cut

INPUTS = (InputSpec("x", np.dtype(np.float32), ("N", 4)),)
X = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def network():
    g = Shaped(quantized=False)
    first = g.op("MatMul", ["x", g.constant(g.random.standard_normal((4, 4)).astype(np.float32))], "first")
    weights = g.constant(g.random.standard_normal((4, 3)).astype(np.float32))
    prepared = prepare(
        load_model(g.model({"x": ["N", 4]}, g.op("MatMul", [first, weights], "second")))
    ).graph_model
    placement = place(prepared)
    return cut(prepared, Quantizer.of(placement, dict.fromkeys(placement.tensors, 4.0)))


@pytest.fixture
def probe(network):
    made = Probe(network, INPUTS, 0, None)
    assert made.begin({"x": X}, 0, labelled=True) > 0
    return made


def outputs(network, forms):
    tensors = {"x": X}
    for segment, form in zip(network.segments, forms, strict=True):
        tensors |= segment.run(form, tensors)
    return tensors["second_out"]


def test_every_variant_is_measured(network, probe):
    found = probe.run({"x": X}, np.zeros(9, np.int64), 0)
    assert found.samples == 5
    exact = outputs(network, (Form.FLOAT, Form.FLOAT))
    variants = {
        ALL: (Form.INT8, Form.INT8),
        (ONLY, "first"): (Form.INT8, Form.FLOAT),
        (WITHOUT, "first"): (Form.FLOAT, Form.INT8),
        (ONLY, "second"): (Form.FLOAT, Form.INT8),
        (WITHOUT, "second"): (Form.INT8, Form.FLOAT),
    }
    for variant, forms in variants.items():
        wanted = 10 * np.log10(np.square(exact).sum() / np.square(exact - outputs(network, forms)).sum())
        assert found.effects.effect(variant).sqnr_db == pytest.approx(wanted, abs=1e-3)
    assert found.effects.reference_top1().total == 5
    assert found.local.levels("first")[0] > 20


def test_samples_that_were_measured_before_are_only_looked_at(network, probe):
    skipping = Probe(network, INPUTS, 5, probe.effects)
    found = skipping.run({"x": X}, None, 0)
    assert (found.samples, found.effects, found.local) == (5, None, None)
    assert (
        found.fingerprint.hexdigest() == probe.run({"x": X}, np.zeros(5, np.int64), 0).fingerprint.hexdigest()
    )


def test_batches_that_do_not_fit(probe):
    with pytest.raises(CalibrationDataError, match="x"):
        probe.run({"x": X[:, :3]}, None, 0)
    with pytest.raises(CalibrationDataError, match="labels"):
        probe.run({"x": X}, np.zeros(3, np.int64), 0)


def test_an_input_that_is_an_output_too():
    graph = Shaped(False)
    scores = graph.op("Gemm", [graph.op("Flatten", ["x"], "flat"), graph.weights(48, 5)], "gemm")
    model = graph.model({"x": ["N", 3, 4, 4]}, scores)
    model.graph.output.append(model.graph.input[0])
    data = np.random.default_rng(0).random((16, 3, 4, 4), np.float32)
    table = trtint8.calibrate(model, data, method="minmax", progress=False)
    result = trtint8.measure_sensitivity(model, table, data, progress=False)
    assert result.quantized.agreement.total == 16
