"""Tests of TensorRT's real bindings: tests/test_bindings.py starts them where those are installed."""

import os

import pytest

from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.flavor import Flavor
from tests.bindings.driven import ALGORITHMS, DATA, IMAGES
from tests.host_device import HostDevice

VERSION = os.environ.get("TRTINT8_BINDINGS")
collect_ignore_glob = [] if VERSION else ["test_*.py"]


@pytest.fixture
def trt():
    import tensorrt

    assert tensorrt.__version__.startswith(VERSION)
    return tensorrt


@pytest.fixture
def flavor(trt):
    found = Flavor("tensorrt", trt.__version__)
    if not found.implicit_int8:
        pytest.skip("this TensorRT has no calibrators")
    return found


@pytest.fixture(params=ALGORITHMS)
def kind(request):
    return request.param


@pytest.fixture
def device():
    return HostDevice()


@pytest.fixture
def make(flavor, device):
    from tests.bindings.calibrator_driver import CalibratorDriver

    def calibrator(kind="EntropyCalibrator2", data=DATA, inputs=(IMAGES,), **options):
        options = {"device": device, "progress": False, **options}
        made = calibrator_class(kind, flavor)(data, inputs, **options)
        return made, CalibratorDriver(made)

    return calibrator
