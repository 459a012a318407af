"""Errors of PyCUDA become those of our own family: on a module with PyCUDA's errors and no GPU behind it."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from calibrators.errors import EngineError, GpuMemoryError


@pytest.fixture
def pycuda(monkeypatch):
    """PyCUDA's driver module: the errors have the bases that its source gives them."""
    driver = ModuleType("pycuda.driver")
    driver.Error = type("Error", (Exception,), {})
    for name in ("MemoryError", "LogicError", "LaunchError", "RuntimeError"):
        setattr(driver, name, type(name, (driver.Error,), {}))
    driver.init = lambda: None
    driver.context = SimpleNamespace(push=lambda: None)
    driver.Context = SimpleNamespace(pop=lambda: None)
    driver.Device = lambda _ordinal: SimpleNamespace(retain_primary_context=lambda: driver.context)
    driver.Stream = lambda flags: SimpleNamespace(handle=0x5EED + flags, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "pycuda", ModuleType("pycuda"))
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    monkeypatch.delitem(sys.modules, "calibrators.cuda.pycuda_device", raising=False)
    yield driver
    sys.modules.pop("calibrators.cuda.pycuda_device", None)


@pytest.fixture
def device(pycuda):
    return importlib.import_module("calibrators.cuda.pycuda_device").PycudaDevice(0)


def failing(error):
    def fail(*_arguments):
        raise error

    return fail


def test_a_lack_of_memory(pycuda, device):
    full = failing(pycuda.MemoryError("out of memory"))
    pycuda.mem_alloc = pycuda.pagelocked_empty = full
    for allocate, where in (
        (device.allocate, "the GPU"),
        (device.allocate_pinned, "page-locked host memory"),
    ):
        with pytest.raises(GpuMemoryError, match=rf"2\.0 MB of {where};"):
            allocate(2_000_000)


@pytest.mark.parametrize("kind", ["Error", "LogicError", "LaunchError", "RuntimeError"])
def test_every_other_failure(pycuda, device, kind):
    failure = getattr(pycuda, kind)("cuX failed: an illegal memory access was encountered")
    for name in ("mem_alloc", "mem_get_info", "Event"):
        setattr(pycuda, name, failing(failure))
    stream = device.new_stream()
    stream.raw.synchronize = failing(failure)
    for work in (lambda: device.allocate(8), device.memory, device.new_event, stream.synchronize):
        with pytest.raises(EngineError, match=r"\(cuX failed: an illegal memory access") as caught:
            work()
        assert caught.value.__cause__ is failure


def test_streams_do_not_block(device):
    assert device.new_stream().handle == 0x5EED + 1  # CU_STREAM_NON_BLOCKING


def test_a_context_that_cannot_be_made_current(pycuda):
    pycuda.context.push = failing(pycuda.LogicError("cuCtxPushCurrent failed"))
    device = importlib.import_module("calibrators.cuda.pycuda_device").PycudaDevice(0)
    with pytest.raises(EngineError, match="cuCtxPushCurrent failed"), device.active():
        pass


def test_events_are_destroyed_in_their_context(pycuda, monkeypatch):
    pushed, destroyed = [], []

    class Event:
        def __del__(self):
            destroyed.append(bool(pushed))

    pycuda.Event = Event
    pycuda.context.push = lambda: pushed.append(1)
    monkeypatch.setattr(pycuda.Context, "pop", pushed.pop)
    device = importlib.import_module("calibrators.cuda.pycuda_device").PycudaDevice(0)
    with device.active():
        events = [device.new_event() for _ in range(3)]
    assert not pushed and not destroyed
    del events
    assert destroyed == [True] * 3 and not pushed
