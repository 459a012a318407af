"""A GPU through PyCUDA."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pycuda.driver as cuda
from numpy.typing import NDArray

from calibrators.cuda.context import pointer_problem
from calibrators.cuda.device import Event, Stream
from calibrators.errors import GpuMemoryError


class _Buffer:
    def __init__(self, nbytes: int) -> None:
        try:
            self._allocation: Any = cuda.mem_alloc(max(1, nbytes))
        except cuda.MemoryError as error:
            raise GpuMemoryError(_out_of_memory(nbytes, "the GPU")) from error
        self.pointer = int(self._allocation)
        self.nbytes = nbytes

    def free(self) -> None:
        if self._allocation is not None:
            self._allocation.free()
            self._allocation = None


class _Pinned:
    def __init__(self, nbytes: int) -> None:
        try:
            self.array: NDArray[np.uint8] = cuda.pagelocked_empty(max(1, nbytes), np.uint8)[:nbytes]
        except cuda.MemoryError as error:
            raise GpuMemoryError(_out_of_memory(nbytes, "page-locked host memory")) from error
        self._allocation: Any = self.array.base.base

    def free(self) -> None:
        if self._allocation is not None:
            self._allocation.free()
            self._allocation = None


class _Stream:
    def __init__(self) -> None:
        self.raw: Any = cuda.Stream()
        self.handle = int(self.raw.handle)

    def synchronize(self) -> None:
        self.raw.synchronize()

    def free(self) -> None:
        # PyCUDA destroys it with the object, and complains where that happens without a current context.
        self.raw = None


class _Event:
    def __init__(self) -> None:
        self.raw = cuda.Event()

    def record(self, stream: Stream) -> None:
        self.raw.record(stream.raw)

    def synchronize(self) -> None:
        self.raw.synchronize()

    def milliseconds_since(self, earlier: Event) -> float:
        return float(self.raw.time_since(earlier.raw))


class PycudaDevice:
    """Fills :class:`calibrators.cuda.Device`."""

    allocate = _Buffer
    allocate_pinned = _Pinned
    new_stream = _Stream
    new_event = _Event

    def __init__(self, ordinal: int) -> None:
        cuda.init()
        self.ordinal = ordinal
        # Never a context of our own: it would take the place of PyTorch's and CuPy's.
        self._context = cuda.Device(ordinal).retain_primary_context()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """See :class:`calibrators.cuda.Device`."""
        self._context.push()
        try:
            yield
        finally:
            cuda.Context.pop()

    def upload(self, pointer: int, source: NDArray[Any], stream: Stream) -> None:
        """See :class:`calibrators.cuda.Device`."""
        if source.nbytes:
            cuda.memcpy_htod_async(pointer, source, stream.raw)

    def download(self, target: NDArray[Any], pointer: int, stream: Stream) -> None:
        """See :class:`calibrators.cuda.Device`."""
        if target.nbytes:
            cuda.memcpy_dtoh_async(target, pointer, stream.raw)

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """See :class:`calibrators.cuda.Device`."""
        if nbytes:
            cuda.memcpy_dtod_async(target, source, nbytes, stream.raw)

    def pointer_problem(self, pointer: int) -> str | None:
        """See :class:`calibrators.cuda.Device`."""
        return pointer_problem(pointer, self.ordinal)

    def memory(self) -> tuple[int, int]:
        """See :class:`calibrators.cuda.Device`."""
        free, total = cuda.mem_get_info()
        return int(free), int(total)


def _out_of_memory(nbytes: int, where: str) -> str:
    return f"cannot allocate {nbytes / 1e6:.1f} MB of {where}; use a smaller batch or free some memory"
