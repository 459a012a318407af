"""A GPU that is host memory: fills our own CUDA interface, so that what reaches a device address can be read.

Copies are only queued, as on a real device: they happen when the stream is waited for. Code that hands out an
address without waiting shows the bytes that were there before.
"""

import contextlib
import ctypes

import numpy as np

from calibrators.errors import GpuMemoryError

FRESH, FREED = 0xCD, 0xDD


class HostBuffer:
    def __init__(self, device, nbytes):
        self.memory = (ctypes.c_uint8 * max(1, nbytes))(*[FRESH] * max(1, nbytes))
        self.pointer, self.nbytes = ctypes.addressof(self.memory), nbytes
        self.device, self.alive = device, True

    @property
    def array(self):
        return np.frombuffer(self.memory, np.uint8)[: self.nbytes]

    def free(self):
        if self.alive:
            self.alive = False
            ctypes.memset(self.pointer, FREED, len(self.memory))
            self.device.check_active()
            self.device.live.remove(self)


class HostStream:
    def __init__(self, device):
        self.device, self.queue, self.handle = device, [], 0x5EED

    def synchronize(self):
        self.device.check_active()
        while self.queue:
            self.queue.pop(0)()

    def free(self):
        self.device.check_active()
        self.freed = True


class HostDevice:
    """Fills calibrators.cuda.Device.

    Attributes:
        live: Buffers that were allocated and not freed.
        room: Bytes that may be allocated in all; None for no limit.
    """

    ordinal = 0

    def __init__(self, room=None):
        self.live, self.depth, self.room, self.uploads = [], 0, room, 0

    @contextlib.contextmanager
    def active(self):
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def check_active(self):
        assert self.depth, "a CUDA call without a current context"

    def allocate(self, nbytes):
        self.check_active()
        if self.room is not None and sum(buffer.nbytes for buffer in self.live) + nbytes > self.room:
            raise GpuMemoryError(f"cannot allocate {nbytes} bytes")
        self.live.append(HostBuffer(self, nbytes))
        return self.live[-1]

    allocate_pinned = allocate

    def new_stream(self):
        self.check_active()
        return HostStream(self)

    def upload(self, pointer, source, stream):
        self.check_active()
        assert source.flags.c_contiguous
        self.uploads += 1
        stream.queue.append(lambda: ctypes.memmove(pointer, source.ctypes.data, source.nbytes))

    def download(self, target, pointer, stream):
        self.check_active()
        stream.queue.append(lambda: ctypes.memmove(target.ctypes.data, pointer, target.nbytes))

    def memory(self):
        return 1 << 30, 1 << 31


def read(pointer, dtype, shape):
    """What stands at a device address."""
    count = int(np.prod(shape))
    data = ctypes.string_at(pointer, count * np.dtype(dtype).itemsize)
    return np.frombuffer(data, dtype).reshape(shape)
