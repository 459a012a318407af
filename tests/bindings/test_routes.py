"""Which route a build takes, with real calibrators."""

import numpy as np
import pytest

from calibrators.errors import UnsupportedError
from calibrators.tensorrt import EntropyCalibrator2
from calibrators.tensorrt.flavor import Flavor
from trtint8.builder.refusals import choose_route
from trtint8.calibration import model_inputs
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model

IMAGES = np.zeros((4, 1, 8, 8), np.float32)


@pytest.fixture
def flavor(trt):
    return Flavor("tensorrt", trt.__version__)


@pytest.fixture
def implicit(flavor):
    if not flavor.implicit_int8:
        pytest.skip("this TensorRT has no implicit route")
    return flavor


@pytest.fixture(scope="module")
def model():
    return load_model(DEMO_MODEL)


def test_sample_inputs_go_the_versions_own_way(flavor, model):
    older_than_10_1 = flavor.version.startswith("8.")
    assert choose_route("auto", IMAGES, flavor, model) == ("implicit" if older_than_10_1 else "explicit")


def test_a_calibrator_of_ours_decides(implicit, model):
    calibrator = EntropyCalibrator2(IMAGES, model_inputs(DEMO_MODEL))
    assert choose_route("auto", calibrator, implicit, model) == "implicit"
    with pytest.raises(UnsupportedError, match="a calibrator belongs to the implicit route"):
        choose_route("explicit", calibrator, implicit, model)


def test_so_does_anybodys(implicit, model, trt):
    class Plain(trt.IInt8MinMaxCalibrator):
        def get_batch(self, _names):
            return None

    assert choose_route("auto", Plain(), implicit, model) == "implicit"


def test_what_is_asked_for_is_done(implicit, model):
    assert choose_route("explicit", IMAGES, implicit, model) == "explicit"
    assert choose_route("implicit", IMAGES, implicit, model) == "implicit"


def test_or_refused_where_it_is_gone(flavor, model):
    if flavor.implicit_int8:
        pytest.skip("this TensorRT has an implicit route")
    with pytest.raises(UnsupportedError, match=r"TensorRT 11\..* has neither calibrators nor dynamic ranges"):
        choose_route("implicit", IMAGES, flavor, model)
