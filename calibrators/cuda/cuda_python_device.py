"""A GPU through cuda-python, where PyCUDA is not installed."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from calibrators.cuda.active import Active
from calibrators.cuda.context import context_problem, pointer_problem
from calibrators.cuda.device import Event, Stream
from calibrators.cuda.queueing import copy, download, upload, wait_for_stream
from calibrators.errors import EngineError, GpuMemoryError


class _Buffer:
    def __init__(self, nbytes: int) -> None:
        self.pointer = int(_checked(driver.cuMemAlloc(max(1, nbytes)), nbytes))
        self.nbytes = nbytes

    def free(self) -> None:
        if self.pointer:
            _checked(driver.cuMemFree(self.pointer))
            self.pointer = 0


class _Pinned:
    def __init__(self, nbytes: int) -> None:
        self.address = int(_checked(driver.cuMemHostAlloc(max(1, nbytes), 0), nbytes))
        memory = (ctypes.c_uint8 * max(1, nbytes)).from_address(self.address)
        self.array: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)[:nbytes]

    def free(self) -> None:
        if self.address:
            _checked(driver.cuMemFreeHost(self.address))
            self.address = 0


class _Stream:
    def __init__(self) -> None:
        self.raw: Any = _checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.handle = int(self.raw)

    def synchronize(self) -> None:
        _checked(driver.cuStreamSynchronize(self.raw))

    def free(self) -> None:
        if self.raw is not None:
            _checked(driver.cuStreamDestroy(self.raw))
            self.raw = None


class _Event:
    def __init__(self) -> None:
        self.raw = _checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DEFAULT))

    def record(self, stream: Stream) -> None:
        _checked(driver.cuEventRecord(self.raw, stream.raw))

    def synchronize(self) -> None:
        _checked(driver.cuEventSynchronize(self.raw))

    def reached(self) -> bool:
        answer = driver.cuEventQuery(self.raw)
        if answer[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _checked(answer)
        return True

    def milliseconds_since(self, earlier: Event) -> float:
        return float(_checked(driver.cuEventElapsedTime(earlier.raw, self.raw)))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            driver.cuEventDestroy(self.raw)


class CudaPythonDevice:
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
        _checked(driver.cuInit(0))
        self.ordinal = ordinal
        # Never a context of our own: it would take the place of PyTorch's and CuPy's.
        context = _checked(driver.cuDevicePrimaryCtxRetain(_checked(driver.cuDeviceGet(ordinal))))
        self._active = Active(
            lambda: _checked(driver.cuCtxPushCurrent(context)), lambda: _checked(driver.cuCtxPopCurrent())
        )

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
        free, total = _checked(driver.cuMemGetInfo())
        return int(free), int(total)


def _checked(answer: tuple[Any, ...], nbytes: int | None = None) -> Any:
    """A driver call's results without its status.

    Raises:
        GpuMemoryError: An allocation of ``nbytes`` failed.
        EngineError: Any other failure.
    """
    status, *results = answer
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise GpuMemoryError(
            f"cannot allocate {(nbytes or 0) / 1e6:.1f} MB; use a smaller batch or free some memory"
        )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise EngineError(f"the GPU failed with {status.name}; check the inputs, and the GPU with nvidia-smi")
    return results[0] if len(results) == 1 else tuple(results)
