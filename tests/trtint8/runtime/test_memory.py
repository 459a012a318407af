import numpy as np

from tests.host_device import HostDevice
from trtint8.runtime.memory import TensorMemory


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
