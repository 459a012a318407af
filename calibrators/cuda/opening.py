"""Opens a GPU: through PyCUDA where that is installed, else through NVIDIA's driver by itself.

A GPU through NVIDIA's driver itself, which needs no Python package for CUDA and no toolkit.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda.device import (
    Active,
    Device,
    Event,
    Stream,
    context_problem,
    pointer_problem,
    retained_context,
)
from calibrators.cuda.driver import (
    call,
    check_ordinal,
    copy,
    download,
    failure,
    prepared,
    share_driver,
    status_of,
    upload,
    wait_for_stream,
)
from calibrators.errors import GpuMemoryError


@functools.cache
def open_device(ordinal: int = 0) -> Device:
    """A GPU by its index.

    Args:
        ordinal: The GPU's index in CUDA's order.

    Returns:
        The device, the same one for every call: its primary context stays retained.

    Raises:
        GpuUnavailableError: There is no driver, no GPU, or none of that index.
        EngineError: The driver cannot use the GPU.
    """
    check_ordinal(ordinal)
    # Where PyCUDA is used in the process, contexts must be entered through it: it keeps a stack of its own.
    if find_spec("pycuda") is not None:
        # A PyCUDA that was built on a machine without a driver does not name the library that it needs.
        share_driver()
        # Nobody uses one that cannot be imported, and the driver does without.
        with contextlib.suppress(ImportError):
            from calibrators.cuda.pycuda_device import PycudaDevice

            return PycudaDevice(ordinal)
    return DriverDevice(ordinal)


# Values in cuda.h.
_NON_BLOCKING = ctypes.c_uint(1)
_NO_FLAGS = ctypes.c_uint(0)
_OUT_OF_MEMORY = 2
_NOT_READY = 600


class _Buffer:
    def __init__(self, nbytes: int) -> None:
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t(max(1, nbytes))
        _check(status_of("cuMemAlloc_v2", ctypes.byref(pointer), size), "cuMemAlloc", nbytes, "the GPU")
        self.pointer = pointer.value
        self.nbytes = nbytes

    def free(self) -> None:
        if self.pointer:
            call("cuMemFree_v2", ctypes.c_uint64(self.pointer))
            self.pointer = 0


class _Pinned:
    def __init__(self, nbytes: int) -> None:
        address, size = ctypes.c_void_p(), ctypes.c_size_t(max(1, nbytes))
        status = status_of("cuMemHostAlloc", ctypes.byref(address), size, _NO_FLAGS)
        _check(status, "cuMemHostAlloc", nbytes, "page-locked host memory")
        self.address = address.value or 0
        memory = (ctypes.c_uint8 * max(1, nbytes)).from_address(self.address)
        self.array: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)[:nbytes]

    def free(self) -> None:
        if self.address:
            call("cuMemFreeHost", ctypes.c_void_p(self.address))
            self.address = 0


class _Stream:
    def __init__(self) -> None:
        stream = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        self.raw = self.handle = stream.value or 0

    def synchronize(self) -> None:
        call("cuStreamSynchronize", ctypes.c_void_p(self.handle))

    def free(self) -> None:
        if self.handle:
            call("cuStreamDestroy_v2", ctypes.c_void_p(self.handle))
            self.raw = self.handle = 0


class _Event:
    def __init__(self) -> None:
        event = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(event), _NO_FLAGS)
        self.raw = event.value or 0

    def record(self, stream: Stream) -> None:
        call("cuEventRecord", ctypes.c_void_p(self.raw), ctypes.c_void_p(stream.handle))

    def synchronize(self) -> None:
        call("cuEventSynchronize", ctypes.c_void_p(self.raw))

    def reached(self) -> bool:
        status = status_of("cuEventQuery", ctypes.c_void_p(self.raw))
        if status == _NOT_READY:
            return False
        _check(status, "cuEventQuery")
        return True

    def milliseconds_since(self, earlier: Event) -> float:
        milliseconds = ctypes.c_float()
        marks = ctypes.c_void_p(earlier.raw), ctypes.c_void_p(self.raw)
        call("cuEventElapsedTime", ctypes.byref(milliseconds), *marks)
        return milliseconds.value

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            call("cuEventDestroy_v2", ctypes.c_void_p(self.raw))


class DriverDevice:
    """Fills :class:`calibrators.cuda.Device`."""

    allocate = _Buffer
    allocate_pinned = _Pinned
    new_stream = _Stream
    new_event = _Event
    upload = staticmethod(upload)
    download = staticmethod(download)
    copy = staticmethod(copy)
    wait_for_stream = staticmethod(wait_for_stream)

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        # Never a context of our own: it would take the place of PyTorch's and CuPy's.
        context = retained_context(ordinal)
        push = prepared("cuCtxPushCurrent_v2", ctypes.c_void_p)
        pop = prepared("cuCtxPopCurrent_v2", ctypes.c_void_p)
        self._active = Active(lambda: push(context), lambda: pop(ctypes.byref(ctypes.c_void_p())))

    def active(self) -> Active:
        """See :class:`calibrators.cuda.Device`."""
        return self._active

    def context_problem(self) -> str | None:
        """See :class:`calibrators.cuda.Device`."""
        return context_problem(self.ordinal)

    def pointer_problem(self, pointer: int) -> str | None:
        """See :class:`calibrators.cuda.Device`."""
        return pointer_problem(pointer, self.ordinal)

    def memory(self) -> tuple[int, int]:
        """See :class:`calibrators.cuda.Device`."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


def _check(status: int, function: str, nbytes: int = 0, where: str = "") -> None:
    """Raises the error of a call that failed.

    Raises:
        GpuMemoryError: There is no room for ``nbytes``.
        EngineError: Any other failure.
    """
    if status == _OUT_OF_MEMORY and where:
        raise GpuMemoryError(
            f"cannot allocate {nbytes / 1e6:.1f} MB of {where}; use a smaller batch or free some memory"
        )
    if status:
        raise failure(function, status)
