"""Outputs on a GPU that is host memory, and what other libraries see of them."""

import gc

import ml_dtypes
import numpy as np
import pytest

from calibrators.cuda.dlpack import on_gpu, take
from tests.host_device import HostDevice
from trtint8.runtime.device_array import DeviceArray

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
    np.testing.assert_array_equal(array.numpy(), DATA)
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
    np.testing.assert_array_equal(array.numpy(), data)
