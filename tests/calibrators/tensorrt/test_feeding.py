"""Batches brought to a GPU that is host memory."""

import itertools
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, GpuMemoryError
from calibrators.tensorrt.feeding import CalibrationPass, Feeder, uniform
from tests.host_device import HostDevice, read
from tests.trtint8.onnx_models import normal

DATA = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


def feeds():
    return iter([{"x": batch, "n": np.int64([index])} for index, batch in enumerate(DATA)])


def test_every_batch_arrives_and_then_the_data_ends():
    device = HostDevice()
    feeder = Feeder(feeds(), device)
    seen = []
    while (pointers := feeder.next()) is not None:
        seen.append(read(pointers["x"], np.float32, (2, 3)))
        assert read(pointers["n"], np.int64, (1,)) == [feeder.batches - 1]
    assert_array_equal(seen, DATA)
    assert feeder.batches == 4
    feeder.close()
    feeder.close()
    assert not device.live


def test_a_batch_stays_while_the_next_one_is_uploaded():
    device = HostDevice()
    feeder = Feeder(feeds(), device)
    first = feeder.next()
    feeder._staged.result()  # the second batch is on the device now
    assert_array_equal(read(first["x"], np.float32, (2, 3)), DATA[0])
    second, third = feeder.next(), feeder.next()
    assert second["x"] != first["x"] == third["x"]
    feeder.close()


def test_what_the_source_raises_comes_in_its_turn():
    def broken():
        yield {"x": DATA[0]}
        raise ConnectionError("the disk is gone")

    feeder = Feeder(broken(), HostDevice())
    assert feeder.next() is not None
    with pytest.raises(ConnectionError, match="the disk is gone"):
        feeder.next()
    feeder.close()


def test_a_full_gpu_leaves_nothing_behind():
    device = HostDevice(room=40)  # bytes: not enough for the batch in both places
    feeder = Feeder(iter([{"x": DATA[0]}]), device)
    with pytest.raises(GpuMemoryError):
        feeder.next()
    feeder.close()
    assert not device.live


def test_a_source_that_hangs_can_be_cancelled():
    hanging = threading.Event()
    device = HostDevice()

    def source():
        yield {"x": DATA[0]}
        hanging.wait(60)
        yield {"x": DATA[1]}

    feeder = Feeder(source(), device)
    assert feeder.next() is not None
    answers = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        feeder.next(lambda: next(answers))
    feeder.close()
    assert not device.live
    hanging.set()  # what comes too late is not uploaded
    feeder._worker.join(30)
    assert not feeder._worker.is_alive()
    assert not device.live


def test_ctrl_c_does_not_wait_for_a_source_that_hangs(monkeypatch):
    waiting = threading.Event()

    def hanging():
        yield {"x": DATA[0]}
        waiting.wait()

    device = HostDevice()
    feeder = Feeder(hanging(), device)
    assert feeder.next() is not None

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        feeder.next()
    feeder.close()
    assert not device.live
    waiting.set()


INPUTS = (InputSpec("x", np.dtype(np.float32), ("n", 3)),)
CALIBRATION_PASS_DATA = normal(10, 3)


def passed(data=CALIBRATION_PASS_DATA, batch_size=4, **options):
    options = {"last_batch": "drop", "num_batches": None, **options}
    return CalibrationPass(open_batches(data, INPUTS, batch_size=batch_size), INPUTS, **options)


def test_shapes_are_known_before_and_figures_after():
    found = passed(CALIBRATION_PASS_DATA[:8])
    assert (found.shapes, found.batch_size) == ({"x": (4, 3)}, 4)
    assert_array_equal(np.concatenate([feed["x"] for feed in found]), CALIBRATION_PASS_DATA[:8])
    assert found.samples == 8
    assert found.finish() == []


