"""Which way to a GPU is taken."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from calibrators import cuda
from calibrators.cuda import device as context_module
from calibrators.cuda import driver as driver_device_driver
from calibrators.cuda import opening
from calibrators.cuda.device import Device
from calibrators.errors import EngineError, GpuMemoryError
from tests.calibrators.cuda.fake_driver import driver


@pytest.fixture
def pycuda(install, monkeypatch):
    """Makes it look as if PyCUDA were installed, or not, with a class that stands for its device."""

    def use(installed, content):
        install(driver(count=2))
        monkeypatch.setattr(opening, "find_spec", lambda _name: object() if installed else None)
        monkeypatch.setattr(opening, "Device", lambda ordinal: ("driver", ordinal))
        made = ModuleType("pycuda_device")
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, "calibrators.cuda.pycuda_device", made)
        cuda.open_device.cache_clear()

    yield use
    cuda.open_device.cache_clear()


DEVICE = {"PycudaDevice": lambda ordinal: ("PyCUDA", ordinal)}


@pytest.mark.parametrize(
    ("installed", "content", "way"),
    [(True, DEVICE, "PyCUDA"), (False, DEVICE, "driver"), (True, {}, "driver")],
)
def test_pycuda_where_it_can_be_imported_else_the_driver(pycuda, installed, content, way):
    pycuda(installed, content)
    assert cuda.open_device(1) == (way, 1)


def test_a_device_is_opened_once(pycuda):
    opened = []
    pycuda(True, {"PycudaDevice": lambda ordinal: opened.append(ordinal) or object()})
    assert cuda.open_device(0) is cuda.open_device(0)
    assert opened == [0]


PRIMARY, STREAM, EVENT = 0x1000, 0x7F00_0000_5EED, 0x7F00_0000_E0E0
FULL, NOT_READY, ILLEGAL = 2, 600, 700
NAMES = {
    FULL: b"CUDA_ERROR_OUT_OF_MEMORY",
    NOT_READY: b"CUDA_ERROR_NOT_READY",
    ILLEGAL: b"CUDA_ERROR_ILLEGAL",
}


class Function:
    """One function of the driver, which ``prepared`` gives types of parameters."""

    def __init__(self, library, name, work):
        self.library, self.name, self.work = library, name, work

    def __call__(self, *arguments):
        if hasattr(self, "argtypes"):
            arguments = [
                given if hasattr(given, "_obj") or hasattr(given, "value") else kind(given)
                for kind, given in zip(self.argtypes, arguments, strict=True)
            ]
        values = [getattr(given, "value", given) for given in arguments]
        if status := self.library.failures.get(self.name, self.library.status):
            return status
        self.library.calls.append((self.name, *(value for value in values if not hasattr(value, "_obj"))))
        self.work(*values)
        return 0


class Library:
    def __init__(self):
        self.status, self.failures, self.calls, self.memory = 0, {}, [], {}

        def put(value):
            def work(pointer, *_):
                pointer._obj.value = value

            return work

        def allocate(pointer, size, *_flags):
            memory = (ctypes.c_uint8 * size)()
            pointer._obj.value = ctypes.addressof(memory)
            self.memory[pointer._obj.value] = memory

        def copy(target, source, size, _stream):
            ctypes.memmove(target, source, size)

        def sizes(free, total):
            free._obj.value, total._obj.value = 5 << 30, 80 << 30

        def nothing(*_arguments):
            pass

        works = {
            "cuInit": nothing,
            "cuDeviceGet": put(3),
            "cuDevicePrimaryCtxRetain": put(PRIMARY),
            "cuCtxPushCurrent_v2": nothing,
            "cuCtxPopCurrent_v2": nothing,
            "cuMemAlloc_v2": allocate,
            "cuMemFree_v2": self.memory.pop,
            "cuMemHostAlloc": allocate,
            "cuMemFreeHost": self.memory.pop,
            "cuStreamCreate": put(STREAM),
            "cuStreamSynchronize": nothing,
            "cuStreamDestroy_v2": nothing,
            "cuEventCreate": put(EVENT),
            "cuEventRecord": nothing,
            "cuEventSynchronize": nothing,
            "cuEventQuery": nothing,
            "cuEventElapsedTime": put(1.5),
            "cuEventDestroy_v2": nothing,
            "cuMemGetInfo_v2": sizes,
            "cuMemcpyHtoDAsync_v2": copy,
            "cuMemcpyDtoHAsync_v2": copy,
            "cuMemcpyDtoDAsync_v2": copy,
        }
        self.functions = SimpleNamespace(
            **{name: Function(self, name, work) for name, work in works.items()}, cuGetErrorName=error_name
        )

    def called(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


def error_name(status, pointer):
    pointer._obj.value = NAMES[status]


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr("calibrators.cuda.driver._loaded", lambda: made.functions)
    monkeypatch.setattr(context_module, "check_ordinal", lambda _ordinal: None)
    context_module.retained_context.cache_clear()
    driver_device_driver._copy.cache_clear()
    yield made
    context_module.retained_context.cache_clear()
    driver_device_driver._copy.cache_clear()


@pytest.fixture
def device(library):
    return Device(3)


@pytest.mark.parametrize("nbytes", [0, 1, 1000])
def test_bytes_make_the_round_trip(library, device, nbytes):
    data = np.arange(nbytes, dtype=np.uint8)
    with device.active():
        stream, there = device.new_stream(), device.allocate(nbytes)
        pinned, back = device.allocate_pinned(nbytes), device.allocate_pinned(nbytes)
        pinned.array[:] = data
        device.upload(there.pointer, pinned.address, nbytes, stream.handle)
        device.download(back.address, there.pointer, nbytes, stream.handle)
        stream.synchronize()
        assert back.array.tolist() == data.tolist()
        assert (there.nbytes, len(library.memory)) == (nbytes, 3)
        for buffer in (there, pinned, back):
            buffer.free()
            buffer.free()
        stream.free()
        stream.free()
    assert not library.memory
    assert library.called("cuStreamDestroy_v2") == [(STREAM,)]


def test_streams_wait_for_no_other_one_and_handles_keep_their_64_bits(library, device):
    stream, event, earlier = device.new_stream(), device.new_event(), device.new_event()
    assert library.called("cuStreamCreate") == [(1,)]
    assert stream.handle == STREAM
    event.record(stream)
    event.synchronize()
    assert event.milliseconds_since(earlier) == 1.5
    assert library.called("cuEventRecord") == [(EVENT, STREAM)]
    assert library.called("cuEventElapsedTime") == [(EVENT, EVENT)]
    del event
    assert library.called("cuEventDestroy_v2") == [(EVENT,)]


def test_the_primary_context_is_current_inside(library, device):
    assert (device.ordinal, library.called("cuDevicePrimaryCtxRetain")) == (3, [(3,)])
    with device.active():
        assert library.called("cuCtxPushCurrent_v2") == [(PRIMARY,)]
        assert not library.called("cuCtxPopCurrent_v2")
    assert len(library.called("cuCtxPopCurrent_v2")) == 1


def test_memory(device):
    assert device.memory() == (5 << 30, 80 << 30)


def test_an_event_that_is_not_reached(library, device):
    event = device.new_event()
    library.failures["cuEventQuery"] = NOT_READY
    assert not event.reached()
    library.failures.clear()
    assert event.reached()


@pytest.mark.parametrize(
    ("allocate", "where"), [("allocate", "the GPU"), ("allocate_pinned", "page-locked host memory")]
)
def test_a_lack_of_memory(library, device, allocate, where):
    library.status = FULL
    with pytest.raises(GpuMemoryError, match=rf"2\.0 MB of {where}"):
        getattr(device, allocate)(2_000_000)


def test_every_other_failure(library, device):
    stream, event, buffer = device.new_stream(), device.new_event(), device.allocate(8)
    library.status = ILLEGAL
    for work in (
        lambda: device.allocate(8),
        lambda: device.allocate_pinned(8),
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
        with pytest.raises(EngineError, match="CUDA_ERROR_ILLEGAL"):
            work()
    library.status = 0
    buffer.free()
    assert not library.memory


def test_a_gpu_that_cannot_be_used(library):
    library.failures["cuDevicePrimaryCtxRetain"] = ILLEGAL
    with pytest.raises(EngineError, match="CUDA_ERROR_ILLEGAL"):
        Device(0)
