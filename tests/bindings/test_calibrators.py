"""Our four calibrators, called by the bindings as TensorRT calls them."""

import hashlib
import json
import threading

import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError, GpuMemoryError, GpuUnavailableError, TableError
from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import collected, shared_logger
from tests.bindings.calibrator_driver import CalibratorDriver
from tests.host_device import HostDevice, read

ALGORITHMS = {
    "EntropyCalibrator2": ("EntropyCalibration2", "ENTROPY_CALIBRATION_2", "IInt8EntropyCalibrator2"),
    "EntropyCalibrator": ("EntropyCalibration", "ENTROPY_CALIBRATION", "IInt8EntropyCalibrator"),
    "MinMaxCalibrator": ("MinMaxCalibration", "MINMAX_CALIBRATION", "IInt8MinMaxCalibrator"),
    "LegacyCalibrator": ("LegacyCalibration", "LEGACY_CALIBRATION", "IInt8LegacyCalibrator"),
}
IMAGES = InputSpec("images", np.dtype(np.float32), ("N", 3, 4, 5))
SCALES = InputSpec("scales", np.dtype(np.float32), ("N", 2))
DATA = np.random.default_rng(0).standard_normal((20, 3, 4, 5)).astype(np.float32)
MORE = np.random.default_rng(1).standard_normal((20, 2)).astype(np.float32)


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
    def calibrator(kind="EntropyCalibrator2", data=DATA, inputs=(IMAGES,), **options):
        options = {"device": device, "progress": False, **options}
        made = calibrator_class(kind, flavor)(data, inputs, **options)
        return made, CalibratorDriver(made)

    return calibrator


def images(addresses, rows=5):
    return read(addresses[0], np.float32, (rows, 3, 4, 5))


def cache_of(kind, version="8601"):
    header = f"TRT-{version}-{ALGORITHMS[kind][0]}"
    if kind == "LegacyCalibrator":
        header = "0 3ff0000000000000 3fefff2e48e8a71e"
    return f"{header}\nimages: 3c010204\nlogits: 3d123456\n".encode()


# What TensorRT is given.


def test_the_class_is_tensorrts_own(trt, make, kind):
    calibrator, driver = make(kind, batch_size=5)
    algorithm, member, base = ALGORITHMS[kind]
    assert isinstance(calibrator, getattr(trt, base))
    assert isinstance(calibrator, trt.IInt8Calibrator)
    assert driver.algorithm() == int(getattr(trt.CalibrationAlgoType, member))
    assert calibrator.algorithm == algorithm
    assert calibrator.get_algorithm() == getattr(trt.CalibrationAlgoType, member)


def test_every_batch_arrives_bit_for_bit_and_then_the_data_ends(make, kind, device):
    calibrator, driver = make(kind, batch_size=5)
    assert driver.batch_size() == 5
    batches = driver.calibrate(["images"], images)
    assert np.array_equal(np.concatenate(batches), DATA)
    assert len(batches) == calibrator.batches == 4
    calibrator.raise_failure()
    assert not device.live


def test_a_batch_stays_while_the_next_one_is_uploaded(make, device):
    calibrator, driver = make(batch_size=5)
    _, first = driver.batch("images")
    calibrator._feeder._staged.result()  # the next batch is on the device now
    assert np.array_equal(images(first), DATA[:5])
    _, second = driver.batch("images")
    calibrator._feeder._staged.result()
    assert np.array_equal(images(second), DATA[5:10])
    assert first != second
    _, third = driver.batch("images")
    assert third == first
    assert len(device.live) == 4  # two batches, on the device and page-locked
    calibrator.close()
    assert not device.live


def test_inputs_are_bound_by_name(make):
    data = {"images": DATA, "scales": MORE}
    _, driver = make(data=data, inputs=(IMAGES, SCALES), batch_size=10)

    def both(addresses):
        return read(addresses[0], np.float32, (10, 2)), images(addresses[1:], 10)

    (scales, pictures), _ = driver.calibrate(["scales", "images"], both)
    assert np.array_equal(scales, MORE[:10])
    assert np.array_equal(pictures, DATA[:10])


