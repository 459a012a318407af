"""What the bindings do with a calibrator: the facts that our own is built on."""

import pytest

from calibrators.tensorrt.flavor import Flavor
from tests.bindings.calibrator_driver import CalibratorDriver


@pytest.fixture
def driver(trt):
    if not Flavor("tensorrt", trt.__version__).implicit_int8:
        pytest.skip("this TensorRT has no calibrators")

    def make(base="IInt8EntropyCalibrator2", **members):
        members = {"get_batch_size": lambda _self: 4, **members}
        return CalibratorDriver(type("Plain", (getattr(trt, base),), members)())

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
    assert isinstance(kept[0], memoryview)
    assert kept[0].readonly
    assert bytes(kept[0]) == b"\xff" * 8


def test_a_copy_of_the_cache_stays(driver):
    kept = []
    plain = driver(write_calibration_cache=lambda _self, view: kept.append(bytes(view)))
    plain.write_cache(b"TRT-8601")
    assert kept == [b"TRT-8601"]


@pytest.mark.parametrize(
    ("given", "seen"), [(None, None), (b"TRT", b"TRT"), (bytearray(b"TRT"), b"TRT"), ("TRT", None)]
)
def test_the_cache_to_read_is_none_or_a_buffer(driver, given, seen):
    assert driver(read_calibration_cache=lambda _self: given).read_cache() == seen


def test_an_exception_counts_as_no_cache(driver):
    def fail(_self):
        raise OSError("lost")

    assert driver(read_calibration_cache=fail).read_cache() is None


@pytest.mark.parametrize(
    ("base", "algorithm"),
    [
        ("IInt8EntropyCalibrator2", "ENTROPY_CALIBRATION_2"),
        ("IInt8EntropyCalibrator", "ENTROPY_CALIBRATION"),
        ("IInt8MinMaxCalibrator", "MINMAX_CALIBRATION"),
        ("IInt8LegacyCalibrator", "LEGACY_CALIBRATION"),
    ],
)
def test_the_base_fixes_the_algorithm(driver, trt, base, algorithm):
    plain = driver(base, get_batch=lambda _self, names: [64] * len(names))
    assert plain.algorithm() == int(getattr(trt.CalibrationAlgoType, algorithm))
    assert plain.batch("a", "b") == (True, [64, 64])


def test_legacy_calls_methods(driver):
    methods = {"get_quantile": lambda _self: 0.25, "get_regression_cutoff": lambda _self: 0.75}
    legacy = driver("IInt8LegacyCalibrator", **methods)
    assert (legacy.quantile(), legacy.regression_cutoff()) == (0.25, 0.75)


def test_and_ignores_the_properties_that_are_documented(driver):
    properties = {"quantile": property(lambda _self: 0.25), "regression_cutoff": property(lambda _self: 0.75)}
    legacy = driver("IInt8LegacyCalibrator", **properties)
    assert (legacy.quantile(), legacy.regression_cutoff()) == (0.0, 0.0)
