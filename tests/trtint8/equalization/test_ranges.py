"""Ranges of channels."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.equalization.ranges import observe


def two_channels():
    g = Shaped(quantized=False)
    x = g.op("MatMul", ["x", g.constant(np.float32([[1, -3]]))], "layer")
    return prepared(g.model({"x": ["N", "T", 1]}, g.op("Relu", [x], "relu")))


def feed(*values):
    return {"x": np.float32(values).reshape(1, -1, 1)}


def test_peaks_powers_and_values_over_batches():
    labels = {"layer_out": np.array([[[1, 2]]]), "x": np.zeros((1, 1, 1), np.int64)}
    found = observe(two_channels(), labels, ["layer_out"], [feed(1, 2), feed(-5, 0)])
    np.testing.assert_array_equal(found.peaks["layer_out"], [[[5, 15]]])
    np.testing.assert_allclose(found.powers["layer_out"], [[[7.5, 67.5]]])
    np.testing.assert_array_equal(found.peaks["x"], [[[5]]])
    np.testing.assert_array_equal(found.values["layer_out"], [[1, -3], [2, -6], [-5, 15], [0, 0]])
    assert list(found.values) == ["layer_out"]


def test_the_model_is_not_changed_and_its_outputs_can_be_measured():
    model = two_channels()
    found = observe(model, {"relu_out": np.array([[[1, 2]]])}, [], [feed(2)])
    np.testing.assert_array_equal(found.peaks["relu_out"], [[[2, 0]]])
    assert [value.name for value in model.graph.outputs] == ["relu_out"]


def test_tensors_whose_shape_does_not_fit_their_labels_are_left_out():
    labels = {"layer_out": np.array([[[1], [2]]])}
    assert "layer_out" in observe(two_channels(), labels, [], [feed(1, 2)]).peaks
    found = observe(two_channels(), labels, ["layer_out"], [feed(1, 2), feed(1, 2, 3)])
    assert dict(found.peaks) == dict(found.values) == {}


def test_values_are_kept_within_limits(monkeypatch):
    monkeypatch.setattr("trtint8.equalization.ranges._MOST_VALUES", 8)
    labels = {"layer_out": np.array([[[1, 2]]])}
    one_by_one = observe(two_channels(), labels, ["layer_out"], [feed(one) for one in range(9)])
    np.testing.assert_array_equal(one_by_one.values["layer_out"][:, 0], [0, 1, 2, 3])
    # Of a large batch rows are taken that are evenly spaced.
    at_once = observe(two_channels(), labels, ["layer_out"], [feed(*range(9))])
    np.testing.assert_array_equal(at_once.values["layer_out"][:, 0], [0, 3, 6])


def test_of_images_whole_samples_are_kept_one_at_least(monkeypatch):
    monkeypatch.setattr("trtint8.equalization.ranges._MOST_VALUES", 80)
    g = Shaped(quantized=False)
    model = prepared(g.model({"x": ["N", 2, 4, 4]}, g.op("Relu", ["x"], "relu")))
    labels = {"relu_out": np.array([1, 2]).reshape(1, 2, 1, 1)}
    batch = {"x": normal(3, 2, 4, 4)}
    assert observe(model, labels, ["relu_out"], [batch] * 2).values["relu_out"].shape == (2, 2, 4, 4)
    monkeypatch.setattr("trtint8.equalization.ranges._MOST_VALUES", 5)
    assert observe(model, labels, ["relu_out"], [batch]).values["relu_out"].shape == (1, 2, 4, 4)


def test_a_batch_that_fails_is_named():
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        observe(two_channels(), {"layer_out": np.array([[[1, 2]]])}, [], [{"x": normal(1, 1, 2)}])
