"""Ranges of channels."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import parsed
from tests.trtint8.tuning.networks import normal, prepared
from trtint8.equalization.forms import observe

#: The channels of the layer of :func:`two_channels`.
LABELS = {"layer_out": np.array([[[1, 2]]])}


def two_channels():
    body = "[layer] layer_out = MatMul (x, w) relu_out = Relu (layer_out)"
    return prepared(parsed("float[N, T, 1] x", "float[] relu_out", body, w=np.float32([[1, -3]])))


def feed(*values):
    return {"x": np.float32(values).reshape(1, -1, 1)}


def divided(found):
    """The two halves of the samples, as each fold has them."""
    return [(fold.found_with, fold.tried_on) for fold in found.folds]


def test_peaks_powers_and_values_over_batches():
    labels = {"layer_out": np.array([[[1, 2]]]), "x": np.zeros((1, 1, 1), np.int64)}
    found = observe(two_channels(), labels, ["layer_out"], [feed(1, 2), feed(-5, 0)])
    np.testing.assert_array_equal(found.peaks["layer_out"], [[[5, 15]]])
    np.testing.assert_allclose(found.powers["layer_out"], [[[7.5, 67.5]]])
    np.testing.assert_array_equal(found.peaks["x"], [[[5]]])
    # Batches of one sample belong to one part and to the other in turn.
    (one, other), _ = divided(found)
    np.testing.assert_array_equal(one.values["layer_out"], [[1, -3], [2, -6]])
    np.testing.assert_array_equal(other.values["layer_out"], [[-5, 15], [0, 0]])
    np.testing.assert_array_equal(one.peaks["layer_out"], [[[2, 6]]])
    np.testing.assert_array_equal(other.peaks["layer_out"], [[[5, 15]]])
    assert list(one.values) == ["layer_out"]


def test_the_power_of_values_whose_squares_are_no_float32_numbers():
    found = observe(two_channels(), LABELS, [], [feed(1e25, -2e25)])
    np.testing.assert_allclose(found.powers["layer_out"], [[[2.5e50, 22.5e50]]], rtol=1e-6)


def test_every_other_sample_of_a_batch_is_in_a_part_of_its_own():
    batch = {"x": np.float32([1, 2, 3, 4, 5]).reshape(5, 1, 1)}
    found = observe(two_channels(), LABELS, ["layer_out"], [batch])
    (one, other), _ = divided(found)
    np.testing.assert_array_equal(one.values["layer_out"][:, 0], [1, 3, 5])
    np.testing.assert_array_equal(other.values["layer_out"][:, 0], [2, 4])
    np.testing.assert_array_equal(found.peaks["layer_out"], [[[5, 15]]])
    np.testing.assert_array_equal(other.peaks["layer_out"], [[[4, 12]]])
    np.testing.assert_allclose(found.powers["layer_out"], [[[11, 99]]])
    assert divided(found)[1] == (other, one)


def test_one_sample_is_in_both_parts():
    found = observe(two_channels(), LABELS, ["layer_out"], [feed(1, 2)])
    for part in divided(found)[0]:
        np.testing.assert_array_equal(part.values["layer_out"], [[1, -3], [2, -6]])
        np.testing.assert_array_equal(part.peaks["layer_out"], [[[2, 6]]])


def test_channels_along_the_first_axis_are_not_divided():
    labels = {"layer_out": np.arange(1, 5).reshape(2, 1, 2)}
    batches = [{"x": np.float32([a, b]).reshape(2, 1, 1)} for a, b in ((1, 2), (3, 4))]
    found = observe(two_channels(), labels, [], batches)
    np.testing.assert_array_equal(found.folds[0].found_with.peaks["layer_out"][:, 0, 0], [1, 2])
    np.testing.assert_array_equal(found.folds[0].tried_on.peaks["layer_out"][:, 0, 0], [3, 4])


def test_batches_whose_channels_lie_along_the_first_axis_are_joined_along_the_last():
    model = prepared(parsed("float[N, 2] x", "float[] layer_out", "layer_out = Transpose (x)"))
    batches = [{"x": np.arange(6, dtype=np.float32).reshape(3, 2) + 10 * number} for number in range(4)]
    found = observe(model, {"layer_out": np.array([[1], [2]])}, ["layer_out"], batches)
    one, other = divided(found)[0]
    np.testing.assert_array_equal(one.values["layer_out"], [[0, 2, 4, 20, 22, 24], [1, 3, 5, 21, 23, 25]])
    np.testing.assert_array_equal(
        other.values["layer_out"], [[10, 12, 14, 30, 32, 34], [11, 13, 15, 31, 33, 35]]
    )
    np.testing.assert_array_equal(found.peaks["layer_out"], [[34], [35]])


def test_the_model_is_not_changed_and_its_outputs_can_be_measured():
    model = two_channels()
    found = observe(model, {"relu_out": np.array([[[1, 2]]])}, [], [feed(2)])
    np.testing.assert_array_equal(found.peaks["relu_out"], [[[2, 0]]])
    assert [value.name for value in model.graph.outputs] == ["relu_out"]


def test_tensors_whose_shape_does_not_fit_their_labels_are_left_out():
    labels = {"layer_out": np.array([[[1], [2]]])}
    assert "layer_out" in observe(two_channels(), labels, [], [feed(1, 2)]).peaks
    found = observe(two_channels(), labels, ["layer_out"], [feed(1, 2), feed(1, 2, 3)])
    (one, other), _ = divided(found)
    assert dict(found.peaks) == dict(one.values) == dict(other.peaks) == {}


def test_values_are_kept_within_limits(monkeypatch):
    monkeypatch.setattr("trtint8.equalization.forms._MOST_VALUES", 8)
    one_by_one = observe(two_channels(), LABELS, ["layer_out"], [feed(one) for one in range(9)])
    np.testing.assert_array_equal(one_by_one.folds[0].found_with.values["layer_out"][:, 0], [0, 2, 4, 6])
    np.testing.assert_array_equal(one_by_one.folds[0].tried_on.values["layer_out"][:, 0], [1, 3, 5, 7])
    # Of a large batch rows are taken that are evenly spaced.
    at_once = observe(two_channels(), LABELS, ["layer_out"], [feed(*range(9))])
    np.testing.assert_array_equal(at_once.folds[0].found_with.values["layer_out"][:, 0], [0, 3, 6])


def test_of_images_whole_samples_are_kept_one_at_least(monkeypatch):
    monkeypatch.setattr("trtint8.equalization.forms._MOST_VALUES", 80)
    model = prepared(parsed("float[N, 2, 4, 4] x", "float[] relu_out", "relu_out = Relu (x)"))
    labels = {"relu_out": np.array([1, 2]).reshape(1, 2, 1, 1)}
    batch = {"x": normal(3, 2, 4, 4)}
    found = observe(model, labels, ["relu_out"], [batch] * 2).folds[0].found_with.values["relu_out"]
    assert found.shape == (2, 2, 4, 4)
    monkeypatch.setattr("trtint8.equalization.forms._MOST_VALUES", 5)
    found = observe(model, labels, ["relu_out"], [batch]).folds[0].found_with.values["relu_out"]
    assert found.shape == (1, 2, 4, 4)


def test_of_large_images_the_middle_is_kept(monkeypatch):
    model = prepared(parsed("float[N, 2, 4, 8] x", "float[] relu_out", "relu_out = Relu (x)"))
    labels = {"relu_out": np.array([1, 2]).reshape(1, 2, 1, 1)}
    batch = {"x": np.abs(normal(1, 2, 4, 8))}

    def kept(most):
        monkeypatch.setattr("trtint8.equalization.forms._MOST_OF_A_SAMPLE", most)
        found = observe(model, labels, ["relu_out"], [batch])
        np.testing.assert_array_equal(found.peaks["relu_out"].ravel(), batch["x"].max(axis=(0, 2, 3)))
        return found.folds[0].found_with.values["relu_out"]

    np.testing.assert_array_equal(kept(64), batch["x"])
    np.testing.assert_array_equal(kept(63), batch["x"][:, :, :, 2:6])
    np.testing.assert_array_equal(kept(31), batch["x"][:, :, 1:3, 2:6])
    np.testing.assert_array_equal(kept(1), batch["x"][:, :, 1:2, 3:4])  # every channel


def test_a_batch_that_fails_is_named():
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        observe(two_channels(), LABELS, [], [{"x": normal(1, 1, 2)}])