def test_tensorrt_may_ask_for_some_inputs_only(make):
    data = {"images": DATA, "scales": MORE}
    _, driver = make(data=data, inputs=(IMAGES, SCALES), batch_size=20)
    assert np.array_equal(driver.calibrate(["images"], lambda a: images(a, 20))[0], DATA)


def test_generators_of_feed_dicts(make):
    calibrator, driver = make(data=({"images": DATA[i : i + 4]} for i in range(0, 20, 4)))
    assert driver.batch_size() == 4
    assert np.array_equal(np.concatenate(driver.calibrate(["images"], lambda a: images(a, 4))), DATA)
    calibrator.raise_failure()


def test_arrays_that_are_not_contiguous(make):
    turned = np.asfortranarray(DATA)
    _, driver = make(data=[{"images": turned[:10]}, {"images": turned[10:]}])
    assert np.array_equal(np.concatenate(driver.calibrate(["images"], lambda a: images(a, 10))), DATA)


def test_the_data_can_be_read_a_second_time(make):
    calibrator, driver = make(batch_size=10)
    for _ in range(2):
        assert len(driver.calibrate(["images"], lambda a: images(a, 10))) == 2
        calibrator.raise_failure()


def test_shapes_are_known_before(make):
    calibrator, driver = make(batch_size=7)
    assert calibrator.shapes() == {"images": (7, 3, 4, 5)}
    with pytest.warns(UserWarning, match="left out the last 6 samples"):
        assert len(driver.calibrate(["images"], lambda a: images(a, 7))) == 2


# A last batch that is not full.


def test_a_partial_last_batch_is_dropped_aloud(make):
    _, driver = make(batch_size=8)
    with pytest.warns(UserWarning, match=r"left out the last 4 samples: they do not fill a batch of 8"):
        batches = driver.calibrate(["images"], lambda a: images(a, 8))
    assert np.array_equal(np.concatenate(batches), DATA[:16])


def test_or_padded_with_its_own_samples(make):
    _, driver = make(batch_size=8, last_batch="pad")
    with pytest.warns(UserWarning, match=r"repeated the last 4 samples to fill a batch of 8"):
        batches = driver.calibrate(["images"], lambda a: images(a, 8))
    assert np.array_equal(batches[2], np.concatenate([DATA[16:], DATA[16:]]))


def test_or_refused(make):
    calibrator, driver = make(batch_size=8, last_batch="refuse")
    driver.calibrate(["images"], lambda a: images(a, 8))
    with pytest.raises(CalibrationDataError, match="the last batch has 4 samples and the others 8"):
        calibrator.raise_failure()


def test_fewer_batches_than_promised(make):
    calibrator, driver = make(data=[{"images": DATA[:5]}, {"images": DATA[5:10]}], num_batches=3)
    assert len(driver.calibrate(["images"], images)) == 2
    with pytest.raises(CalibrationDataError, match="the data ended after 2 of 3 batches"):
        calibrator.raise_failure()


def test_more_batches_than_asked_for_are_not_read(make):
    def feeds():
        yield {"images": DATA[:5]}
        yield {"images": DATA[5:10]}
        raise AssertionError("nobody asked for a third batch")

    calibrator, driver = make(data=feeds, num_batches=2)
    assert len(driver.calibrate(["images"], images)) == 2
    calibrator.raise_failure()


def test_no_batches(make):
    calibrator, driver = make(data=iter([]))
    assert driver.batch("images")[0] is False
    with pytest.raises(CalibrationDataError, match="the data gives no full batch"):
        calibrator.raise_failure()


# Failures: kept, and raised after the build.


