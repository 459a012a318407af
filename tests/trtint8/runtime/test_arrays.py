"""Outputs on a GPU that is host memory, and what other libraries see of them."""

import gc
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from calibrators.cuda.dlpack import on_gpu, take
from calibrators.errors import CalibrationDataError
from tests.host_device import HostDevice
from tests.trtint8.runtime.doubling import SPEC_Y, OnGpu
from trtint8.engine.file import TensorSpec
from trtint8.runtime.arrays import DeviceArray, DeviceInput, as_input, as_inputs, as_targets, stream_handle

SPEC = TensorSpec("x", "float32", (None, 3))
STREAM = 0x5EED


class OnDevice:
    """An array as PyTorch and CuPy present theirs."""

    def __init__(self, shape=(2, 3), typestr="<f4", strides=None, **more):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (4096, False),
            "strides": strides,
            "version": 3,
            **more,
        }


def test_contiguous_arrays_are_not_copied():
    array = np.zeros((2, 3), np.float32)
    assert as_input(array, SPEC, STREAM) is array


def test_others_are_made_contiguous():
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    taken = as_input(array, SPEC, STREAM)
    assert taken.flags.c_contiguous
    assert np.array_equal(taken, array)


def test_device_arrays_are_taken_by_address():
    for array in (OnDevice(), OnDevice(strides=(12, 4)), OnDevice(stream=None)):
        taken = as_input(array, SPEC, STREAM)
        assert taken == DeviceInput(4096, (2, 3), np.dtype(np.float32), array)


@pytest.mark.parametrize(
    ("interface", "producer", "told"),
    [
        ({"stream": 0x7F00}, 0x7F00, True),
        ({"stream": 1}, 1, True),
        ({"stream": None}, None, False),
        ({"version": 2}, 1, False),  # which has no stream: what the default one does is what can be known
        ({"version": 2, "stream": 5}, 5, True),
    ],
)
def test_the_stream_that_an_array_tells(interface, producer, told):
    taken = as_input(OnDevice(**interface), SPEC, STREAM)
    assert (taken.producer, taken.told) == (producer, told)


class OfTorch:
    """An array as PyTorch presents its tensors, which needs a gradient."""

    requires_grad = True

    def __init__(self, array):
        self.array, self.streams = array, []

    def detach(self):
        detached = OfTorch(self.array)
        detached.requires_grad, detached.streams = False, self.streams
        return detached

    def __dlpack__(self, *, stream=None):
        assert not self.requires_grad, "Can't export tensors that require gradient"
        self.streams.append(stream)
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return 2, 0

    @property
    def __cuda_array_interface__(self):
        raise TypeError("no interface for this type")


def test_dlpack_is_asked_for_our_stream():
    array = np.zeros((2, 3), np.float32)
    tensor = OfTorch(array)
    taken = as_input(tensor, SPEC, STREAM)
    assert (taken.pointer, taken.shape, taken.dtype) == (array.ctypes.data, (2, 3), np.float32)
    assert (tensor.streams, taken.producer, taken.told) == ([STREAM], None, False)
    assert not taken.source.requires_grad and taken.source.array is array


class PageLocked(OfTorch):
    """A tensor of PyTorch in page-locked host memory."""

    requires_grad = False

    def __dlpack__(self, *, stream=None):
        assert stream in (None, -1), "stream should be None on cpu."
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return 3, 0

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_page_locked_tensors_are_on_the_host():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert as_input(PageLocked(array), SPEC, STREAM) is array
    assert_array_equal(as_input(PageLocked(array.T.copy().T), SPEC, STREAM), array)


class OfCupy(OfTorch):
    """An array as CuPy presents it: both protocols, and the second one tells the current stream."""

    requires_grad = False
    stream = None

    @property
    def __cuda_array_interface__(self):
        address = self.array.ctypes.data
        return {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (address, False),
            "stream": self.stream,
            "version": 3,
        }


