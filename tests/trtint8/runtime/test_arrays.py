import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from tests.host_device import HostDevice
from trtint8.engine.file import TensorSpec
from trtint8.runtime.arrays import DeviceArray, DeviceInput, as_input, as_inputs

SPEC = TensorSpec("x", "float32", (None, 3))


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
    assert as_input(array, SPEC) is array


def test_others_are_made_contiguous():
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    taken = as_input(array, SPEC)
    assert taken.flags.c_contiguous
    assert np.array_equal(taken, array)


def test_device_arrays_are_taken_by_address():
    for array in (OnDevice(), OnDevice(strides=(12, 4)), OnDevice(stream=None), OnDevice(stream=1)):
        taken = as_input(array, SPEC)
        assert taken == DeviceInput(4096, (2, 3), np.dtype(np.float32), array)


def test_a_producers_stream_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr("trtint8.runtime.arrays.synchronize_stream", waited.append)
    as_input(OnDevice(stream=2), SPEC)
    as_input(OnDevice(stream=0x7F00), SPEC)
    assert waited == [2, 0x7F00]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            np.zeros((2, 3)),
            r"input 'x' takes float32 but was given float64; convert it with astype\('float32'\)",
        ),
        (OnDevice(typestr="<f2"), "takes float32 but was given float16"),
        (np.zeros((2, 4), np.float32), r"takes shape \?x3 but was given 2x4"),
        (np.zeros(3, np.float32), r"takes shape \?x3 but was given 3;"),
        (OnDevice(shape=(2, 2)), r"takes shape \?x3 but was given 2x2"),
        (OnDevice(strides=(4, 8)), "the GPU array for input 'x' is not contiguous"),
        (OnDevice(mask=OnDevice()), "the GPU array for input 'x' has a mask"),
    ],
)
def test_what_does_not_fit(value, message):
    with pytest.raises(CalibrationDataError, match=message):
        as_input(value, SPEC)


@pytest.mark.parametrize(("pointer", "aligned"), [(4096, True), (4096 + 16, False), (0, False)])
def test_where_tensorrt_can_read_in_place(pointer, aligned):
    array = DeviceInput(pointer, (2, 3), np.dtype(np.float32), None)
    assert (array.aligned, array.nbytes) == (aligned, 24)


def test_empty_arrays():
    host = as_input(np.zeros((0, 3), np.float32), SPEC)
    device = as_input(OnDevice(shape=(0, 3), data=(0, False), strides=(4, 4)), SPEC)
    assert host.nbytes == device.nbytes == 0
    assert host.shape == device.shape == (0, 3)


SIZE = TensorSpec("size", "int64", (2,))


def test_a_whole_feed():
    images, size = np.zeros((2, 3), np.float32), np.array([4, 5])
    assert list(as_inputs({"size": size, "x": images}, (SPEC, SIZE), {"size"})) == ["x", "size"]


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "^the engine needs the input 'x'; it takes 'x', 'size'$"),
        ({"x": 0, "size": 0, "y": 0}, "^the engine has no input 'y'; it takes 'x', 'size'$"),
        (
            {"x": OnDevice(), "size": OnDevice(shape=(2,), typestr="<i8")},
            "^input 'size' decides shapes and is read on the host, but was given on the GPU;",
        ),
    ],
)
def test_feeds_that_do_not_fit(feeds, message):
    with pytest.raises(CalibrationDataError, match=message):
        as_inputs(feeds, (SPEC, SIZE), {"size"})


def test_scalars():
    assert as_input(np.float32(1), TensorSpec("s", "float32", ())).shape == ()


def test_device_arrays_of_ours():
    device, data = HostDevice(), np.arange(6, dtype=np.float16).reshape(2, 3)
    with device.active():
        buffer = device.allocate(data.nbytes)
    buffer.array[:] = data.view(np.uint8).ravel()
    array = DeviceArray((2, 3), data.dtype, buffer, device)
    assert np.array_equal(array.numpy(), data)
    assert array.__cuda_array_interface__ == {
        "shape": (2, 3),
        "typestr": "<f2",
        "data": (buffer.pointer, False),
        "strides": None,
        "stream": None,
        "version": 3,
    }
    assert device.live
    del array
    assert not device.live
