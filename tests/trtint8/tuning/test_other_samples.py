"""What equalization gains on samples that it was not made with."""

import numpy as np
import pytest

import trtint8
from tests.trtint8.tuning.networks import normal, uneven
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.tuning.candidates import Candidate
from trtint8.tuning.other_samples import gain_on_others


@pytest.fixture(scope="module")
def start():
    model = uneven()
    table = trtint8.calibrate(model, normal(32, 3, 6, 6), method="minmax", tensors="placed", progress=False)
    return Candidate(prepare(load_model(model)), table)


def calibrated(model, samples):
    data = {"x": np.concatenate([feed["x"] for feed in samples])}
    proto = to_proto(model.graph_model)
    return trtint8.calibrate(proto, data, method="minmax", tensors="placed", progress=False)


def test_channels_that_differ_a_thousandfold(start):
    samples = [{"x": image[None]} for image in normal(13, 3, 6, 6, seed=5)]
    seen = []

    def calibrate(model, some):
        seen.append([float(feed["x"].sum()) for feed in some])
        return calibrated(model, some)

    assert gain_on_others(start, samples, calibrate) > 10
    assert seen == [[float(feed["x"].sum()) for feed in samples[::2]]] * 2


def test_ranges_that_others_exceed_show_as_a_loss(start):
    samples = [{"x": image[None]} for image in normal(12, 3, 6, 6, seed=5)]

    def calibrate(model, some):
        table = calibrated(model, some)
        if model.fingerprint == start.model.fingerprint:
            return table
        return table.override({name: value / 100 for name, value in table.amax.items()})

    assert gain_on_others(start, samples, calibrate) < 0
