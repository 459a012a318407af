import numpy as np
import pytest

from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped
from trtint8 import calibrate
from trtint8.data import DEMO_MODEL
from trtint8.interop.migration import plan_migration
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    images = np.random.default_rng(0).random((32, 1, 8, 8), np.float32)
    path = tmp_path_factory.mktemp("cache") / "model.cache"
    return calibrate(DEMO_MODEL, images, progress=False).save(path)


@pytest.fixture(scope="module")
def placement():
    return place(prepare(load_model(DEMO_MODEL)).graph_model)


def test_a_whole_cache_needs_nothing(cache, placement):
    plan = plan_migration(placement, CalibrationTable.load(cache).amax)
    assert (plan.missing, plan.unused, plan.proposals, plan.unsolved) == ((), (), (), ())


def test_tensors_that_the_graph_lacks_are_listed(cache, placement):
    amax = {**CalibrationTable.load(cache).amax, "(Unnamed Layer* 3) [Shuffle]_output": 1.0}
    assert plan_migration(placement, amax).unused == ("(Unnamed Layer* 3) [Shuffle]_output",)


def test_a_missing_relu_follows_from_its_convolution(cache, placement):
    amax = dict(CalibrationTable.load(cache).amax)
    del amax["/block1/relu1/Relu_output_0"]
    plan = plan_migration(placement, amax)
    (proposal,) = plan.proposals
    assert plan.missing == ("/block1/relu1/Relu_output_0",)
    assert proposal.source == "/block1/bn1/BatchNormalization_output_0"
    assert proposal.amax == amax[proposal.source]
    assert proposal.reason == "fused with it"


def test_what_follows_from_nothing_is_unsolved(cache, placement):
    amax = {name: value for name, value in CalibrationTable.load(cache).amax.items() if name != "images"}
    plan = plan_migration(placement, amax)
    assert plan.unsolved == plan.missing == ("images",)


def test_scales_that_a_concatenation_makes_equal_are_told():
    g = Shaped()
    left = g.op("Relu", [g.op("Conv", ["x", g.weights(4, 4, 1, 1)], "a")], "left")
    joined = g.op("Concat", [left, "x"], "joined", axis=1)
    model = g.model({"x": ["N", 4, 8, 8]}, g.op("Conv", [joined, g.weights(4, 8, 1, 1)], "b"))
    found = place(prepare(load_model(model)).graph_model)
    plan = plan_migration(found, {"x": 1.0, left: 4.0, joined: 4.0})
    assert plan.widened == {"x": 4.0}
    rounded = plan_migration(found, {"x": 4.0 * (1 - 2**-23), left: 4.0, joined: 4.0})
    assert rounded.widened == {}
