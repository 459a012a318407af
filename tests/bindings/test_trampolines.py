"""What the bindings do with a calibrator: the facts that our own is built on."""

import pytest

from tests.bindings.calibrator_driver import CalibratorDriver
from trtint8.flavor import Flavor


@pytest.fixture
def driver(trt):
    if not Flavor("tensorrt", trt.__version__).implicit_int8:
        pytest.skip("this TensorRT has no calibrators")

    def make(**members):
        members = {"get_batch_size": lambda _self: 4, **members}
        return CalibratorDriver(type("Plain", (trt.IInt8EntropyCalibrator2,), members)())

    return make


def test_calibrators_exist_where_the_flavor_says(trt):
    present = "IInt8Calibrator" in dir(trt)
    assert present == Flavor("tensorrt", trt.__version__).implicit_int8


def test_addresses_arrive_in_order(driver):
    plain = driver(get_batch=lambda _self, names: [16 * len(name) for name in names])
    assert plain.batch("a", "bbb", "cc") == (True, [16, 48, 32])
    assert plain.batch_size() == 4


@pytest.mark.parametrize("end", [None, []])
def test_nothing_ends_the_data(driver, end):
    more, _ = driver(get_batch=lambda _self, _names: end).batch("a")
    assert not more


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_exceptions_are_swallowed_and_end_the_data(driver, error):
    def fail(_self, _names):
        raise error("lost")

    more, _ = driver(get_batch=fail).batch("a")
    assert not more


def test_the_cache_is_a_view_that_changes(driver):
    kept = []
    plain = driver(get_batch=lambda *_: None, write_calibration_cache=lambda _self, view: kept.append(view))
    plain.write_cache(b"TRT-8601")
    assert bytes(kept[0]) != b"TRT-8601"
