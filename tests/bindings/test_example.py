"""The calibrator of examples/06_implicit_calibrator, called by the bindings as TensorRT calls it."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from calibrators.tensorrt.flavor import Flavor
from tests.bindings.calibrator_driver import CalibratorDriver
from tests.host_device import HostDevice, read

EXAMPLE = Path(__file__).parents[2] / "examples/06_implicit_calibrator/implicit_calibrator.py"


def test_the_examples_calibrator_feeds_tensorrt(trt, tmp_path):
    if not Flavor("tensorrt", trt.__version__).implicit_int8:
        pytest.skip("this TensorRT has no calibrators")
    images = np.random.default_rng(0).standard_normal((100, 1, 8, 8)).astype(np.float32)
    make = runpy.run_path(str(EXAMPLE))["make_calibrator"]
    calibrator = make(images, tmp_path / "digits.cache", device=HostDevice(), progress=False)
    calibrator.prepare()
    driver = CalibratorDriver(calibrator)

    seen = driver.calibrate(["images"], lambda addresses: read(addresses[0], np.float32, (50, 1, 8, 8)))
    assert np.array_equal(np.concatenate(seen), images)
    driver.write_cache(b"TRT-8601-EntropyCalibration2\nimages: 3c010204\n")
    calibrator.raise_failure()
    assert calibrator.batches == 2
    assert list(calibrator.table.amax) == ["images"]
    assert (tmp_path / "digits.cache").read_text().startswith("TRT-8601-EntropyCalibration2")