def test_what_tells_a_stream_goes_before_what_asks_for_one():
    array = OfCupy(np.zeros((2, 3), np.float32))
    assert not as_input(array, SPEC, STREAM).told and array.streams == [STREAM]
    array.stream = 0x7F00
    taken = as_input(array, SPEC, STREAM)
    assert (taken.producer, taken.told, array.streams) == (0x7F00, True, [STREAM])
    assert taken.source is None


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 2), np.float32).T, "the GPU array for input 'x' is not contiguous"),
        (
            np.zeros((2, 3), np.complex64),
            r"the GPU array for input 'x' cannot be taken \(NumPy has no type for",
        ),
        (np.zeros((2, 3), np.float64), "takes float32 but was given float64"),
    ],
)
def test_what_dlpack_gives_and_does_not_fit(array, message):
    with pytest.raises(CalibrationDataError, match=message):
        as_input(OfTorch(array), SPEC, STREAM)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 3)), "'x'.*'float32'"),
        (OnDevice(typestr="<f2"), "takes float32 but was given float16"),
        (np.zeros((2, 4), np.float32), "given 2x4"),
        (np.zeros(3, np.float32), r"takes shape \?x3 but was given 3;"),
        (OnDevice(shape=(2, 2)), "given 2x2"),
        (OnDevice(strides=(4, 8)), "the GPU array for input 'x' is not contiguous"),
        (OnDevice(mask=OnDevice()), "the GPU array for input 'x' has a mask"),
    ],
)
def test_what_does_not_fit(value, message):
    with pytest.raises(CalibrationDataError, match=message):
        as_input(value, SPEC, STREAM)


