"""Reasons, each from data made to have it and from data that just has not."""

import numpy as np
import onnx_ir as ir
import pytest

from calibrators.histograms.histogram import Histogram
from trtint8.sensitivity.results import (
    channel_suspects,
    neighbour_suspects,
    quantile,
    range_suspects,
    weight_suspects,
)


def histogram_of(values):
    histogram = Histogram()
    histogram.observe(np.asarray(values, np.float32))
    return histogram


def kinds(suspects):
    return [suspect.kind for suspect in suspects]


def test_an_outlier_dominated_range():
    values = np.append(np.linspace(0.001, 1, 9999), 30.0)
    (found,) = range_suspects("x", 30.0, histogram_of(values))
    assert found.kind == "outliers"
    assert found.message == (
        "99.9 % of 'x' lies below 1, but its range reaches 30: nearly all values share 4 of 127 steps"
    )
    assert kinds(range_suspects("x", 7.9, histogram_of(values))) == []


def test_clipped_mass():
    histogram = histogram_of(np.linspace(0.001, 1, 10000))
    (found,) = range_suspects("x", 0.95, histogram)
    assert found.message == "4.6 % of 'x' lies beyond its range of 0.95 and is cut off"
    assert kinds(range_suspects("x", 0.995, histogram)) == []


@pytest.mark.parametrize(("amax", "found"), [(5.998, []), (5.977, []), (5.9, ["clipped"])])
def test_values_that_are_rounded_to_the_last_step_are_not_cut_off(amax, found):
    values = np.append(np.linspace(0.01, 5.5, 800), np.full(200, 6.0))  # of a Relu6
    assert kinds(range_suspects("x", amax, histogram_of(values))) == found


def test_a_tensor_that_was_never_activated():
    assert kinds(range_suspects("x", 1.0, histogram_of(np.zeros(9)))) == ["never-activated"]
    assert range_suspects("x", 1.0, None) == []


def test_weights_of_uneven_channels():
    weights = np.array([[1.0, -0.5], [0.0, 0.0], [0.009, 0.001]], np.float32)
    (uneven,) = weight_suspects("w", weights, None)
    assert uneven.message == "the channels of 'w' differ by 111x in range, and one scale serves them all"
    # A scale a channel copes with that.
    assert weight_suspects("w", weights, 0) == weight_suspects("w", weights, 1) == []


def test_a_channel_of_rounding_errors_is_not_uneven():
    weights = np.array([[1.0, 0.5], [1.2e-7, 0], [0.2, 0.1]], np.float32)
    assert kinds(weight_suspects("w", weights, None)) == []


def test_channels_of_zeros_or_infinities_are_no_finding():
    assert weight_suspects("w", np.zeros((3, 2), np.float32), None) == []
    assert channel_suspects("x", np.zeros(3)) == channel_suspects("x", np.array([0.0, 0.0, 1.0])) == []
    assert channel_suspects("x", np.array([np.inf, np.inf, np.inf])) == []
    assert channel_suspects("x", np.array([1.0, 1.0, np.inf])) == []


def test_uneven_channels_of_an_activation():
    channels = np.array([0.5, 0.5, 0.5, 8.1])
    (found,) = channel_suspects("x", channels)
    assert found.message.startswith(
        "one channel of 'x' reaches 8.1, the median one 0.5, and one scale serves"
    )
    assert channel_suspects("x", np.array([0.5, 0.5, 0.5, 7.9])) == []


@pytest.mark.parametrize(
    ("operator", "found"),
    [
        ("Softmax", ["delicate-neighbour"]),
        ("SimplifiedLayerNormalization", ["delicate-neighbour"]),
        ("Relu", []),
    ],
)
def test_the_operator_before(operator, found):
    node = ir.Node("", operator, [ir.Value(name="x")], name="before")
    node.outputs[0].name = "y"
    assert kinds(neighbour_suspects(node.outputs[0])) == found
    assert neighbour_suspects(ir.Value(name="x")) == []


def test_quantiles_leave_zeros_out():
    histogram = histogram_of([0.0] * 100 + [1.0] * 9 + [2.0])
    assert quantile(histogram, 0.9) == pytest.approx(1.0, rel=0.01)
    assert quantile(histogram, 1.0) == 2.0
    assert quantile(histogram_of([0.0]), 0.9) == 0.0
