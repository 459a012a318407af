"""Which of the two ways to INT8 a build takes; tests/bindings has it with TensorRT's own calibrators."""

import numpy as np
import pytest

from calibrators.errors import UnsupportedError
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.flavor import Flavor
from tests.host_device import HostDevice
from tests.trtint8.onnx_models import Shaped
from trtint8.builder import refusals
from trtint8.builder.config import BuildOptions
from trtint8.builder.refusals import choose_route, quantization_target
from trtint8.calibration import model_inputs
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model

IMAGES = np.zeros((4, 1, 8, 8), np.float32)
OLD, LATER, NEW = (Flavor("tensorrt", version) for version in ("8.6.1", "10.3.0", "11.4.0"))
RTX = Flavor("rtx", "1.7.1")


@pytest.fixture(scope="module")
def model():
    return load_model(DEMO_MODEL)


@pytest.fixture(scope="module")
def quantized():
    g = Shaped()
    return load_model(g.model({"x": ["N", 8]}, g.MatMul("m", g.qdq("x"), g.qdq(g.weights(8, 4), 1, 4))))


@pytest.fixture
def calibrator():
    return Calibrator(IMAGES, model_inputs(DEMO_MODEL), device=HostDevice())


@pytest.fixture(autouse=True)
def no_bindings(monkeypatch):
    """No TensorRT is asked whether something is a calibrator of its own."""
    monkeypatch.setattr(refusals, "is_calibrator", lambda found, _flavor: isinstance(found, Calibrator))


@pytest.mark.parametrize(
    ("flavor", "route"), [(OLD, "implicit"), (LATER, "explicit"), (NEW, "explicit"), (RTX, "explicit")]
)
def test_sample_inputs_go_the_versions_own_way(flavor, route, model):
    assert choose_route("auto", IMAGES, flavor, model) == route


def test_a_calibrator_decides(calibrator, model):
    for flavor in (OLD, LATER):
        assert choose_route("auto", calibrator, flavor, model) == "implicit"
        assert choose_route("implicit", calibrator, flavor, model) == "implicit"
    with pytest.raises(UnsupportedError, match="a calibrator belongs to the implicit route"):
        choose_route("explicit", calibrator, OLD, model)


def test_what_is_asked_for_is_done_where_it_is_there(model):
    for route in ("explicit", "implicit"):
        assert choose_route(route, IMAGES, OLD, model) == route
    for flavor in (NEW, RTX):
        with pytest.raises(UnsupportedError, match=r"has neither calibrators nor dynamic ranges, which Tens"):
            choose_route("implicit", IMAGES, flavor, model)


def test_pairs_in_the_model_are_explicit(calibrator, quantized):
    assert choose_route("auto", None, OLD, quantized) == "explicit"
    for route, calibration in (("implicit", None), ("auto", calibrator)):
        with pytest.raises(UnsupportedError, match="holds Q/DQ pairs, so its INT8 is explicit; leave route"):
            choose_route(route, calibration, OLD, quantized)


@pytest.mark.parametrize(
    ("flavor", "target"), [(OLD, "tensorrt-8.6"), (LATER, "tensorrt-10"), (NEW, "tensorrt-11"), (RTX, "rtx")]
)
def test_pairs_are_placed_for_the_tensorrt_that_builds(flavor, target):
    assert quantization_target(flavor, BuildOptions()).name == target
    assert quantization_target(flavor, BuildOptions(dla_core=0)).name == "dla"
