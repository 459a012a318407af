"""A GPU through PyCUDA."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pycuda.driver as cuda

from calibrators.cuda.device import Active, Buffer, Device, Event, PinnedBuffer, Stream, out_of_memory
from calibrators.errors import EngineError

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


@_translated
def _allocated(allocate: Callable[..., Any], nbytes: int, where: str, *kind: type) -> Any:
    try:
        return allocate(max(1, nbytes), *kind)
    except cuda.MemoryError as error:
        raise out_of_memory(nbytes, where) from error


class _Memory:
    _allocation: Any

    @_translated
    def free(self) -> None:
        if self._allocation is not None:
            self._allocation.free()
            self._allocation = None


class _Buffer(_Memory, Buffer):
    def __init__(self, nbytes: int) -> None:
        self._allocation = _allocated(cuda.mem_alloc, nbytes, "the GPU")
        self.pointer = int(self._allocation)
        self.nbytes = nbytes


class _Pinned(_Memory, PinnedBuffer):
    def __init__(self, nbytes: int) -> None:
        where = "page-locked host memory"
        self.array = _allocated(cuda.pagelocked_empty, nbytes, where, np.uint8)[:nbytes]
        self._allocation = self.array.base.base  # type: ignore[union-attr]  # a view has a base
        self.address = self.array.ctypes.data


class _Stream(Stream):
    @_translated
    def __init__(self) -> None:
        self.raw = cuda.Stream(_NON_BLOCKING)
        self.handle = int(self.raw.handle)

    @_translated
    def synchronize(self) -> None:
        self.raw.synchronize()

    def free(self) -> None:
        # PyCUDA destroys it with the object, and complains where that happens without a current context.
        self.raw = None


class _Event(Event):
    @_translated
    def __init__(self, active: Active) -> None:
        self._active = active
        self.raw = cuda.Event()

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


class PycudaDevice(Device):
    """The same as its base, and PyCUDA's own objects, for programs that use PyCUDA as well."""

    @_translated
    def __init__(self, ordinal: int) -> None:
        cuda.init()
        self.ordinal = ordinal
        context = cuda.Device(ordinal).retain_primary_context()
        self._active = Active(_translated(context.push), _translated(cuda.Context.pop))

    def allocate(self, nbytes: int) -> Buffer:
        """See :class:`calibrators.cuda.Device`."""
        return _Buffer(nbytes)

    def allocate_pinned(self, nbytes: int) -> PinnedBuffer:
        """See :class:`calibrators.cuda.Device`."""
        return _Pinned(nbytes)

    def new_stream(self) -> Stream:
        """See :class:`calibrators.cuda.Device`."""
        return _Stream()

    def new_event(self) -> Event:
        """See :class:`calibrators.cuda.Device`."""
        return _Event(self._active)

    @_translated
    def memory(self) -> tuple[int, int]:
        """See :class:`calibrators.cuda.Device`."""
        free, total = cuda.mem_get_info()
        return int(free), int(total)
