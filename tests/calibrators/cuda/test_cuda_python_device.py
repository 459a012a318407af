"""A GPU through cuda-python, whose driver is one that keeps everything in host memory."""

import importlib
import sys
from types import ModuleType

import numpy as np
import pytest

from calibrators.errors import GpuMemoryError, GpuUnavailableError
from tests.calibrators.cuda.fake_packages import Status, cuda_python


@pytest.fixture
def calls():
    return []


@pytest.fixture
def module(monkeypatch, calls):
    cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    cuda.bindings, bindings.driver = bindings, cuda_python(calls)
    for name, made in (
        ("cuda", cuda),
        ("cuda.bindings", bindings),
        ("cuda.bindings.driver", bindings.driver),
    ):
        monkeypatch.setitem(sys.modules, name, made)
    name = "calibrators.cuda.cuda_python_device"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


@pytest.fixture
def device(module):
    return module.CudaPythonDevice(0)


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


def test_memory_and_streams_are_given_back_once(device, module, calls):
    made = [device.allocate(8), device.allocate_pinned(8), device.new_stream()]
    assert len(module.driver.memory) == 2
    for one in made * 2:
        one.free()
    assert module.driver.memory == {}
    assert calls[-3:] == ["cuMemFree", "cuMemFreeHost", "cuStreamDestroy"]


def test_the_primary_context_is_current_only_within(device, calls):
    assert calls == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    with pytest.raises(ZeroDivisionError), device.active():
        raise ZeroDivisionError
    assert calls[-2:] == ["cuCtxPushCurrent", "cuCtxPopCurrent"]


def test_events_take_the_time(device):
    before, after = device.new_event(), device.new_event()
    before.record(device.new_stream())
    after.synchronize()
    assert after.milliseconds_since(before) == 1.5


def test_another_failure_names_what_the_driver_reports(device, module):
    module.driver.cuMemGetInfo = lambda: (Status.CUDA_ERROR_INVALID_VALUE,)
    with pytest.raises(
        GpuUnavailableError, match="the NVIDIA driver reports CUDA_ERROR_INVALID_VALUE; check"
    ):
        device.memory()
