"""Our four calibrators, called by the bindings as TensorRT calls them."""

import inspect
import threading

import numpy as np
import pytest

from calibrators.cuda import gpu_problem
from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError, GpuMemoryError, GpuUnavailableError
from calibrators.tensorrt.calibrator import ServedBuild
from calibrators.tensorrt.messages import collected, shared_logger
from tests.bindings.driven import ALGORITHMS, DATA, IMAGES, MORE, SCALES, cache_of, images
from tests.host_device import HostDevice, read

# What TensorRT is given.


def test_the_class_is_tensorrts_own(trt, make, kind):
    calibrator, driver = make(kind, batch_size=5)
    algorithm, member, base = ALGORITHMS[kind]
    assert isinstance(calibrator, getattr(trt, base))
    assert isinstance(calibrator, trt.IInt8Calibrator)
    shown = type(calibrator).__mro__[1]  # what a notebook shows of its parameters
    assert inspect.signature(type(calibrator)) == inspect.signature(shown)
    assert type(calibrator).__doc__ == shown.__doc__
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
    with pytest.warns(UserWarning, match=r"left out the last 4 samples, too few to fill a batch of 8"):
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
    with pytest.raises(CalibrationDataError, match="the last batch has 4 of 8 samples"):
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
    cancelled = []
    calibrator.bind(ServedBuild(cancelled=lambda: bool(cancelled)))
    assert driver.batch("images")[0]
    cancelled.append("Ctrl-C")
    assert not driver.batch("images")[0]
    assert not device.live
    with pytest.raises(KeyboardInterrupt):
        calibrator.raise_failure()


@pytest.mark.parametrize(("low", "high"), [(-128, 127), (-129, 0), (0, 127.5)])
def test_data_of_int8_inputs_must_be_in_range(make, low, high):
    data = np.linspace(low, high, 5 * 60, dtype=np.float32).reshape(5, 3, 4, 5)
    calibrator, driver = make(data=data, batch_size=5)
    calibrator.bind(ServedBuild(network_dtypes={"images": np.dtype(np.int8)}))
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
    calibrator.bind(ServedBuild(network_dtypes={"ids": np.dtype(np.int32)}))
    (batch,) = driver.calibrate(["ids"], lambda addresses: read(addresses[0], np.int32, (2, 4)))
    assert batch.tolist() == ids.tolist()
    calibrator.raise_failure()


def test_ids_that_the_network_cannot_hold(make):
    calibrator, driver = make(
        data={"ids": np.array([[1, 1 << 40]])}, inputs=(InputSpec("ids", np.dtype(np.int64), ("N", 2)),)
    )
    calibrator.bind(ServedBuild(network_dtypes={"ids": np.dtype(np.int32)}))
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
    calibrator.bind(ServedBuild(cancelled=iter([False, False, False, True]).__next__))
    assert driver.batch("images")[0]
    assert driver.batch("images") == (False, [None])
    assert not device.live
    with pytest.raises(KeyboardInterrupt):
        calibrator.raise_failure()
    hanging.set()