class OnHostInBf16:
    """A tensor of PyTorch on the host, of a type that NumPy lacks."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            OnHostInBf16(),
            r"^a OnHostInBf16 for input 'x' does not become a NumPy array "
            r"\(TypeError: Got unsupported ScalarType BFloat16\); give a NumPy array$",
        ),
        ([[1.0], [1.0, 2.0]], "^a list for input 'x' does not become a NumPy array"),
    ],
)
def test_what_becomes_no_numpy_array(value, message):
    with pytest.raises(CalibrationDataError, match=message):
        as_input(value, SPEC, STREAM)


@pytest.mark.parametrize(("pointer", "aligned"), [(4096, True), (4096 + 16, False), (0, False)])
def test_where_tensorrt_can_read_in_place(pointer, aligned):
    array = DeviceInput(pointer, (2, 3), np.dtype(np.float32), None)
    assert (array.aligned, array.nbytes) == (aligned, 24)


def test_empty_arrays():
    host = as_input(np.zeros((0, 3), np.float32), SPEC, STREAM)
    device = as_input(OnDevice(shape=(0, 3), data=(0, False), strides=(4, 4)), SPEC, STREAM)
    assert host.nbytes == device.nbytes == 0
    assert host.shape == device.shape == (0, 3)


SIZE = TensorSpec("size", "int64", (2,))


def test_a_whole_feed():
    images, size = np.zeros((2, 3), np.float32), np.array([4, 5])
    assert list(as_inputs({"size": size, "x": images}, (SPEC, SIZE), {"size"}, STREAM)) == ["x", "size"]


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "'x'.*'size'"),
        ({"x": 0, "size": 0, "y": 0}, "'y'.*'x'.*'size'"),
        ({"x": OnDevice(), "size": OnDevice(shape=(2,), typestr="<i8")}, "'size'"),
    ],
)
def test_feeds_that_do_not_fit(feeds, message):
    with pytest.raises(CalibrationDataError, match=message):
        as_inputs(feeds, (SPEC, SIZE), {"size"}, STREAM)


def test_scalars():
    assert as_input(np.float32(1), TensorSpec("s", "float32", ()), STREAM).shape == ()


def test_arrays_of_sixteen_and_eight_bits_that_numpy_lacks():
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        spec = TensorSpec("x", np.dtype(dtype).name, (None, 3))
        array = np.ones((2, 3), dtype)
        assert as_input(array, spec, STREAM) is array
        with pytest.raises(CalibrationDataError, match=f"takes {spec.dtype} but was given float32"):
            as_input(np.ones((2, 3), np.float32), spec, STREAM)


DATA = np.arange(6, dtype=np.float16).reshape(2, 3)
OWN, OTHER = 0x7F00, 0x7F01


@pytest.fixture
def device():
    return HostDevice()


@pytest.fixture
def make(device):
    def array(stream=None):
        with device.active():
            buffer = device.allocate(DATA.nbytes)
        buffer.array[:] = DATA.view(np.uint8).ravel()
        return DeviceArray((2, 3), DATA.dtype, buffer, device, stream)

    return array


def test_the_array_interface(make, device):
    for stream in (None, OWN):
        array = make(stream)
        assert array.__cuda_array_interface__ == {
            "shape": (2, 3),
            "typestr": "<f2",
            "data": (array.buffer.pointer, False),
            "strides": None,
            "stream": stream,
            "version": 3,
        }
    del array
    assert not device.live


@pytest.mark.parametrize(
    ("asked", "waits"), [(OTHER, [(OTHER, OWN)]), (None, [(1, OWN)]), (OWN, []), (-1, [])]
)
def test_who_takes_it_waits_for_its_values(make, device, asked, waits):
    array = make(OWN)
    assert on_gpu(array) and array.__dlpack_device__() == (2, 0)
    array.__dlpack__(stream=asked, max_version=(1, 0), dl_device=(2, 0), copy=None)
    assert device.waits == waits


@pytest.mark.parametrize("options", [{"copy": True}, {"dl_device": (2, 1)}, {"dl_device": (1, 0)}])
def test_copies_and_other_devices_are_refused(make, device, options):
    array = make(OWN)
    with pytest.raises(BufferError, match=r"gives its own memory and no copy; .* or call its numpy\(\)"):
        array.__dlpack__(stream=OTHER, **options)
    assert device.waits == []


def test_values_that_are_complete_need_no_order(make, device):
    taken = take(make(), OTHER)
    assert device.waits == []
    # The capsule keeps the memory.
    assert (taken.shape, taken.dtype) == ((2, 3), np.float16) and device.live
    del taken
    gc.collect()
    assert not device.live


@pytest.mark.parametrize("stream", [None, OWN])
def test_a_copy_on_the_host(make, device, stream):
    array = make(stream)
    assert_array_equal(array.numpy(), DATA)
    assert [producing for _, producing in device.waits] == ([OWN] if stream else [])
    array.free()
    assert not device.live


def test_types_that_the_array_interface_cannot_name(device):
    data = np.ones((2, 3), ml_dtypes.bfloat16)
    with device.active():
        buffer = device.allocate(data.nbytes)
    buffer.array[:] = data.view(np.uint8).ravel()
    array = DeviceArray((2, 3), data.dtype, buffer, device)
    assert not hasattr(array, "__cuda_array_interface__")
    taken = take(array, OTHER)
    assert (taken.pointer, taken.dtype) == (buffer.pointer, data.dtype)
    assert_array_equal(array.numpy(), data)


OUTPUTS_STREAM = 0x7F00


def test_arrays_on_the_host_and_on_the_gpu():
    host, device = np.zeros((2, 3), np.float32), OnGpu(HostDevice(), np.zeros((2, 3), np.float32))
    targets = as_targets({"y": host}, (SPEC_Y,), OUTPUTS_STREAM)
    assert targets.host["y"] is host and not targets.device
    targets = as_targets({"y": device}, (SPEC_Y,), OUTPUTS_STREAM)
    assert targets.device["y"].pointer == device.pointer and not targets.host
    targets.check("y", (2, 3))
    with pytest.raises(CalibrationDataError, match=r"'y'.*shape 4x3.*it 2x3"):
        targets.check("y", (4, 3))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"z": np.zeros((2, 3), np.float32)}, "'z'.*'y'"),
        ({"y": np.zeros((3, 2), np.float32).T}, "the array for output 'y' is read-only or not contiguous"),
        ({"y": np.broadcast_to(np.float32(0), (2, 3))}, "for output 'y' is read-only or not contiguous"),
        ({"y": np.zeros((2, 3))}, "output 'y' takes float32 but was given float64"),
        ({"y": np.zeros((2, 4), np.float32)}, "'y'.*given 2x4"),
        ({"y": np.zeros((2, 3), np.float32).tolist()}, "output 'y' takes float32 but was given float64"),
        ({"y": type("input_array", (), {"__array__": None})()}, "input_array.*'y'"),
        ({"y": memoryview(np.zeros((2, 3), np.float32))}, "a memoryview for output 'y' cannot be written to"),
    ],
)
def test_outputs_what_does_not_fit(outputs, message):
    with pytest.raises(CalibrationDataError, match=message):
        as_targets(outputs, (SPEC_Y,), OUTPUTS_STREAM)


class OfCudaCore:
    def __cuda_stream__(self):
        return 0, 0x7F00


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0x7F00, 0x7F00),
        (1, 1),
        (0, 1),  # the legacy default stream by its other number
        (OfCudaCore(), 0x7F00),
        (SimpleNamespace(cuda_stream=0x7F01), 0x7F01),
        (SimpleNamespace(cuda_stream=0), 1),
        (SimpleNamespace(ptr=0x7F02), 0x7F02),
        (SimpleNamespace(handle=0x7F03), 0x7F03),
    ],
)
def test_streams_of_every_library(stream, handle):
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", ["stream", None, -1, SimpleNamespace(handle="x")])
def test_what_is_no_stream(stream):
    with pytest.raises(CalibrationDataError, match="is no CUDA stream; give one of PyTorch, CuPy or PyCUDA"):
        stream_handle(stream)
