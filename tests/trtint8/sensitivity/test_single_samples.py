"""Networks that may be run sample by sample, and others."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.sensitivity.single_samples import may_run_one_by_one

X = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)


def integers(g, *values):
    return g.constant(np.array(values, np.int64))


def turned(g):
    return g.op("Transpose", ["x"], "turned", perm=[2, 0, 1])


def flat(g):
    return g.op("Reshape", ["x", integers(g, -1, 4)], "flat")


def mean_of_samples(g):
    return g.op("ReduceMean", ["x"], "mean", axes=[0])


def less_their_mean(g):
    return g.op("Sub", ["x", mean_of_samples(g)], "less")


def how_many(g):
    return g.op("Cast", [g.op("Shape", ["x"], "shape")], "numbers", to=1)


@pytest.mark.parametrize(
    ("end", "shape", "wanted"),
    [
        (turned, ["N", 2, 4], True),
        (flat, ["N", 2, 4], True),
        (flat, [3, 2, 4], False),
        (mean_of_samples, ["N", 2, 4], False),
        (less_their_mean, ["N", 2, 4], False),
        (how_many, ["N", 2, 4], False),
    ],
)
def test_where_the_outputs_are_those_of_single_samples(end, shape, wanted):
    g = Shaped(quantized=False)
    model = prepare(load_model(g.model({"x": shape}, end(g)))).graph_model
    assert may_run_one_by_one(model, {"x": X}, threads=1) is wanted


def test_a_network_that_takes_no_single_sample():
    g = Shaped(quantized=False)
    pairs = g.op("Reshape", ["x", integers(g, -1, 2, 2, 4)], "pairs")
    model = prepare(load_model(g.model({"x": ["N", 2, 4]}, pairs))).graph_model
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        may_run_one_by_one(model, {"x": X}, threads=1)