@pytest.mark.parametrize(("last_batch", "samples"), [("drop", 8), ("pad", 12)])
def test_a_last_batch_that_is_not_full(last_batch, samples):
    with pytest.warns(UserWarning, match="last"):
        found = passed(last_batch=last_batch)
        assert [len(feed["x"]) for feed in found] == [4] * (samples // 4)
    assert found.samples == samples


def test_the_same_samples_have_the_same_fingerprint_whatever_the_batches():
    fingerprints = set()
    for size in (1, 5, 10):
        found = passed(batch_size=size)
        assert sum(len(feed["x"]) for feed in found) == 10
        fingerprints.add(found.fingerprint)
    assert len(fingerprints) == 1


def test_fewer_batches_than_promised_and_more_than_asked_for():
    found = passed(CALIBRATION_PASS_DATA[:8], num_batches=3)
    assert len(list(found)) == 2
    with pytest.raises(CalibrationDataError, match="the data ended after 2 of 3 batches; give more samples"):
        found.finish()
    found = passed(CALIBRATION_PASS_DATA[:8], num_batches=1)
    assert len(list(found)) == 1
    assert found.samples == 4 and found.finish() == []


def test_no_full_batch():
    with pytest.raises(CalibrationDataError, match="the data gives no full batch; give more samples"):
        passed(lambda: iter(()), batch_size=None)


def test_a_sample_without_meaning_is_named_by_its_place_in_the_data():
    bad = CALIBRATION_PASS_DATA.copy()
    bad[7, 1] = np.nan
    batches = open_batches(bad, INPUTS, batch_size=5, shuffle=True, seed=2)
    with pytest.raises(CalibrationDataError, match="the first in sample 7;"):
        list(CalibrationPass(batches, INPUTS, last_batch="drop", num_batches=None))


def test_what_looks_odd_is_said_at_the_end():
    found = passed(np.full((8, 3), 2.5, np.float32))
    assert len(list(found)) == 2
    (finding,) = found.finish()
    assert finding.startswith("input 'x' is 2.5 in all 8 samples")


def last_batch_feeds(*sizes):
    start = np.cumsum([0, *sizes])
    return [{"x": np.arange(a, b, dtype=np.float32).reshape(-1, 1)} for a, b in itertools.pairwise(start)]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 5), st.sampled_from(["drop", "pad"]))
def test_batches_have_one_shape_and_samples_keep_their_order(size, full, rest, last_batch):
    rest = min(rest, size - 1)
    given_feeds = last_batch_feeds(*[size] * (full + 1), *([rest] if rest else []))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = list(uniform(given_feeds, last_batch))
    assert len(caught) == bool(rest)
    padded = rest and last_batch == "pad"
    assert [feed["x"].shape for feed in got] == [(size, 1)] * (full + 1 + bool(padded))
    flat = np.concatenate([feed["x"].ravel() for feed in got])
    known = (full + 1) * size + (rest if padded else 0)
    assert np.array_equal(flat[:known], np.arange(known))


def test_repeated_samples_are_those_of_the_last_batch():
    with pytest.warns(
        UserWarning, match="repeated the last 2 samples to fill a batch of 5: what is repeated"
    ):
        (_, padded) = uniform(last_batch_feeds(5, 2), "pad")
    assert padded["x"].ravel().tolist() == [5, 6, 5, 6, 5]


def test_refused():
    with pytest.raises(CalibrationDataError, match="the last batch has 2 of 5 samples"):
        list(uniform(last_batch_feeds(5, 2), "refuse"))


@pytest.mark.parametrize("sizes", [(5, 2, 5), (5, 2, 2), (2, 5)])
def test_only_the_last_may_be_smaller(sizes):
    with pytest.raises(CalibrationDataError, match=r"batch 1 has 'x' \dx1 but the first one 'x' \dx1"):
        list(uniform(last_batch_feeds(*sizes)))


def test_arrays_become_contiguous_and_scalars_stay_scalars():
    turned = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    (got,) = uniform([{"x": turned, "flag": np.array(3)}])
    assert got["x"].flags.c_contiguous
    assert got["flag"].shape == ()
    assert np.array_equal(got["x"], turned)


def test_nothing_gives_nothing():
    assert list(uniform([])) == []
