"""Memory for outputs whose size is known only when they are there."""

import pytest

from calibrators.errors import GpuMemoryError
from tests.host_device import HostDevice
from trtint8.runtime.output_allocator import new_output_allocator


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
    assert allocator.reallocate_output_async("y", small, 60, 256, 7) == small == allocator.buffer.pointer
    assert allocator.reallocate_output("y", small, 400, 256) == allocator.buffer.pointer
    assert [buffer.nbytes for buffer in device.live] == [400]
    allocator.notify_shape("y", rtx.module.Dims([0, 4]))
    assert allocator.shape == (0, 4)
    allocator.raise_failure()
    allocator.free()
    allocator.free()
    assert not device.live


def test_an_output_that_found_no_memory_does_not_spoil_the_next_run(allocator):
    assert allocator.reallocate_output("y", 0, 2000, 256) == 0
    with pytest.raises(GpuMemoryError, match="cannot allocate 2000 bytes"):
        allocator.raise_failure()
    allocator.raise_failure()
    assert allocator.reallocate_output("y", 0, 8, 256) == allocator.buffer.pointer
    allocator.free()
