"""What the rest of the project needs of a GPU: memory, streams, contexts and graphs.

One interface stands over PyCUDA and over the driver by itself. Everything happens in the device's primary
context. CUDA's runtime, PyTorch and CuPy use the same one, so pointers pass between them and us. Other
contexts, like that of ``pycuda.autoinit``, cannot use its memory. Graphs are made through the driver, because
PyCUDA has no calls for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda.driver import call, check_ordinal, status_of
from calibrators.errors import EngineError


class DeviceBuffer(Protocol):
    """Memory on the GPU."""

    @property
    def pointer(self) -> int:
        """Its device address."""
        ...

    @property
    def nbytes(self) -> int:
        """Its size."""
        ...

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        ...


class PinnedBuffer(Protocol):
    """Page-locked host memory, from which copies run beside computation."""

    @property
    def array(self) -> NDArray[np.uint8]:
        """The memory as bytes; not to be touched after :meth:`free`."""
        ...

    @property
    def address(self) -> int:
        """Its host address."""
        ...

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        ...


class Stream(Protocol):
    """A queue of work on the GPU that waits for no other one unless it is asked to.

    It is a non-blocking stream: work on the legacy default stream, where PyTorch's default is, neither waits
    for it nor is waited for. So it can be captured as a graph while other threads use that one.
    """

    @property
    def raw(self) -> Any:
        """What PyCUDA, or the driver, has for it."""
        ...

    @property
    def handle(self) -> int:
        """The ``CUstream`` as an integer, as TensorRT takes it."""
        ...

    def synchronize(self) -> None:
        """Waits until everything in the queue is done."""
        ...

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        ...


class Event(Protocol):
    """A mark in a stream."""

    @property
    def raw(self) -> Any:
        """What PyCUDA, or the driver, has for it."""
        ...

    def record(self, stream: Stream) -> None:
        """Puts the mark behind what is in the stream now."""
        ...

    def synchronize(self) -> None:
        """Waits until the mark is reached."""
        ...

    def reached(self) -> bool:
        """Whether the mark is reached."""
        ...

    def milliseconds_since(self, earlier: Event) -> float:
        """GPU time between two marks, both of them reached."""
        ...


class Device(Protocol):
    """One GPU. Calls must run inside a ``with device.active():`` block, unless they say otherwise.

    Streams that work is queued on are given by their handles, since they may be those of other libraries.
    """

    @property
    def ordinal(self) -> int:
        """Its index in CUDA's order."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """Makes the primary context current in this thread, and afterwards the one that was before.

        One object can be entered again and again, by any thread. This call itself needs no block.
        """
        ...

    def context_problem(self) -> str | None:
        """Why work in this thread cannot use the GPU's memory, in a clause; None where it can.

        It is asked outside of a block, about the context that is current there.
        """
        ...

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Memory on the GPU.

        Raises:
            GpuMemoryError: There is not enough.
        """
        ...

    def allocate_pinned(self, nbytes: int) -> PinnedBuffer:
        """Page-locked host memory.

        Raises:
            GpuMemoryError: There is not enough.
        """
        ...

    def new_stream(self) -> Stream:
        """A stream of its own."""
        ...

    def new_event(self) -> Event:
        """An event that takes the time."""
        ...

    def upload(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queues a copy of host memory, which must stay as it is until then, to a device address."""
        ...

    def download(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queues a copy from a device address to host memory."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queues a copy from one device address to another."""
        ...

    def wait_for_stream(self, waiting: int, producing: int) -> None:
        """Makes what is queued on a stream from now on wait for what is in another one now.

        Args:
            waiting: Handle of the stream that waits.
            producing: Handle of the other one, which may be of another library; 1 is the legacy default
                stream.
        """
        ...

    def pointer_problem(self, pointer: int) -> str | None:
        """Why the GPU cannot use an address, in words that follow "is"; None where it can."""
        ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the GPU's memory."""
        ...


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

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._pop()


# Values of CUpointer_attribute in cuda.h.
_ATTRIBUTE_CONTEXT = 1
_ATTRIBUTE_DEVICE_ORDINAL = 9

_WITH_PYCUDA = "with PyCUDA, import pycuda.autoprimaryctx in place of pycuda.autoinit"


@contextlib.contextmanager
def primary_context(ordinal: int) -> Iterator[None]:
    """Makes a GPU's primary context current in this thread, and afterwards the one that was before.

    Args:
        ordinal: The GPU's index in CUDA's order.

    Raises:
        GpuUnavailableError: There is no driver, no GPU, or none of that index.
        EngineError: The driver cannot use the GPU.
    """
    check_ordinal(ordinal)
    call("cuCtxPushCurrent_v2", ctypes.c_void_p(retained_context(ordinal)))
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


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
