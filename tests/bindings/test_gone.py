"""What TensorRT no longer has is explained, and what trtint8 sets is there."""

import pytest

from calibrators.errors import UnsupportedError
from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.flavor import Flavor


def test_calibrators_that_are_gone_say_what_to_do(trt):
    flavor = Flavor("tensorrt", trt.__version__)
    if flavor.implicit_int8:
        pytest.skip("this TensorRT has calibrators")
    with pytest.raises(UnsupportedError, match=r"TensorRT 11\..* has no calibrators.*trtint8\.calibrate"):
        calibrator_class("EntropyCalibrator2", flavor)


def test_a_runtime_can_be_allowed_to_run_what_a_plan_contains(trt):
    """What version-compatible plans need, under the name by which engines are loaded and inspected."""
    assert isinstance(trt.Runtime.engine_host_code_allowed, property)
