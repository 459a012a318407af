"""What the rest of the project needs of a GPU: memory, streams, contexts and graphs.

A GPU here is reached through NVIDIA's driver by itself, which needs no Python package for CUDA and no
toolkit; ``pycuda_device.py`` beside it reaches it through PyCUDA. Everything happens in the device's primary
context. CUDA's runtime, PyTorch and CuPy use the same one, so pointers pass between them and us. Other
contexts, like that of ``pycuda.autoinit``, cannot use its memory. Graphs are made through the driver, because
PyCUDA has no calls for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda.driver import (
    call,
    check_ordinal,
    copy,
    download,
    failure,
    prepared,
    status_of,
    upload,
    wait_for_stream,
)
from calibrators.errors import EngineError, GpuMemoryError


class Active:
    """A context manager that keeps no state, so that one object serves all blocks of all threads.

    Args:
        push: Makes the context current in this thread.
        pop: Makes the context current that was before.
    """

    __slots__ = ("_pop", "_push")

    def __init__(self, push: Callable[[], object], pop: Callable[[], object]) -> None:
        self._push, self._pop = push, pop

    def __enter__(self) -> None:
        self._push()

    def __exit__(self, *_error: object) -> None:
        self._pop()


# Values in cuda.h.
_NON_BLOCKING = ctypes.c_uint(1)
_NO_FLAGS = ctypes.c_uint(0)
_OUT_OF_MEMORY = 2
_NOT_READY = 600


class Buffer:
    """Memory on the GPU.

    Attributes:
        pointer: Its device address.
        nbytes: Its size.
    """

    def __init__(self, nbytes: int) -> None:
        self.pointer = _allocated("cuMemAlloc_v2", ctypes.c_uint64(), nbytes, "the GPU")
        self.nbytes = nbytes

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        if self.pointer:
            call("cuMemFree_v2", ctypes.c_uint64(self.pointer))
            self.pointer = 0


class PinnedBuffer:
    """Page-locked host memory, from which copies run beside computation.

    Attributes:
        address: Its host address.
        array: The memory as bytes; not to be touched after :meth:`free`.
    """

    def __init__(self, nbytes: int) -> None:
        where = "page-locked host memory"
        self.address = _allocated("cuMemHostAlloc", ctypes.c_void_p(), nbytes, where, _NO_FLAGS)
        memory = (ctypes.c_uint8 * max(1, nbytes)).from_address(self.address)
        self.array: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)[:nbytes]

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        if self.address:
            call("cuMemFreeHost", ctypes.c_void_p(self.address))
            self.address = 0


def _allocated(function: str, address: Any, nbytes: int, where: str, *flags: object) -> int:
    """Allocates memory, and returns its address.

    Raises:
        GpuMemoryError: There is no room.
        EngineError: Any other failure.
    """
    status = status_of(function, ctypes.byref(address), ctypes.c_size_t(max(1, nbytes)), *flags)
    if status == _OUT_OF_MEMORY:
        raise out_of_memory(nbytes, where)
    if status:
        raise failure(function, status)
    return address.value or 0


def out_of_memory(nbytes: int, where: str) -> GpuMemoryError:
    """The error for memory that there is no room for."""
    return GpuMemoryError(
        f"cannot allocate {nbytes / 1e6:.1f} MB of {where}; use a smaller batch or free some memory"
    )


class Stream:
    """A queue of work on the GPU that waits for no other one unless it is asked to.

    It is a non-blocking stream: work on the legacy default stream, where PyTorch's default is, neither waits
    for it nor is waited for. So it can be captured as a graph while other threads use that one.

    Attributes:
        raw: What PyCUDA, or the driver, has for it.
        handle: The ``CUstream`` as an integer, as TensorRT takes it.
    """

    def __init__(self) -> None:
        stream = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        self.raw: Any = stream.value or 0
        self.handle: int = self.raw

    def synchronize(self) -> None:
        """Waits until everything in the queue is done."""
        call("cuStreamSynchronize", ctypes.c_void_p(self.handle))

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        if self.handle:
            call("cuStreamDestroy_v2", ctypes.c_void_p(self.handle))
            self.raw = self.handle = 0


class Event:
    """A mark in a stream, which takes the time.

    Attributes:
        raw: What PyCUDA, or the driver, has for it.
    """

    def __init__(self) -> None:
        event = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(event), _NO_FLAGS)
        self.raw: Any = event.value or 0

    def record(self, stream: Stream) -> None:
        """Puts the mark behind what is in the stream now."""
        call("cuEventRecord", ctypes.c_void_p(self.raw), ctypes.c_void_p(stream.handle))

    def synchronize(self) -> None:
        """Waits until the mark is reached."""
        call("cuEventSynchronize", ctypes.c_void_p(self.raw))

    def reached(self) -> bool:
        """Whether the mark is reached."""
        status = status_of("cuEventQuery", ctypes.c_void_p(self.raw))
        if status not in (0, _NOT_READY):
            raise failure("cuEventQuery", status)
        return not status

    def milliseconds_since(self, earlier: Event) -> float:
        """GPU time between two marks, both of them reached."""
        milliseconds = ctypes.c_float()
        marks = ctypes.c_void_p(earlier.raw), ctypes.c_void_p(self.raw)
        call("cuEventElapsedTime", ctypes.byref(milliseconds), *marks)
        return milliseconds.value

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            call("cuEventDestroy_v2", ctypes.c_void_p(self.raw))


class Device:
    """One GPU, through the driver by itself. Calls must run inside a ``with device.active():`` block.

    Streams that work is queued on are given by their handles, since they may be those of other libraries.

    Args:
        ordinal: Its index in CUDA's order.

    Raises:
        EngineError: The driver cannot use the GPU.
    """

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
        """Makes the primary context current in this thread, and afterwards the one that was before.

        One object can be entered again and again, by any thread. This call itself needs no block.
        """
        return self._active

    def context_problem(self) -> str | None:
        """See :func:`context_problem`; it is asked outside of a block, about the context there."""
        return context_problem(self.ordinal)

    def pointer_problem(self, pointer: int) -> str | None:
        """See :func:`pointer_problem`."""
        return pointer_problem(pointer, self.ordinal)

    def allocate(self, nbytes: int) -> Buffer:
        """Memory on the GPU.

        Raises:
            GpuMemoryError: There is not enough.
        """
        return Buffer(nbytes)

    def allocate_pinned(self, nbytes: int) -> PinnedBuffer:
        """Page-locked host memory.

        Raises:
            GpuMemoryError: There is not enough.
        """
        return PinnedBuffer(nbytes)

    def new_stream(self) -> Stream:
        """A stream of its own."""
        return Stream()

    def new_event(self) -> Event:
        """An event that takes the time."""
        return Event()

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the GPU's memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


@dataclass
class TensorMemory:
    """Memory of one tensor on the GPU and on the host, which grows where needed.

    Attributes:
        device: The GPU.
    """

    device: Device
    _buffer: Buffer | None = field(default=None, repr=False)
    _pinned: PinnedBuffer | None = field(default=None, repr=False)

    @property
    def pointer(self) -> int:
        """The device address; 0 before :meth:`reserve`."""
        return self._buffer.pointer if self._buffer else 0

    @property
    def address(self) -> int:
        """The address of the page-locked memory; 0 before :meth:`reserve_pinned`."""
        return self._pinned.address if self._pinned else 0

    def reserve(self, nbytes: int) -> int:
        """Reserves at least ``nbytes`` bytes on the GPU; returns the device address."""
        # TensorRT needs an address for empty tensors, too.
        nbytes = max(1, nbytes)
        if self._buffer is None or self._buffer.nbytes < nbytes:
            if self._buffer:
                self._buffer.free()
            self._buffer = None
            self._buffer = self.device.allocate(nbytes)
        return self._buffer.pointer

    def reserve_pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Reserves page-locked memory for an array; returns the array."""
        nbytes = math.prod(shape) * dtype.itemsize
        if self._pinned is None or self._pinned.array.nbytes < nbytes:
            if self._pinned:
                self._pinned.free()
            self._pinned = None
            self._pinned = self.device.allocate_pinned(max(1, nbytes))
        return self._pinned.array[:nbytes].view(dtype).reshape(shape)

    def free(self) -> None:
        """Frees the memory on the GPU and on the host."""
        for memory in (self._buffer, self._pinned):
            if memory:
                memory.free()
        self._buffer = self._pinned = None


