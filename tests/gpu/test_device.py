"""Our CUDA interface on a real GPU."""

import numpy as np
import pytest

from calibrators.cuda import capture, gpu_names, open_device
from calibrators.errors import GpuMemoryError, GpuUnavailableError


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


def test_an_index_that_is_not_there(device):
    with pytest.raises(GpuUnavailableError, match="there is no GPU with index"):
        open_device(len(gpu_names()))
