"""TensorRT's side of an execution context, on a GPU that is host memory: it doubles every input.

It fills what the runtime uses of ``IExecutionContext``; the real bindings say in tests/bindings whether that
has these members.
"""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.host_device import HostDevice, read
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime.bindings import Bindings
from trtint8.runtime.context import TensorrtContext
from trtint8.runtime.execution import ExecutionContext

SPEC_X, SPEC_Y = (TensorSpec(name, "float32", (None, 3)) for name in "xy")
PROFILES = tuple(
    {"x": ShapeRange((low, 3), (best, 3), (high, 3))} for low, best, high in ((1, 1, 4), (5, 16, 32))
)
BINDINGS = Bindings((SPEC_X,), (SPEC_Y,), frozenset(), ())


class Trt:
    """What the code under test uses of TensorRT's module."""

    class ILogger:
        Severity = SimpleNamespace(ERROR=1, INTERNAL_ERROR=0, WARNING=2)

    class IOutputAllocator:
        pass


class Doubling:
    """Writes twice the input 'x' to the output 'y', and notes what it is asked to do."""

    active_optimization_profile = 0

    def __init__(self, device, data_dependent=False):
        self.device, self.data_dependent = device, data_dependent
        self.shape, self.addresses, self.allocator, self.calls = None, {}, None, []
        self.works = True

    def set_optimization_profile_async(self, index, _stream):
        self.calls.append(("profile", index))
        return True

    def set_input_shape(self, name, shape):
        self.calls.append(("shape", name, tuple(shape)))
        self.shape = tuple(shape)
        return self.works

    def get_tensor_shape(self, _name):
        return (-1, 3) if self.data_dependent else self.shape

    def set_tensor_address(self, name, pointer):
        self.calls.append(("address", name, pointer))
        self.addresses[name] = pointer
        return True

    def set_output_allocator(self, name, allocator):
        self.calls.append(("allocator", name))
        self.allocator = allocator
        return True

    def execute_async_v3(self, stream):
        self.calls.append("run")
        shape, source = self.shape, self.addresses["x"]
        target = self.addresses.get("y")
        if self.allocator is not None:
            self.allocator.notify_shape("y", shape)
            target = self.allocator.reallocate_output("y", 0, 4 * int(np.prod(shape)), 256)

        def compute():
            doubled = 2 * read(source, np.float32, shape)
            ctypes.memmove(target, doubled.ctypes.data, doubled.nbytes)

        self.device.streams[stream].queue.append(compute)
        return self.works

    def asked(self, kind):
        """What it was asked of one kind: "shape", "address", "profile" or "allocator"."""
        return [call for call in self.calls if call[0] == kind]


class HostGraph:
    """Work that was recorded on a stream of the host, and is queued again by every launch."""

    made = 0

    def __init__(self, stream, work):
        waiting = len(stream.queue)
        work()
        self.recorded, self.alive = stream.queue[waiting:], True
        del stream.queue[waiting:]
        type(self).made += 1

    def launch(self, stream):
        assert self.alive
        stream.queue.extend(self.recorded)

    def free(self):
        self.alive = False


class OnGpu:
    """An array of another library in the memory of a :class:`HostDevice`."""

    def __init__(self, device, array, **interface):
        with device.active():
            # TensorRT reads aligned addresses only.
            self.buffer = device.allocate(array.nbytes + 256)
        self.pointer = -(-self.buffer.pointer // 256) * 256
        self.shape, self.dtype = array.shape, array.dtype
        self.write(array)
        self.interface = {"version": 3, "stream": None, **interface}

    def write(self, array):
        array = np.ascontiguousarray(array)
        ctypes.memmove(self.pointer, array.ctypes.data, array.nbytes)

    def read(self):
        return read(self.pointer, self.dtype, self.shape)

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            **self.interface,
        }


def assert_doubled(context, array):
    """An inference gives twice what it is fed."""
    assert_array_equal(context.infer({"x": array})["y"], 2 * array)


def batch(rows, start=0):
    return np.arange(start, start + 3 * rows, dtype=np.float32).reshape(rows, 3)


@pytest.fixture
def device():
    return HostDevice()


@pytest.fixture
def tensorrt_context(device):
    """TensorRT's side and ours of one of its contexts."""

    def make(bindings=BINDINGS, **options):
        raw = Doubling(device, **options)
        return raw, TensorrtContext(Trt, raw, bindings, device)

    return make


@pytest.fixture
def make(device):
    """All of TensorRT's contexts that are made, and the execution context that makes them."""

    def context(profiles=(), cuda_graph=False, **options):
        raws = []

        def new_raw():
            raws.append(Doubling(device, **options))
            return raws[-1]

        bindings = Bindings((SPEC_X,), (SPEC_Y,), frozenset(), profiles)
        return raws, ExecutionContext(Trt, new_raw, None, bindings, device, cuda_graph=cuda_graph)

    return context


@pytest.fixture
def graphs(monkeypatch):
    """CUDA graphs on a stream of the host."""
    monkeypatch.setattr("trtint8.runtime.context.capture", HostGraph)
    monkeypatch.setattr(HostGraph, "made", 0)
    return HostGraph
