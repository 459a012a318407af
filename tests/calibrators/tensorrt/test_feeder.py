"""Batches brought to a GPU that is host memory."""

import threading

import numpy as np
import pytest

from calibrators.errors import GpuMemoryError
from calibrators.tensorrt.feeder import Feeder
from tests.host_device import HostDevice, read

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
    np.testing.assert_array_equal(seen, DATA)
    assert feeder.batches == 4
    feeder.close()
    feeder.close()
    assert not device.live


def test_a_batch_stays_while_the_next_one_is_uploaded():
    device = HostDevice()
    feeder = Feeder(feeds(), device)
    first = feeder.next()
    feeder._staged.result()  # the second batch is on the device now
    np.testing.assert_array_equal(read(first["x"], np.float32, (2, 3)), DATA[0])
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
