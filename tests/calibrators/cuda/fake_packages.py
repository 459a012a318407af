"""CUDA packages that are none: they count calls and keep what is copied in host memory."""

import ctypes
from enum import Enum
from types import ModuleType, SimpleNamespace

import numpy as np


class Status(Enum):
    """What cuda-python's driver calls return first."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_VALUE = 1


def move(target, source, nbytes):
    ctypes.memmove(int(target), int(source), nbytes)


class Allocation:
    """Host memory with an address; knows how often it was freed."""

    def __init__(self, nbytes):
        self.memory, self.freed = (ctypes.c_uint8 * nbytes)(), 0

    def __int__(self):
        return ctypes.addressof(self.memory)

    def free(self):
        self.freed += 1


def cuda_python(calls, room=1 << 20):
    """A module like ``cuda.bindings.driver``.

    Args:
        calls: A list that gets the name of each call.
        room: The largest allocation in bytes.
    """
    memory = {}

    def allocate(nbytes, *_flags):
        if nbytes > room:
            return (Status.CUDA_ERROR_OUT_OF_MEMORY, None)
        made = Allocation(nbytes)
        memory[int(made)] = made
        return Status.CUDA_SUCCESS, int(made)

    def copy(target, source, nbytes, _stream):
        move(target, source, nbytes)
        return (Status.CUDA_SUCCESS,)

    functions = {
        "cuInit": lambda _flags: (Status.CUDA_SUCCESS,),
        "cuDeviceGet": lambda ordinal: (Status.CUDA_SUCCESS, f"device {ordinal}"),
        "cuDevicePrimaryCtxRetain": lambda device: (Status.CUDA_SUCCESS, f"context of {device}"),
        "cuCtxPushCurrent": lambda _context: (Status.CUDA_SUCCESS,),
        "cuCtxPopCurrent": lambda: (Status.CUDA_SUCCESS, "context"),
        "cuMemAlloc": allocate,
        "cuMemHostAlloc": allocate,
        "cuMemFree": lambda pointer: (Status.CUDA_SUCCESS, memory.pop(pointer))[:1],
        "cuMemFreeHost": lambda pointer: (Status.CUDA_SUCCESS, memory.pop(pointer))[:1],
        "cuStreamCreate": lambda _flags: (Status.CUDA_SUCCESS, 0x5EED),
        "cuStreamSynchronize": lambda _stream: (Status.CUDA_SUCCESS,),
        "cuStreamDestroy": lambda _stream: (Status.CUDA_SUCCESS,),
        "cuEventCreate": lambda _flags: (Status.CUDA_SUCCESS, "event"),
        "cuEventRecord": lambda _event, _stream: (Status.CUDA_SUCCESS,),
        "cuEventSynchronize": lambda _event: (Status.CUDA_SUCCESS,),
        "cuEventElapsedTime": lambda _earlier, _later: (Status.CUDA_SUCCESS, 1.5),
        "cuEventDestroy": lambda _event: (Status.CUDA_SUCCESS,),
        "cuMemcpyHtoDAsync": copy,
        "cuMemcpyDtoHAsync": copy,
        "cuMemcpyDtoDAsync": copy,
        "cuMemGetInfo": lambda: (Status.CUDA_SUCCESS, 100, 200),
    }

    def counted(name, function):
        def call(*arguments):
            calls.append(name)
            return function(*arguments)

        return call

    made = ModuleType("driver")
    vars(made).update({name: counted(name, function) for name, function in functions.items()})
    made.CUresult = Status
    made.CUstream_flags = SimpleNamespace(CU_STREAM_DEFAULT=0)
    made.CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0)
    made.memory = memory
    return made


def pycuda(calls, room=1 << 20):
    """A module like ``pycuda.driver``; see :func:`cuda_python`."""

    class OutOfMemoryError(Exception):
        """PyCUDA calls it MemoryError."""

    def mem_alloc(nbytes):
        if nbytes > room:
            raise OutOfMemoryError
        return Allocation(nbytes)

    def pagelocked_empty(size, dtype):
        if size > room:
            raise OutOfMemoryError
        # PyCUDA's array is a view of its allocation.
        owner = SimpleNamespace(freed=0)
        owner.free = lambda: setattr(owner, "freed", owner.freed + 1)
        memory = np.empty(size, dtype)
        owner.__dict__["__array_interface__"] = memory.__array_interface__
        owner.memory = memory
        return np.asarray(owner)

    class Event:
        def record(self, stream):
            calls.append(("record", stream))

        def synchronize(self):
            calls.append("event done")

        def time_since(self, earlier):
            return 2.5

    class Context:
        @staticmethod
        def pop():
            calls.append("pop")

    context = SimpleNamespace(push=lambda: calls.append("push"))
    made = ModuleType("pycuda.driver")
    made.MemoryError = OutOfMemoryError
    made.mem_alloc, made.pagelocked_empty = mem_alloc, pagelocked_empty
    made.Stream = lambda: SimpleNamespace(handle=0x5EED, synchronize=lambda: calls.append("stream done"))
    made.Event, made.Context = Event, Context
    made.init = lambda: calls.append("init")
    made.Device = lambda ordinal: SimpleNamespace(retain_primary_context=lambda: context)
    made.memcpy_htod_async = lambda pointer, source, _stream: move(pointer, source.ctypes.data, source.nbytes)
    made.memcpy_dtoh_async = lambda target, pointer, _stream: move(target.ctypes.data, pointer, target.nbytes)
    made.memcpy_dtod_async = lambda target, source, nbytes, _stream: move(target, source, nbytes)
    made.mem_get_info = lambda: (100, 200)
    return made