# Values of CUpointer_attribute in cuda.h.
_ATTRIBUTE_CONTEXT = 1
_ATTRIBUTE_DEVICE_ORDINAL = 9

_WITH_PYCUDA = "with PyCUDA, import pycuda.autoprimaryctx in place of pycuda.autoinit"


def primary_context(ordinal: int) -> Active:
    """Makes a GPU's primary context current in this thread for a block, and then the one that was before.

    Args:
        ordinal: The GPU's index in CUDA's order.

    Raises:
        GpuUnavailableError: There is no driver, no GPU, or none of that index.
        EngineError: The driver cannot use the GPU.
    """
    check_ordinal(ordinal)
    return Device(ordinal).active()


def current_device() -> int | None:
    """Index of the GPU whose context is current in this thread; None where no context is.

    Raises:
        EngineError: The driver fails.
    """
    device = ctypes.c_int()
    if _current() is None:
        return None
    call("cuCtxGetDevice", ctypes.byref(device))
    # Devices are numbered as they are listed.
    return device.value


def pointer_problem(pointer: int, ordinal: int) -> str | None:
    """Why work on a GPU cannot use an address, in words that follow "is"; None where it can.

    Args:
        pointer: A device address, or an address of page-locked host memory.
        ordinal: Index of the GPU, whose primary context must be current.
    """
    owner, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(pointer)
    function = "cuPointerGetAttribute"
    if status_of(function, ctypes.byref(owner), ctypes.c_int(_ATTRIBUTE_DEVICE_ORDINAL), address):
        return "no memory that the GPU can use"
    if owner.value != ordinal:
        return f"on GPU {owner.value} and the engine on GPU {ordinal}"
    # Memory of a pool belongs to no context.
    status_of(function, ctypes.byref(context), ctypes.c_int(_ATTRIBUTE_CONTEXT), address)
    if context.value and context.value != _current():
        return (
            "of another CUDA context than the primary one, which CUDA's runtime, PyTorch and CuPy use "
            f"({_WITH_PYCUDA})"
        )
    return None


