"""What the rest of the project needs of a GPU: the interface that PyCUDA and cuda-python both fill.

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

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        ...


class Stream(Protocol):
    """A queue of work on the GPU, ordered with the legacy default stream, as PyTorch's default is."""

    @property
    def raw(self) -> Any:
        """The CUDA package's own object."""
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
        """The CUDA package's own object."""
        ...

    def record(self, stream: Stream) -> None:
        """Puts the mark behind what is in the stream now."""
        ...

    def synchronize(self) -> None:
        """Waits until the mark is reached."""
        ...

    def milliseconds_since(self, earlier: Event) -> float:
        """GPU time between two marks, both of them reached."""
        ...


class Device(Protocol):
    """One GPU. Calls other than :meth:`active` must run inside a ``with device.active():`` block."""

    @property
    def ordinal(self) -> int:
        """Its index in CUDA's order."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """Makes the primary context current in this thread, and afterwards the one that was before."""
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

    def upload(self, pointer: int, source: NDArray[Any], stream: Stream) -> None:
        """Queues a copy to the GPU; ``source`` is contiguous and must stay as it is until it is done."""
        ...

    def download(self, target: NDArray[Any], pointer: int, stream: Stream) -> None:
        """Queues a copy from the GPU into a contiguous, writable array."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Queues a copy from one device address to another."""
        ...

    def pointer_problem(self, pointer: int) -> str | None:
        """Why the GPU cannot use an address, in words that follow "is"; None where it can."""
        ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the GPU's memory."""
        ...