@pytest.mark.parametrize("error", [ValueError("disk gone"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("good", [0, 2])
def test_what_the_source_raises_is_kept(make, tmp_path, device, kind, error, good):
    def feeds():
        for start in range(0, 5 * good, 5):
            yield {"images": DATA[start : start + 5]}
        raise error

    calibrator, driver = make(kind, data=feeds, cache=tmp_path / "model.cache")
    batches = driver.calibrate(["images"], images)
    assert len(batches) <= good
    driver.write_cache(cache_of(kind))
    assert list(tmp_path.iterdir()) == []
    assert not device.live
    build_error = RuntimeError("the builder's own")
    with pytest.raises(type(error)) as raised:
        calibrator.raise_failure(build_error)
    assert raised.value is error
    assert raised.value.__cause__ is build_error
    # Until it is prepared again, it has nothing more to give.
    assert driver.batch("images")[0] is False
    assert driver.read_cache() is None


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"images": DATA[:5].astype(np.float64)}, "takes float32 but its data is float64"),
        ({"images": DATA[:5, :2]}, r"batch 1 has 'images' 5x2x4x5 but the first one"),
        ({"pictures": DATA[:5]}, "unknown 'pictures'"),
        ({"images": np.full_like(DATA[:5], np.nan)}, "NaN or infinite"),
        ({"images": DATA[:10]}, r"batch 1 has 'images' 10x3x4x5 but the first one 'images' 5x3x4x5"),
    ],
)
def test_bad_batches_never_reach_tensorrt(make, second, message):
    calibrator, driver = make(data=[{"images": DATA[:5]}, second, {"images": DATA[5:10]}])
    assert len(driver.calibrate(["images"], images)) <= 1
    with pytest.raises(CalibrationDataError, match=message):
        calibrator.raise_failure()


def test_an_input_that_the_data_lacks(make):
    calibrator, driver = make(batch_size=5)
    assert driver.batch("images", "scales") == (False, [None, None])
    with pytest.raises(CalibrationDataError, match="TensorRT asks for the input 'scales', and the data has"):
        calibrator.raise_failure()


def test_a_full_gpu(make):
    small = HostDevice(room=3 * 5 * 60 * 4)  # both buffers of the first batch, one of the second
    calibrator, driver = make(batch_size=5, device=small)
    assert len(driver.calibrate(["images"], images)) <= 1
    with pytest.raises(GpuMemoryError):
        calibrator.raise_failure()
    assert not small.live


def test_cancelling_between_batches(make, device):
    calibrator, driver = make(batch_size=5)
    assert driver.batch("images")[0]
    calibrator.cancelled = lambda: True
    assert not driver.batch("images")[0]
    assert not device.live
    with pytest.raises(KeyboardInterrupt):
        calibrator.raise_failure()


@pytest.mark.parametrize(("low", "high"), [(-128, 127), (-129, 0), (0, 127.5)])
def test_data_of_int8_inputs_must_be_in_range(make, low, high):
    data = np.linspace(low, high, 5 * 60, dtype=np.float32).reshape(5, 3, 4, 5)
    calibrator, driver = make(data=data, batch_size=5)
    calibrator.network_dtypes = {"images": np.dtype(np.int8)}
    batches = driver.calibrate(["images"], images)
    if (low, high) == (-128, 127):
        assert len(batches) == 1
    else:
        assert batches == []
        with pytest.raises(CalibrationDataError, match=r"must be float32 within \[-128, 127\]"):
            calibrator.raise_failure()


def test_ids_arrive_as_the_network_reads_them(make):
    ids = np.array([[101, 102, 103, 104], [201, 202, 203, 204]], np.int64)
    calibrator, driver = make(data={"ids": ids}, inputs=(InputSpec("ids", np.dtype(np.int64), ("N", 4)),))
    calibrator.network_dtypes = {"ids": np.dtype(np.int32)}
    (batch,) = driver.calibrate(["ids"], lambda addresses: read(addresses[0], np.int32, (2, 4)))
    assert batch.tolist() == ids.tolist()
    calibrator.raise_failure()


def test_ids_that_the_network_cannot_hold(make):
    calibrator, driver = make(
        data={"ids": np.array([[1, 1 << 40]])}, inputs=(InputSpec("ids", np.dtype(np.int64), ("N", 2)),)
    )
    calibrator.network_dtypes = {"ids": np.dtype(np.int32)}
    assert driver.batch("ids") == (False, [None])
    with pytest.raises(CalibrationDataError, match="input 'ids' is int32 in TensorRT's network"):
        calibrator.raise_failure()


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_without_a_gpu(make):
    calibrator, driver = make(batch_size=5, device=0)
    assert not driver.batch("images")[0]
    with pytest.raises(GpuUnavailableError, match="needs an NVIDIA GPU"):
        calibrator.raise_failure()


