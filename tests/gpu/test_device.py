"""Our CUDA interface on a real GPU: only the driver is needed, and PyCUDA is used where it is installed."""

import importlib
import threading

import numpy as np
import pytest

from calibrators.cuda import (
    capture,
    current_device,
    gpu_names,
    open_device,
    pointer_problem,
    primary_context,
)
from calibrators.cuda.dlpack import CUDA, give, on_gpu, take
from calibrators.errors import EngineError, GpuMemoryError, GpuUnavailableError


def test_bytes_make_the_round_trip(device):
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    with device.active():
        stream, first, second = (
            device.new_stream(),
            device.allocate(data.nbytes),
            device.allocate(data.nbytes),
        )
        pinned, back = device.allocate_pinned(data.nbytes), device.allocate_pinned(data.nbytes)
        pinned.array[:] = data
        device.upload(first.pointer, pinned.address, data.nbytes, stream.handle)
        device.copy(second.pointer, first.pointer, data.nbytes, stream.handle)
        device.download(back.address, second.pointer, data.nbytes, stream.handle)
        stream.synchronize()
        assert np.array_equal(back.array, data)
        for buffer in (first, second, pinned, back):
            buffer.free()
            buffer.free()


def test_events_take_the_time(device):
    with device.active():
        stream, buffer = device.new_stream(), device.allocate(1 << 26)
        before, after = device.new_event(), device.new_event()
        before.record(stream)
        device.copy(buffer.pointer, buffer.pointer + (1 << 25), 1 << 25, stream.handle)
        after.record(stream)
        after.synchronize()
        assert 0 < after.milliseconds_since(before) < 1000
        buffer.free()


def test_a_graph_does_its_work_again(device):
    with device.active():
        stream, source, target = device.new_stream(), device.allocate(4), device.allocate(4)
        value, given = np.zeros(4, np.uint8), np.zeros(4, np.uint8)
        graph = capture(stream, lambda: device.copy(target.pointer, source.pointer, 4, stream.handle))
        for wanted in (1, 2):
            given[:] = wanted
            device.upload(source.pointer, given.ctypes.data, 4, stream.handle)
            graph.launch(stream)
            device.download(value.ctypes.data, target.pointer, 4, stream.handle)
            stream.synchronize()
            assert value.tolist() == [wanted] * 4
        graph.free()
        source.free()
        target.free()


def test_memory_comes_back(device):
    with device.active():
        free, total = device.memory()
        buffer = device.allocate(1 << 28)
        assert device.memory()[0] <= free - (1 << 28) + (1 << 22)
        buffer.free()
        assert device.memory() == (free, total)
        with pytest.raises(GpuMemoryError):
            device.allocate(total + 1)


def test_an_event_is_reached_when_the_stream_is_done(device):
    with device.active():
        stream, event = device.new_stream(), device.new_event()
        event.record(stream)
        event.synchronize()
        assert event.reached()


def test_an_index_that_is_not_there(device):
    with pytest.raises(GpuUnavailableError, match="there is no GPU with index"):
        open_device(len(gpu_names()))


def _on_gpu(library, array):
    if library == "torch":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if not torch.cuda.is_available():
            pytest.skip("this PyTorch has no CUDA")
        return torch.from_numpy(array).cuda()
    return pytest.importorskip("cupy", reason="CuPy is not installed").asarray(array)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_an_array_of_another_library_is_read(device, library):
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = _on_gpu(library, data)
    assert on_gpu(array)
    back = np.zeros_like(data)
    with device.active():
        stream = device.new_stream()
        taken = take(array, stream.handle)
        assert device.pointer_problem(taken.pointer) is None
        device.download(back.ctypes.data, taken.pointer, back.nbytes, stream.handle)
        stream.synchronize()
    assert (taken.shape, taken.dtype, taken.contiguous) == (data.shape, data.dtype, True)
    assert np.array_equal(back, data)
    # A stream of the library itself is waited for, whatever is on it.
    with device.active():
        device.wait_for_stream(stream.handle, 1)
        stream.synchronize()


class Ours:
    """An array of ours whose values are complete on a stream of ours."""

    def __init__(self, device, buffer, stream, like):
        self.device, self.buffer, self.stream, self.like = device, buffer, stream, like

    def __dlpack__(self, *, stream=None, **_options):
        with self.device.active():
            self.device.wait_for_stream(stream or 1, self.stream.handle)
        return give(self.buffer.pointer, self.like.shape, self.like.dtype, self.device.ordinal, self)

    def __dlpack_device__(self):
        return CUDA, self.device.ordinal


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_another_library_reads_an_array(device, library):
    _on_gpu(library, np.zeros(1, np.float32))
    data = np.arange(6, dtype=np.float16).reshape(2, 3)
    with device.active():
        buffer, stream = device.allocate(data.nbytes), device.new_stream()
        device.upload(buffer.pointer, data.ctypes.data, data.nbytes, stream.handle)
    array = Ours(device, buffer, stream, data)
    module = importlib.import_module(library)
    there = module.from_dlpack(array)
    assert np.array_equal(there.cpu().numpy() if library == "torch" else there.get(), data)


def test_host_memory_is_no_memory_of_the_gpu(device):
    array = np.zeros(1000)
    with device.active():
        assert device.pointer_problem(array.ctypes.data) == "no memory that the GPU can use"
        buffer = device.allocate(1000)
        assert device.pointer_problem(buffer.pointer) is None
        buffer.free()


def test_the_primary_context_is_that_of_the_device(device):
    with device.active():
        buffer = device.allocate(1000)
    with primary_context(device.ordinal):
        assert current_device() == device.ordinal
        assert pointer_problem(buffer.pointer, device.ordinal) is None
    with device.active():
        buffer.free()


def test_other_threads_use_the_default_stream_during_a_capture(device):
    """On a blocking stream this fails with CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906."""
    with device.active():
        stream, source, target = device.new_stream(), device.allocate(4), device.allocate(4)

        def work():
            device.copy(target.pointer, source.pointer, 4, stream.handle)
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

        def elsewhere():
            try:
                with device.active():
                    device.copy(source.pointer, target.pointer, 4, 1)  # on the legacy default stream
            except EngineError as error:
                failures.append(error)

        failures = []
        capture(stream, work).free()
        assert failures == []
        source.free()
        target.free()
