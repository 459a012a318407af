"""What the rest of the project needs of a GPU: the interface that PyCUDA and the driver by itself both fill.

Everything happens on the device's primary context, the one that CUDA's runtime, PyTorch and CuPy use too, so
pointers pass between them and us.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


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
