"""Errors of cuda-python become those of our own family: on a module with its status codes and no GPU."""

import enum
import importlib
import sys
from types import ModuleType

import pytest

from calibrators.errors import EngineError, GpuMemoryError


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


ILLEGAL = r"^the GPU failed with CUDA_ERROR_ILLEGAL_ADDRESS; check the inputs, and the GPU with nvidia-smi$"


class Driver(ModuleType):
    """cuda-python's driver module: every call answers with ``status``, and hands out 7."""

    def __init__(self):
        super().__init__("cuda.bindings.driver")
        self.CUresult, self.status = CUresult, CUresult.CUDA_SUCCESS
        self.CUstream_flags = enum.Enum("CUstream_flags", "CU_STREAM_NON_BLOCKING")
        self.CUevent_flags = enum.Enum("CUevent_flags", "CU_EVENT_DEFAULT")

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        results = (7, 8) if name == "cuMemGetInfo" else (7,)
        return lambda *_arguments: (self.status, *results)


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    bindings = ModuleType("cuda.bindings")
    bindings.driver = made
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made)
    monkeypatch.delitem(sys.modules, "calibrators.cuda.cuda_python_device", raising=False)
    yield made
    sys.modules.pop("calibrators.cuda.cuda_python_device", None)


@pytest.fixture
def opened():
    return lambda: importlib.import_module("calibrators.cuda.cuda_python_device").CudaPythonDevice(0)


def test_a_lack_of_memory(driver, opened):
    device = opened()
    driver.status = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    for allocate in (device.allocate, device.allocate_pinned):
        with pytest.raises(
            GpuMemoryError, match=r"^cannot allocate 2\.0 MB; use a smaller batch or free some"
        ):
            allocate(2_000_000)


def test_every_other_failure(driver, opened):
    device = opened()
    stream, event, buffer = device.new_stream(), device.new_event(), device.allocate(8)
    driver.status = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    for work in (
        lambda: device.allocate(8),
        device.memory,
        device.new_stream,
        device.new_event,
        stream.synchronize,
        event.synchronize,
        event.reached,
        lambda: event.record(stream),
        lambda: event.milliseconds_since(event),
        buffer.free,
        device.active().__enter__,
    ):
        with pytest.raises(EngineError, match=ILLEGAL):
            work()


def test_an_event_that_is_not_reached(driver, opened):
    event = opened().new_event()
    driver.status = CUresult.CUDA_ERROR_NOT_READY
    assert not event.reached()
    driver.status = CUresult.CUDA_SUCCESS
    assert event.reached()


def test_a_gpu_that_cannot_be_used(driver, opened):
    driver.status = CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE
    with pytest.raises(EngineError, match=r"^the GPU failed with CUDA_ERROR_DEVICE_UNAVAILABLE; check"):
        opened()
