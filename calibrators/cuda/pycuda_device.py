"""A GPU through PyCUDA."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pycuda.driver as cuda
from numpy.typing import NDArray

from calibrators.cuda.device import Active, Event, Stream, context_problem, pointer_problem
from calibrators.cuda.driver import copy, download, upload, wait_for_stream
from calibrators.errors import EngineError, GpuMemoryError

# CU_STREAM_NON_BLOCKING in cuda.h; PyCUDA has no name for it.
_NON_BLOCKING = 1

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _translated(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Lets a method raise errors of our own family in place of PyCUDA's."""

    @functools.wraps(method)
    def wrapper(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        try:
            return method(*arguments, **keywords)
        except cuda.Error as error:
            raise EngineError(
                f"the GPU failed ({error}); check the inputs, and the GPU with nvidia-smi"
            ) from error

    return wrapper


class _Buffer:
    @_translated
    def __init__(self, nbytes: int) -> None:
        try:
            self._allocation: Any = cuda.mem_alloc(max(1, nbytes))
        except cuda.MemoryError as error:
            raise GpuMemoryError(_out_of_memory(nbytes, "the GPU")) from error
        self.pointer = int(self._allocation)
        self.nbytes = nbytes

    @_translated
    def free(self) -> None:
        if self._allocation is not None:
            self._allocation.free()
            self._allocation = None


class _Pinned:
    @_translated
    def __init__(self, nbytes: int) -> None:
        try:
            self.array: NDArray[np.uint8] = cuda.pagelocked_empty(max(1, nbytes), np.uint8)[:nbytes]
        except cuda.MemoryError as error:
            raise GpuMemoryError(_out_of_memory(nbytes, "page-locked host memory")) from error
        self._allocation: Any = self.array.base.base
        self.address = self.array.ctypes.data

    @_translated
    def free(self) -> None:
        if self._allocation is not None:
            self._allocation.free()
            self._allocation = None


class _Stream:
    @_translated
    def __init__(self) -> None:
        self.raw: Any = cuda.Stream(_NON_BLOCKING)
        self.handle = int(self.raw.handle)

    @_translated
    def synchronize(self) -> None:
        self.raw.synchronize()

    def free(self) -> None:
        # PyCUDA destroys it with the object, and complains where that happens without a current context.
        self.raw = None


class _Event:
    @_translated
    def __init__(self, active: Active) -> None:
        self._active = active
        self.raw: Any = cuda.Event()

    def __del__(self) -> None:
        # PyCUDA destroys it with the object, but not in a thread where its context is neither current nor was
        # retained.
        with contextlib.suppress(Exception), self._active:
            self.raw = None

    @_translated
    def record(self, stream: Stream) -> None:
        self.raw.record(stream.raw)

    @_translated
    def synchronize(self) -> None:
        self.raw.synchronize()

    @_translated
    def reached(self) -> bool:
        return bool(self.raw.query())

    @_translated
    def milliseconds_since(self, earlier: Event) -> float:
        return float(self.raw.time_since(earlier.raw))


class PycudaDevice:
    """Fills :class:`calibrators.cuda.Device`."""

    allocate = _Buffer
    allocate_pinned = _Pinned
    new_stream = _Stream
    upload = staticmethod(upload)
    download = staticmethod(download)
    copy = staticmethod(copy)
    wait_for_stream = staticmethod(wait_for_stream)

    @_translated
    def __init__(self, ordinal: int) -> None:
        cuda.init()
        self.ordinal = ordinal
        # Never a context of our own: it would take the place of PyTorch's and CuPy's.
        context = cuda.Device(ordinal).retain_primary_context()
        self._active = Active(_translated(context.push), _translated(cuda.Context.pop))

    def active(self) -> Active:
        """See :class:`calibrators.cuda.Device`."""
        return self._active

    def new_event(self) -> _Event:
        """See :class:`calibrators.cuda.Device`."""
        return _Event(self._active)

    def context_problem(self) -> str | None:
        """See :class:`calibrators.cuda.Device`."""
        return context_problem(self.ordinal)

    def pointer_problem(self, pointer: int) -> str | None:
        """See :class:`calibrators.cuda.Device`."""
        return pointer_problem(pointer, self.ordinal)

    @_translated
    def memory(self) -> tuple[int, int]:
        """See :class:`calibrators.cuda.Device`."""
        free, total = cuda.mem_get_info()
        return int(free), int(total)


def _out_of_memory(nbytes: int, where: str) -> str:
    return f"cannot allocate {nbytes / 1e6:.1f} MB of {where}; use a smaller batch or free some memory"