def context_problem(ordinal: int) -> str | None:
    """Why work in this thread cannot use memory of a GPU's primary context, in a clause; None where it can.

    Args:
        ordinal: Index of the GPU.

    Raises:
        EngineError: The driver fails.
    """
    # Where no context is current, CUDA's runtime takes the primary one.
    if _current() in (None, retained_context(ordinal)):
        return None
    return (
        f"another CUDA context is current than the primary one of GPU {ordinal}, whose memory it cannot use; "
        f"make that one current ({_WITH_PYCUDA})"
    )


def _initialize() -> None:
    """Initializes the driver, which answers nothing before; where it is initialized, nothing happens."""
    call("cuInit", ctypes.c_uint(0))


@functools.cache
def retained_context(ordinal: int) -> int:
    """The primary context of a GPU; it stays retained, because releasing it last would reset the GPU."""
    _initialize()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context.value or 0


def _current() -> int | None:
    _initialize()
    context = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(context))
    return context.value


# Only calls of the capturing thread are judged: other threads may allocate meanwhile.
_CAPTURE_MODE_THREAD_LOCAL = 1


@dataclass
class Graph:
    """A recorded sequence of work that one call launches.

    Attributes:
        executable: The ``CUgraphExec``.
    """

    executable: int
    _alive: bool = field(default=True, repr=False)

    def launch(self, stream: Stream) -> None:
        """Queues the recorded work."""
        call("cuGraphLaunch", ctypes.c_void_p(self.executable), ctypes.c_void_p(stream.handle))

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        if self._alive:
            self._alive = False
            call("cuGraphExecDestroy", ctypes.c_void_p(self.executable))


def capture(stream: Stream, work: Callable[[], None]) -> Graph:
    """Records what ``work`` queues, without running it.

    Args:
        stream: The stream that ``work`` queues on.
        work: Queues the work; it must not wait or allocate.

    Returns:
        The graph; its addresses are those that were recorded.

    Raises:
        EngineError: The work cannot be captured.
    """
    handle = ctypes.c_void_p(stream.handle)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamBeginCapture_v2", handle, ctypes.c_int(_CAPTURE_MODE_THREAD_LOCAL))
    try:
        work()
    except BaseException:
        # The stream stays unusable until the capture ends, whatever became of it.
        with contextlib.suppress(EngineError):
            call("cuStreamEndCapture", handle, ctypes.byref(graph))
            if graph.value:
                call("cuGraphDestroy", graph)
        raise
    call("cuStreamEndCapture", handle, ctypes.byref(graph))
    if not graph.value:
        raise EngineError("the engine cannot be captured as a CUDA graph; run it without one")
    try:
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    finally:
        call("cuGraphDestroy", graph)
    return Graph(executable.value or 0)
