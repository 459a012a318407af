"""Biases after which quantized layers are right on average."""

import dataclasses

import numpy as np
import pytest

from calibrators.data.batches import Batches
from calibrators.errors import CalibrationDataError
from calibrators.host.observer import Observer
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import Shaped, specs
from tests.trtint8.tuning.networks import OPERATORS, array, every_operator, normal, picking, prepared
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.placement import place
from trtint8.simulation.networks import Form, Quantizer
from trtint8.simulation.segments import cut
from trtint8.tuning.remedies.bias_correction import choose_ranges_anew, correct_biases


def ranges(model, feeds):
    proto = to_proto(model)
    tensors = place(model).tensors
    batches = Batches.of_feeds(lambda: iter(feeds))
    seen = Observer(proto.SerializeToString(), specs(proto), tensors).observe(batches, progress=False)
    return CalibrationTable.from_histograms(seen.histograms, "minmax", Provenance(None)).amax


def single(operator, weights, *bias, size, **attributes):
    g = Shaped(quantized=False)
    inputs = ["x", g.constant(np.asarray(weights, np.float32)), *(g.constant(np.float32(b)) for b in bias)]
    return prepared(g.model({"x": size}, g.op(operator, inputs, "layer", **attributes)))


def corrected(model, feeds, amax=127.0):
    return correct_biases(model, place(model), {"x": amax}, [{"x": np.float32(feed)} for feed in feeds])


def test_by_hand():
    """Steps of one: 0.4 becomes 0, and 2.6 becomes 3, with weights that are on their grid."""
    model = single("Conv", [[[[1.0]]], [[[-2.0]]]], [0.5, 0.25], size=["N", 1, 1, 2])
    found = corrected(model, [[[[[0.4, 2.6]]]], [[[[0.4, 0.4]]]]])
    mean = (0.4 - 0.4 + 0.4 + 0.4) / 4
    np.testing.assert_allclose(found.corrections["layer"], [mean, -2 * mean], rtol=1e-5)
    np.testing.assert_allclose(array(found.model, "layer", 2), [0.5 + mean, 0.25 - 2 * mean], rtol=1e-5)
    np.testing.assert_array_equal(array(model, "layer", 2), [0.5, 0.25])


def test_batches_count_by_their_samples():
    model = single("Gemm", [[1.0]], size=["N", 1])
    found = corrected(model, [[[0.4], [0.4], [0.1]], [[1.0]]])
    np.testing.assert_allclose(found.corrections["layer"], [0.9 / 4], rtol=1e-5)


def test_a_bias_is_added_where_there_is_none():
    for operator, weights, size, values in (
        ("Conv", [[[2.0]]], ["N", 1, 3], [[[0.4, 0.4, 0.4]]]),
        ("ConvTranspose", [[[2.0]]], ["N", 1, 3], [[[0.4, 0.4, 0.4]]]),
        ("Gemm", [[2.0]], ["N", 1], [[0.4]]),
    ):
        found = corrected(single(operator, weights, size=size), [values])
        np.testing.assert_allclose(array(found.model, "layer", 2), [0.8], rtol=1e-5)


def test_a_gemm_multiplies_its_bias():
    model = single("Gemm", [[2.0]], 3.0, size=["N", 1], alpha=0.5, beta=4.0)
    found = corrected(model, [[[0.4]]])
    np.testing.assert_allclose(found.corrections["layer"], [0.4], rtol=1e-5)
    np.testing.assert_allclose(array(found.model, "layer", 2), [3.1], rtol=1e-5)


def test_a_bias_for_every_row_stays_one():
    model = single("Gemm", [[2.0, 1.0]], [[1.0], [2.0]], size=[2, 1])
    found = corrected(model, [[[0.4], [0.4]]])
    np.testing.assert_allclose(array(found.model, "layer", 2), [[1.8, 1.4], [2.8, 2.4]], rtol=1e-5)


def test_what_has_no_place_for_a_bias_is_left_alone():
    assert corrected(single("MatMul", [[2.0]], size=["N", 1]), [[[0.4]]]).corrections == {}
    assert corrected(single("Gemm", [[2.0]], 1.0, size=["N", 1], beta=0.0), [[[0.4]]]).corrections == {}
    g = Shaped(quantized=False)
    model = prepared(
        g.model({"x": ["N", 1], "bias": [1]}, g.op("Gemm", ["x", g.weights(1, 1), "bias"], "layer"))
    )
    feed = {"x": np.float32([[0.4]]), "bias": np.float32([1])}
    assert correct_biases(model, place(model), {"x": 127.0}, [feed]).corrections == {}