def test_a_source_may_use_tensorrt_itself(make, trt):
    """While a build collects what TensorRT says, it loads an engine, before the first batch and later."""
    logs = []

    def feeds():
        for start in (0, 5):
            with collected(trt) as log:
                shared_logger(trt).log(trt.ILogger.Severity.WARNING, f"loading {start}")
            logs.append(log.warnings)
            yield {"images": DATA[start : start + 5]}

    with collected(trt) as build:
        calibrator, driver = make(data=feeds)
        calibrator.prepare()
        assert driver.batch_size() == 5
        assert len(driver.calibrate(["images"], images)) == 2
        shared_logger(trt).log(trt.ILogger.Severity.WARNING, "building")
    calibrator.raise_failure()
    assert logs == [["loading 0"], ["loading 5"]]
    assert build.warnings == ["building"]


def test_ctrl_c_ends_the_wait_for_a_source_that_hangs(make, device):
    hanging = threading.Event()

    def feeds():
        yield {"images": DATA[:5]}
        hanging.wait(60)

    calibrator, driver = make(data=feeds)
    assert driver.batch("images")[0]
    calibrator.cancelled = iter([False, False, True]).__next__
    assert driver.batch("images") == (False, [None])
    assert not device.live
    with pytest.raises(KeyboardInterrupt):
        calibrator.raise_failure()
    hanging.set()


# The cache.


def calibrated(make, tmp_path, kind="EntropyCalibrator2", **options):
    calibrator, driver = make(kind, batch_size=5, cache=tmp_path / "model.cache", **options)
    if driver.read_cache() is None:
        driver.calibrate(["images"], images)
        driver.write_cache(cache_of(kind))
    return calibrator, driver


def test_the_cache_is_written_as_it_came_and_read_again(make, tmp_path, kind):
    calibrator, _ = calibrated(make, tmp_path, kind)
    calibrator.raise_failure()
    assert (tmp_path / "model.cache").read_bytes() == cache_of(kind)
    assert calibrator.table.amax == pytest.approx({"images": 1.0, "logits": 127 * 0.03569444}, rel=1e-6)
    again, driver = make(kind, batch_size=5, cache=tmp_path / "model.cache")
    assert driver.read_cache() == cache_of(kind)
    assert again.table.amax == calibrator.table.amax
    assert again.batches == 0
    again.raise_failure()


def test_the_sidecar_says_what_it_was_made_from(make, tmp_path, trt):
    calibrated(make, tmp_path, model_fingerprint="abc")
    origin = json.loads((tmp_path / "model.cache.json").read_text())
    fingerprint = origin.pop("data")
    assert len(fingerprint) == 64
    cache = (tmp_path / "model.cache").read_bytes()
    assert origin == {
        "sha256": hashlib.sha256(cache).hexdigest(),
        "calibrator": "EntropyCalibration2",
        "tensorrt": trt.__version__,
        "model": "abc",
        "samples": 20,
        "batch_size": 5,
        "before_fusion": True,
        "settings": None,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": DATA[::-1][:15]}, "data .* instead of"),
        ({"batch_size": 4}, "batch size 5 instead of 4"),
        ({"model_fingerprint": "other"}, "model one instead of other"),
        ({"kind": "MinMaxCalibrator"}, "is of EntropyCalibration2, and TensorRT would ignore it for MinMax"),
    ],
)
def test_a_stale_cache_is_refused_or_made_again(make, tmp_path, change, message):
    calibrated(make, tmp_path, model_fingerprint="one")
    options = {"batch_size": 5, "model_fingerprint": "one", "cache": tmp_path / "model.cache", **change}
    refusing, driver = make(**options)
    with pytest.raises(TableError, match=message):
        refusing.prepare()
    assert driver.read_cache() is None  # without prepare(), TensorRT's own question finds it
    assert not driver.batch("images")[0]
    with pytest.raises(TableError, match=message):
        refusing.raise_failure()
    making, driver = make(**options, stale="recalibrate")
    with pytest.warns(UserWarning, match=message):
        assert driver.read_cache() is None
    rows = options["batch_size"]
    assert driver.calibrate(["images"], lambda a: images(a, rows))
    driver.write_cache(cache_of(options.get("kind", "EntropyCalibrator2")))
    making.raise_failure()
    _, driver = make(**options)
    assert driver.read_cache() is not None


