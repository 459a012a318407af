"""Biases after which quantized layers are right on average."""

import dataclasses

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from tests.trtint8.simulation.opened import opened
from tests.trtint8.tuning.networks import (
    OPERATORS,
    array,
    differences,
    every_operator,
    normal,
    picking,
    prepared,
)
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.placement import place
from trtint8.simulation.networks import Form, Quantizer
from trtint8.tuning.remedies.bias_correction import choose_ranges_anew, correct_biases


def ranges(model, feeds):
    data = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    return trtint8.calibrate(to_proto(model), data, method="minmax", progress=False).amax


def single(operator, weights, bias=None, size=("N", 1), attributes=""):
    """A layer of given weights, and of a bias where there is one."""
    parts = {"w": np.float32(weights)} | ({} if bias is None else {"b": np.float32(bias)})
    constants = ", ".join(
        f"float{list(part.shape)} {name} = {{{', '.join(map(str, part.ravel().tolist()))}}}"
        for name, part in parts.items()
    )
    text = f"layer = {operator} {attributes} ({', '.join(['x', *parts])}) where {constants}"
    return opened(f"float[{', '.join(map(str, size))}] x", text, "float[] layer").model


def corrected(model, feeds, amax=127.0):
    return correct_biases(model, place(model), {"x": amax}, [{"x": np.float32(feed)} for feed in feeds])


def test_by_hand():
    """Steps of one: 0.4 becomes 0, and 2.6 becomes 3, with weights that are on their grid."""
    model = single("Conv", [[[[1.0]]], [[[-2.0]]]], [0.5, 0.25], ["N", 1, 1, 2])
    found = corrected(model, [[[[[0.4, 2.6]]]], [[[[0.4, 0.4]]]]])
    mean = (0.4 - 0.4 + 0.4 + 0.4) / 4
    np.testing.assert_allclose(found.corrections["layer"], [mean, -2 * mean], rtol=1e-5)
    np.testing.assert_allclose(array(found.model, "layer", 2), [0.5 + mean, 0.25 - 2 * mean], rtol=1e-5)
    np.testing.assert_array_equal(array(model, "layer", 2), [0.5, 0.25])


def test_batches_count_by_their_samples():
    model = single("Gemm", [[1.0]])
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
    model = single("Gemm", [[2.0]], [3.0], attributes="<alpha = 0.5, beta = 4.0>")
    found = corrected(model, [[[0.4]]])
    np.testing.assert_allclose(found.corrections["layer"], [0.4], rtol=1e-5)
    np.testing.assert_allclose(array(found.model, "layer", 2), [3.1], rtol=1e-5)


def test_a_bias_for_every_row_stays_one():
    model = single("Gemm", [[2.0, 1.0]], [[1.0], [2.0]], [2, 1])
    found = corrected(model, [[[0.4], [0.4]]])
    np.testing.assert_allclose(array(found.model, "layer", 2), [[1.8, 1.4], [2.8, 2.4]], rtol=1e-5)


def test_what_has_no_place_for_a_bias_is_left_alone():
    for model in (single("MatMul", [[2.0]]), single("Gemm", [[2.0]], [1.0], attributes="<beta = 0.0>")):
        assert corrected(model, [[[0.4]]]).corrections == {}
    text = "layer = Gemm (x, w, bias) where float[1, 1] w"
    model = opened("float[N, 1] x, float[1] bias", text, "float[] layer").model
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

    before, after = (
        differences(model, other, Quantizer.of(placement, amax), feeds, Form.FLOAT, Form.INT8)
        for other in (model, found.model)
    )
    for name, correction in found.corrections.items():
        np.testing.assert_allclose(-before[name].mean(axis=0), correction, rtol=1e-3, atol=1e-6)
        least = min(1e-5, np.abs(correction).max() / 100)
        np.testing.assert_allclose(after[name].mean(axis=0), 0, atol=least)


def test_a_shared_bias_becomes_two():
    text = (
        "left = Gemm (x, one, bias) right = Gemm (x, three, bias) both = Mul (left, right) "
        "where float[1, 1] one = {1}, float[1, 1] three = {3}, float[1] bias = {1}"
    )
    found = corrected(opened("float[N, 1] x", text, "float[] both").model, [[[0.4]]])
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
        corrected(single("Gemm", [[2.0]]), [])


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
