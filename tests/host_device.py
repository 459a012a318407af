"""A GPU that is host memory: fills our own CUDA interface, so that what reaches a device address can be read.

Copies are only queued, as on a real device: they happen when the stream is waited for. Code that hands out an
address without waiting shows the bytes that were there before.
"""

import ctypes

import numpy as np

from calibrators.cuda.device import Active
from calibrators.errors import GpuMemoryError

FRESH, FREED = 0xCD, 0xDD


class HostBuffer:
    def __init__(self, device, nbytes):
        owner = (ctypes.c_uint8 * (nbytes + 256))()
        self.pointer = self.address = -(-ctypes.addressof(owner) // 256) * 256  # as CUDA aligns it
        self.memory = (ctypes.c_uint8 * max(1, nbytes)).from_buffer(
            owner, self.pointer - ctypes.addressof(owner)
        )
        ctypes.memset(self.pointer, FRESH, len(self.memory))
        self.nbytes = nbytes
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
    def __init__(self, device, handle):
        self.device, self.queue, self.handle = device, [], handle

    def synchronize(self):
        self.device.check_active()
        while self.queue:
            self.queue.pop(0)()

    def free(self):
        self.device.check_active()
        self.freed = True


class HostEvent:
    def record(self, stream):
        self.stream, self.left = stream, True
        stream.queue.append(self._reach)

    def _reach(self):
        self.left = False

    def synchronize(self):
        self.stream.device.check_active()
        while self.left:
            self.stream.queue.pop(0)()

    def reached(self):
        return not self.left


class HostDevice:
    """Fills calibrators.cuda.Device.

    Attributes:
        live: Buffers that were allocated and not freed.
        streams: Handle to stream.
        waits: Handles of a stream that waits and of the one that it waits for, in order.
        problems: Address to why it cannot be used.
        elsewhere: Why work in this thread cannot use the memory; None where it can.
        room: Bytes that may be allocated in all; None for no limit.
    """

    ordinal = 0

    def __init__(self, room=None):
        self.live, self.depth, self.room, self.uploads = [], 0, room, 0
        self.streams, self.waits, self.problems, self.elsewhere = {}, [], {}, None

    def active(self):
        return Active(self._push, self._pop)

    def _push(self):
        self.depth += 1

    def _pop(self):
        self.depth -= 1

    def context_problem(self):
        return self.elsewhere

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
        stream = HostStream(self, 0x5EED + len(self.streams))
        self.streams[stream.handle] = stream
        return stream

    def new_event(self):
        self.check_active()
        return HostEvent()

    def upload(self, target, source, nbytes, stream):
        self.uploads += 1
        self.copy(target, source, nbytes, stream)

    def download(self, target, source, nbytes, stream):
        self.copy(target, source, nbytes, stream)

    def copy(self, target, source, nbytes, stream):
        self.check_active()
        self.streams[stream].queue.append(lambda: ctypes.memmove(target, source, nbytes))

    def wait_for_stream(self, waiting, producing):
        """Notes the order; what another library has queued is done before."""
        self.check_active()
        self.waits.append((waiting, producing))

    def pointer_problem(self, pointer):
        return self.problems.get(pointer)

    def memory(self):
        return 1 << 30, 1 << 31


def read(pointer, dtype, shape):
    """What stands at a device address."""
    count = int(np.prod(shape))
    data = ctypes.string_at(pointer, count * np.dtype(dtype).itemsize)
    return np.frombuffer(data, dtype).reshape(shape)
