"""What is copied where, on a GPU that is host memory."""

import numpy as np
import pytest

from tests.host_device import read
from tests.trtint8.runtime.doubling import BINDINGS, OnGpu, batch
from trtint8.runtime.arrays import DeviceInput
from trtint8.runtime.bound_context import BoundContext


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
    np.testing.assert_array_equal(run(context, stream), 2 * batch(2, 5))
    assert raw.calls[asked:] == ["run"]
    for other in (batch(3), batch(2).astype(np.float64), batch(2).tolist()):
        assert not context.takes({"x": other})
    assert not context.takes({}) and not context.takes({"x": batch(2), "z": batch(2)})


def test_what_is_listed_is_what_is_copied(bound, device):
    _, context, stream = bound
    context.bind({"x": batch(2)})
    ((target, source, nbytes, handle),) = context.uploads
    assert (nbytes, handle) == (24, stream.handle)
    np.testing.assert_array_equal(read(source, np.float32, (2, 3)), batch(2))
    ((host, made, nbytes, handle),) = context.downloads
    assert (host, nbytes, handle) == (context.outputs["y"].ctypes.data, 24, stream.handle)
    assert len({target, source, host, made}) == 4
    context.free()
    assert not device.live


def test_an_address_that_tensorrt_cannot_read_is_copied(bound, device):
    raw, context, stream = bound
    array = OnGpu(device, batch(8))
    array.shape = (2, 3)
    context.bind({"x": on_gpu(array, shift=48)})
    assert raw.addresses["x"] not in (array.pointer, array.pointer + 48)
    np.testing.assert_array_equal(run(context, stream), 2 * batch(2, 12))
    context.bind({"x": on_gpu(array)})
    assert raw.addresses["x"] == array.pointer


def test_outputs_can_be_placed_and_taken_back(bound, device):
    raw, context, stream = bound
    context.bind({"x": batch(2)})
    own = raw.addresses["y"]
    target = OnGpu(device, batch(2))
    assert context.place_outputs({"y": target.pointer})
    run(context, stream)
    np.testing.assert_array_equal(target.read(), 2 * batch(2))
    assert context.place_outputs({})
    assert raw.addresses["y"] == own


def test_an_input_of_no_elements(bound):
    _, context, stream = bound
    context.bind({"x": np.zeros((0, 3), np.float32)})
    assert run(context, stream).shape == (0, 3)
