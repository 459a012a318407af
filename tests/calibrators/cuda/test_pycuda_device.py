"""A GPU through PyCUDA, whose driver is one that keeps everything in host memory."""

import importlib
import sys
from types import ModuleType

import numpy as np
import pytest

from calibrators.errors import GpuMemoryError
from tests.calibrators.cuda.fake_packages import pycuda


@pytest.fixture
def calls():
    return []


@pytest.fixture
def module(monkeypatch, calls):
    package = ModuleType("pycuda")
    package.driver = pycuda(calls)
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", package.driver)
    name = "calibrators.cuda.pycuda_device"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


@pytest.fixture
def device(module):
    return module.PycudaDevice(0)


def test_bytes_make_the_round_trip(device):
    data = np.arange(100, dtype=np.float32)
    with device.active():
        stream, pinned = device.new_stream(), device.allocate_pinned(data.nbytes)
        first, second = device.allocate(data.nbytes), device.allocate(data.nbytes)
        assert (first.nbytes, pinned.array.size, stream.handle) == (400, 400, 0x5EED)
        pinned.array.view(np.float32)[:] = data
        device.upload(first.pointer, pinned.array, stream)
        device.copy(second.pointer, first.pointer, data.nbytes, stream)
        back = np.zeros_like(data)
        device.download(back, second.pointer, stream)
        stream.synchronize()
    np.testing.assert_array_equal(back, data)


def test_nothing_is_copied_where_there_is_nothing(device):
    nothing = np.zeros((0, 3), np.float32)
    stream = device.new_stream()
    # Address 0 would be an error.
    device.upload(0, nothing, stream)
    device.download(nothing, 0, stream)
    device.copy(0, 0, 0, stream)
    assert device.allocate(0).nbytes == 0


def test_free_and_total_memory(device):
    assert device.memory() == (100, 200)


def test_too_little_memory(device):
    with pytest.raises(GpuMemoryError, match=r"^cannot allocate 2\.1 MB.*; use a smaller batch or free some"):
        device.allocate(1 << 21)
    with pytest.raises(GpuMemoryError, match=r"^cannot allocate 2\.1 MB.*; use a smaller batch or free some"):
        device.allocate_pinned(1 << 21)


def test_memory_is_given_back_once(device):
    buffer, pinned = device.allocate(8), device.allocate_pinned(8)
    allocations = buffer._allocation, pinned._allocation
    for one in (buffer, pinned) * 2:
        one.free()
    assert [allocation.freed for allocation in allocations] == [1, 1]


def test_a_stream_is_let_go(device):
    stream = device.new_stream()
    stream.free()
    stream.free()
    assert stream.raw is None


def test_the_primary_context_is_current_only_within(device, calls):
    assert calls == ["init"]
    with pytest.raises(ZeroDivisionError), device.active():
        raise ZeroDivisionError
    assert calls == ["init", "push", "pop"]


def test_events_take_the_time(device, calls):
    stream, before, after = device.new_stream(), device.new_event(), device.new_event()
    before.record(stream)
    after.synchronize()
    assert calls == ["init", ("record", stream.raw), "event done"]
    assert after.milliseconds_since(before) == 2.5
