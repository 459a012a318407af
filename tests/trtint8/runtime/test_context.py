"""What is copied where, on a GPU that is host memory."""

import dataclasses
import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from calibrators.cuda import TensorMemory
from calibrators.errors import EngineError, GpuMemoryError
from tests.host_device import HostDevice
from tests.trtint8.runtime.doubling import BINDINGS, PROFILES, Doubling, OnGpu, Trt, batch
from trtint8.runtime.arrays import DeviceInput
from trtint8.runtime.context import (
    FIRST_RUNS,
    BoundContext,
    TensorrtContext,
    new_output_allocator,
)


@pytest.fixture
def bound(tensorrt_context, device):
    with device.active():
        stream = device.new_stream()
        raw, context = tensorrt_context()
        yield raw, BoundContext(context, BINDINGS, device, stream, cuda_graph=False), stream


def on_gpu(array, shift=0):
    return DeviceInput(array.pointer + shift, array.shape, array.dtype, array)


def run(bound, stream):
    bound.upload()
    bound.enqueue()
    outputs = bound.queue_download()
    stream.synchronize()
    return outputs["y"]


def test_a_feed_that_is_alike_is_taken_without_more_ado(bound):
    raw, context, stream = bound
    assert not context.takes({"x": batch(2)})  # nothing is bound yet
    context.bind({"x": batch(2)})
    asked = len(raw.calls)
    assert context.takes({"x": batch(2, 5)})
    assert_array_equal(run(context, stream), 2 * batch(2, 5))
    assert raw.calls[asked:] == ["run"]
    for other in (batch(3), batch(2).astype(np.float64), batch(2).tolist()):
        assert not context.takes({"x": other})
    assert not context.takes({}) and not context.takes({"x": batch(2), "z": batch(2)})


def test_an_address_that_tensorrt_cannot_read_is_copied(bound, device):
    raw, context, stream = bound
    array = OnGpu(device, batch(8))
    array.shape = (2, 3)
    context.bind({"x": on_gpu(array, shift=48)})
    assert raw.addresses["x"] not in (array.pointer, array.pointer + 48)
    assert_array_equal(run(context, stream), 2 * batch(2, 12))
    context.bind({"x": on_gpu(array)})
    assert raw.addresses["x"] == array.pointer


def test_an_input_of_no_elements(bound):
    _, context, stream = bound
    context.bind({"x": np.zeros((0, 3), np.float32)})
    assert run(context, stream).shape == (0, 3)


@pytest.fixture
def stream(device):
    with device.active():
        yield device.new_stream()


def test_values_on_the_host_are_set_again(tensorrt_context, stream):
    raw, context = tensorrt_context()
    for _ in range(2):
        context.set_shapes({"x": (2, 3)}, {"x": 4096}, stream)
    assert raw.asked("address") == [("address", "x", 4096)] * 2


def test_only_the_first_run_waits_for_contexts_that_are_made(tensorrt_context, stream):
    _, context = tensorrt_context()
    context.set_shapes({"x": (2, 3)}, {}, stream)
    context.set_address("x", stream.device.allocate(64).pointer)
    context.set_address("y", stream.device.allocate(64).pointer)
    thread = threading.Thread(target=context.execute, args=(stream.handle,))
    with FIRST_RUNS:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()
    with FIRST_RUNS:
        context.execute(stream.handle)


def test_an_output_without_memory_is_an_error_of_ours(stream):
    device = HostDevice(room=8)
    raw = Doubling(device, data_dependent=True)
    context = TensorrtContext(Trt, raw, BINDINGS, device)
    with device.active():
        own = device.new_stream()
        context.set_shapes({"x": (2, 3)}, {}, own)
        assert context.data_dependent
        context.set_address("x", np.zeros(6, np.float32).ctypes.data)
        with pytest.raises(GpuMemoryError):
            context.execute(own.handle)


def test_a_run_that_is_refused(tensorrt_context, stream):
    raw, context = tensorrt_context()
    context.set_shapes({"x": (2, 3)}, {}, stream)
    context.set_address("x", 4096)
    raw.works = False
    with pytest.raises(EngineError, match=r"^TensorRT refuses the run: "):
        context.execute(stream.handle)


def test_a_profile_that_another_context_holds(tensorrt_context, stream, monkeypatch):
    raw, context = tensorrt_context(dataclasses.replace(BINDINGS, profiles=PROFILES))
    monkeypatch.setattr(raw, "set_optimization_profile_async", lambda _index, _stream: False)
    with pytest.raises(EngineError, match="profile 1"):
        context.set_shapes({"x": (8, 3)}, {}, stream)


def test_memory_grows_and_is_kept():
    device = HostDevice()
    with device.active():
        memory = TensorMemory(device)
        assert (memory.pointer, memory.address) == (0, 0)
        large = memory.reserve(100)
        assert memory.reserve(10) == large == memory.pointer
        array = memory.reserve_pinned((2, 3), np.dtype(np.float32))
        assert (array.shape, array.dtype, array.ctypes.data) == ((2, 3), np.float32, memory.address)
        smaller = memory.reserve_pinned((3,), np.dtype(np.int64))
        assert smaller.ctypes.data == memory.address and smaller.dtype == np.int64
        assert len(device.live) == 2
        assert memory.reserve(200) and [buffer.nbytes for buffer in device.live] == [24, 200]
        memory.free()
        memory.free()
    assert not device.live


def test_nothing_has_an_address_too():
    device = HostDevice()
    with device.active():
        memory = TensorMemory(device)
        assert memory.reserve(0)
        assert memory.reserve_pinned((0, 3), np.dtype(np.float16)).shape == (0, 3)
        memory.free()


@pytest.fixture
def device():
    device = HostDevice(room=1000)
    with device.active():
        yield device


@pytest.fixture
def allocator(rtx, device):
    """Of TensorRT's own class; called here as TensorRT's bindings call it."""
    return new_output_allocator(rtx.module, device)


def test_an_output_allocator_grows_and_keeps_its_memory(rtx, allocator, device):
    small = allocator.reallocate_output("y", 0, 100, 256)
    assert allocator.reallocate_output_async("y", small, 60, 256, 7) == small == allocator.memory.pointer
    assert allocator.reallocate_output("y", small, 400, 256) == allocator.memory.pointer
    assert [buffer.nbytes for buffer in device.live] == [400]
    allocator.notify_shape("y", rtx.module.Dims([0, 4]))
    assert allocator.shape == (0, 4)
    allocator.raise_failure()
    allocator.memory.free()
    allocator.memory.free()
    assert not device.live


def test_an_output_that_found_no_memory_does_not_spoil_the_next_run(allocator):
    assert allocator.reallocate_output("y", 0, 2000, 256) == 0
    with pytest.raises(GpuMemoryError, match="cannot allocate 2000 bytes"):
        allocator.raise_failure()
    allocator.raise_failure()
    assert allocator.reallocate_output("y", 0, 8, 256) == allocator.memory.pointer
    allocator.memory.free()
