"""What TensorRT no longer has is explained."""

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