def test_layers_that_stay_in_float_are_left_alone():
    model = prepared(every_operator())
    feeds = [{"x": normal(2, 4, 9, 8)}]
    placement = place(model, ["plain", "gemm"])
    found = correct_biases(model, placement, ranges(model, feeds), feeds)
    assert set(found.corrections) == set(OPERATORS) - {"plain", "gemm", "matmul"}
    np.testing.assert_array_equal(array(found.model, "plain", 2), array(model, "plain", 2))


def test_every_layer_is_right_on_average():
    """On the data used, with float inputs; and the float outputs that it is held against are the old ones."""
    model = prepared(every_operator())
    feeds = [{"x": 100 * normal(rows, 4, 9, 8, seed=rows)} for rows in (5, 2, 1)]
    placement, amax = place(model), ranges(model, feeds)
    found = correct_biases(model, placement, amax, feeds)
    assert set(found.corrections) == set(OPERATORS) - {"matmul"}
    assert place(found.model) == placement

    def mean_errors(other):
        segments = {
            segment.layer.name: segment for segment in cut(other, quantizer).segments if segment.layer
        }
        sums = {}
        for feed in feeds:
            for segment, layer, tensors in network.float_layers(feed):
                exact = segment.run_layer(Form.FLOAT, tensors).astype(np.float64)
                error = exact - segments[layer.name].run_layer(Form.INT8, tensors)
                sums.setdefault(layer.name, []).append(np.moveaxis(error, 1, -1).reshape(-1, error.shape[1]))
        return {name: np.concatenate(errors).mean(axis=0) for name, errors in sums.items()}

    quantizer = Quantizer.of(placement, amax)
    network = cut(model, quantizer)
    before, after = mean_errors(model), mean_errors(found.model)
    for name, correction in found.corrections.items():
        np.testing.assert_allclose(before[name], correction, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(after[name], 0, atol=min(1e-5, np.abs(correction).max() / 100))


def test_a_shared_bias_becomes_two():
    g = Shaped(quantized=False)
    bias = g.constant(np.float32([1.0]))
    left = g.op("Gemm", ["x", g.constant(np.float32([[1.0]])), bias], "left")
    right = g.op("Gemm", ["x", g.constant(np.float32([[3.0]])), bias], "right")
    found = corrected(prepared(g.model({"x": ["N", 1]}, g.op("Mul", [left, right], "both"))), [[[0.4]]])
    np.testing.assert_allclose(array(found.model, "left", 2), [1.4], rtol=1e-5)
    np.testing.assert_allclose(array(found.model, "right", 2), [2.2], rtol=1e-5)


def test_samples_of_which_a_layer_reads_nothing_do_not_count():
    model, some, none = prepared(picking()), np.abs(normal(8, 4)), -np.abs(normal(3, 4))
    placement = place(model)
    ranges = dict.fromkeys(placement.tensors, 1.0)
    alone, mixed, never = (
        correct_biases(model, placement, ranges, [{"x": part} for part in parts]).corrections
        for parts in ((some,), (some, none), (none,))
    )
    np.testing.assert_array_equal(mixed["second"], alone["second"])
    assert set(never) == {"first"}


def test_no_data():
    with pytest.raises(CalibrationDataError, match="no samples"):
        corrected(single("Gemm", [[2.0]], size=["N", 1]), [])


@pytest.fixture(scope="module")
def model():
    return prepare(load_model(DEMO_MODEL))


@pytest.fixture
def feeds(split):
    return [{"images": images} for images in np.array_split(split.calibration_images[:40], 3)]


def test_a_table_of_another_method_gets_the_ranges_of_auto(model, table, feeds):
    wild = table.with_method("minmax").override({"images": 3.0})
    names = place(model.graph_model).tensors
    chosen = choose_ranges_anew(model, wild, names, feeds)
    assert (chosen.method, chosen.amax["images"]) == ("auto", 3.0)
    assert set(chosen.choice.samples.values()) <= set(range(1, 41))
    assert chosen.histograms == wild.histograms
    assert any(chosen.amax[name] < wild.amax[name] for name in names)
    assert chosen.overridden == {"images"}


def test_ranges_of_auto_and_imported_ranges_stay(model, table, feeds):
    names = place(model.graph_model).tensors
    assert choose_ranges_anew(model, dataclasses.replace(table, method="auto"), names, feeds) is None
    imported = dataclasses.replace(table, method="minmax", histograms={})
    assert choose_ranges_anew(model, imported, names, feeds) is None