def test_the_order_of_the_samples_does_not_make_a_cache_stale(make, tmp_path):
    calibrated(make, tmp_path)
    _, driver = make(data=DATA[::-1], batch_size=5, cache=tmp_path / "model.cache")
    assert driver.read_cache() is not None


def test_a_cache_without_a_sidecar_is_not_trusted(make, tmp_path):
    (tmp_path / "model.cache").write_bytes(cache_of("EntropyCalibrator2"))
    calibrator, _ = make(batch_size=5, cache=tmp_path / "model.cache")
    with pytest.raises(TableError, match=r"has no sidecar 'model.cache.json'"):
        calibrator.prepare()


def test_a_cache_alone(make, tmp_path):
    calibrated(make, tmp_path)
    calibrator, driver = make(data=None, inputs=(), cache=tmp_path / "model.cache")
    assert calibrator.shapes() is None
    assert driver.read_cache() == cache_of("EntropyCalibrator2")
    assert not driver.batch("images")[0]  # as when TensorRT does not like the cache
    with pytest.raises(CalibrationDataError, match="asks for data, but there is none"):
        calibrator.raise_failure()


def test_neither_data_nor_a_cache(make, tmp_path):
    with pytest.raises(CalibrationDataError, match="nothing to calibrate with"):
        make(data=None, cache=tmp_path / "missing.cache")


def test_a_generator_checked_against_its_cache_can_still_be_used(make, tmp_path):
    calibrated(make, tmp_path)
    calibrator, driver = make(
        data=({"images": DATA[i : i + 5]} for i in range(0, 20, 5)), cache=tmp_path / "model.cache"
    )
    assert driver.read_cache() is not None
    assert calibrator.shapes() == {"images": (5, 3, 4, 5)}


def test_garbage_from_tensorrt_is_not_kept(make, tmp_path):
    calibrator, driver = make(batch_size=5, cache=tmp_path / "model.cache")
    driver.calibrate(["images"], images)
    driver.write_cache(b"no cache")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TableError, match="is not a calibration cache"):
        calibrator.raise_failure()


def test_tensors_that_were_always_zero(make, tmp_path):
    calibrator, driver = make(batch_size=5, cache=tmp_path / "model.cache")
    driver.calibrate(["images"], images)
    with pytest.warns(UserWarning, match="1 tensors were zero in all batches, 'dead' among them"):
        driver.write_cache(b"TRT-8601-EntropyCalibration2\nimages: 3c010204\ndead: 0\n")
    calibrator.raise_failure()
    assert calibrator.table.amax["dead"] == 0


# The legacy calibrator.


def test_quantile_and_cutoff_reach_tensorrt(make):
    _, driver = make("LegacyCalibrator", quantile=0.25, regression_cutoff=0.75)
    assert (driver.quantile(), driver.regression_cutoff()) == (0.25, 0.75)


def test_a_cache_of_another_quantile_is_stale(make, tmp_path):
    options = {"batch_size": 5, "cache": tmp_path / "model.cache"}
    calibrator, driver = make("LegacyCalibrator", **options)
    driver.calibrate(["images"], images)
    driver.write_cache(cache_of("LegacyCalibrator"))
    calibrator.raise_failure()
    _, again = make("LegacyCalibrator", **options)
    assert again.read_cache() == cache_of("LegacyCalibrator")
    other, _ = make("LegacyCalibrator", quantile=0.5, **options)
    with pytest.raises(TableError, match=r"stale: settings 0\.9999 and 1 instead of 0\.5 and 1;"):
        other.prepare()


@pytest.mark.parametrize("options", [{"quantile": 0}, {"quantile": 1.5}, {"regression_cutoff": -0.1}])
def test_their_bounds(make, options):
    with pytest.raises(CalibrationDataError, match=f"{next(iter(options))} is"):
        make("LegacyCalibrator", **options)
