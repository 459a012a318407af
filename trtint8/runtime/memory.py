"""The memory of one input or output, on the GPU and page-locked on the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import Device, DeviceBuffer, PinnedBuffer


@dataclass
class TensorMemory:
    """Memory that grows where needed.

    Attributes:
        device: The GPU.
    """

    device: Device
    _buffer: DeviceBuffer | None = field(default=None, repr=False)
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
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
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
