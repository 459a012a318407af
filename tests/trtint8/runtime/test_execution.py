"""An execution context on a GPU that is host memory, with an engine that doubles its input."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, EngineError
from calibrators.tensorrt.messages import shared_logger
from tests.host_device import HostDevice, read
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime.arrays import DeviceArray
from trtint8.runtime.execution import Bindings, ExecutionContext


class Trt:
    """What the code under test uses of TensorRT's module."""

    class ILogger:
        Severity = SimpleNamespace(ERROR=1, INTERNAL_ERROR=0, WARNING=2)

    class IOutputAllocator:
        pass


class Device(HostDevice):
    """Keeps its stream, and copies between addresses."""

    def new_stream(self):
        self.stream = super().new_stream()
        return self.stream

    def copy(self, target, source, nbytes, stream):
        stream.queue.append(lambda: ctypes.memmove(target, source, nbytes))


class Doubling:
    """TensorRT's side: writes twice the input 'x' to the output 'y', and counts what it is asked to do."""

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
        self.addresses[name] = pointer
        return True

    def set_output_allocator(self, _name, allocator):
        self.allocator = allocator
        return True

    def execute_async_v3(self, _stream):
        self.calls.append("run")
        shape, source = self.shape, self.addresses["x"]
        target = self.addresses.get("y")
        if self.allocator is not None:
            self.allocator.notify_shape("y", shape)
            target = self.allocator.reallocate_output("y", 0, 4 * int(np.prod(shape)), 256)

        def compute():
            doubled = 2 * read(source, np.float32, shape)
            ctypes.memmove(target, doubled.ctypes.data, doubled.nbytes)

        self.device.stream.queue.append(compute)
        return self.works


SPEC_X, SPEC_Y = (TensorSpec(name, "float32", (None, 3)) for name in "xy")
PROFILES = tuple(
    {"x": ShapeRange((low, 3), (best, 3), (high, 3))} for low, best, high in ((1, 1, 4), (5, 16, 32))
)


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def make(device):
    def context(profiles=(), **options):
        engine = Doubling(device, **options)
        bindings = Bindings((SPEC_X,), (SPEC_Y,), frozenset(), profiles)
        return engine, ExecutionContext(Trt, engine, None, bindings, device, cuda_graph=False)

    return context


def batch(rows):
    return np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)


@pytest.mark.parametrize("data_dependent", [False, True])
def test_outputs_of_one_run_after_another(make, device, data_dependent):
    engine, context = make(data_dependent=data_dependent)
    kept = []
    for rows in (2, 4, 1):
        found = context.infer({"x": batch(rows)})
        np.testing.assert_array_equal(found["y"], 2 * batch(rows))
        kept.append(found["y"])
    # They are the caller's own: later runs left them alone.
    np.testing.assert_array_equal(kept[1], 2 * batch(4))
    assert engine.calls.count("run") == 3
    context.close()
    context.close()
    assert not device.live


def test_a_shape_is_set_only_where_it_changes(make):
    engine, context = make()
    for rows in (2, 2, 3):
        context.infer({"x": batch(rows)})
    shapes = [call for call in engine.calls if call[0] == "shape"]
    assert shapes == [("shape", "x", (2, 3)), ("shape", "x", (3, 3))]


def test_the_profile_follows_the_batch(make):
    engine, context = make(PROFILES)
    for rows in (2, 8, 9, 1):
        np.testing.assert_array_equal(context.infer({"x": batch(rows)})["y"], 2 * batch(rows))
    assert [call for call in engine.calls if call[0] == "profile"] == [("profile", 1), ("profile", 0)]
    assert context.profile == 0


def test_outputs_can_stay_on_the_device(make, device):
    _, context = make()
    found = context.infer({"x": batch(2)}, on_device=True)["y"]
    assert isinstance(found, DeviceArray) and found.shape == (2, 3)
    np.testing.assert_array_equal(found.numpy(), 2 * batch(2))
    del found
    context.close()
    assert not device.live


def test_a_refusal_says_what_tensorrt_said(make):
    engine, context = make()
    shared_logger(Trt).log(Trt.ILogger.Severity.ERROR, "no such shape")
    engine.works = False
    with pytest.raises(EngineError, match=r"^TensorRT refuses the shape \(2, 3\) of 'x': no such shape$"):
        context.infer({"x": batch(2)})


def test_feeds_that_do_not_fit_and_a_closed_context(make):
    engine, context = make()
    with pytest.raises(CalibrationDataError, match="x"):
        context.infer({"z": batch(2)})
    assert engine.calls == []
    context.close()
    with pytest.raises(EngineError, match="the execution context is closed; make a new one"):
        context.infer({"x": batch(2)})
