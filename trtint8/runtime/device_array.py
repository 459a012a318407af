"""Outputs that stay on the GPU, for any library to take without a copy."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import Device, DeviceBuffer
from calibrators.cuda.dlpack import CUDA, give
from trtint8.runtime.streams import LEGACY_DEFAULT


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array on the GPU, which ``torch.from_dlpack`` and ``cupy.asarray`` take without a copy.

    Attributes:
        shape: The dimensions of the array.
        dtype: The element type.
        buffer: The C-contiguous memory, which is freed with the array.
        device: The GPU that holds the memory.
        stream: Handle of the stream whose work, up to the inference, has to be done before the values are
            complete; None where they are complete.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    buffer: DeviceBuffer
    device: Device
    stream: int | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of Numba's CUDA array interface.

        Raises:
            AttributeError: The element type is BF16 or FP8, which that interface cannot name; DLPack can.
        """
        if self.dtype.kind == "V":
            raise AttributeError(f"the CUDA array interface has no type for {self.dtype}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.buffer.pointer, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **_options: object,
    ) -> object:
        """A DLPack capsule of this memory; ``stream``, on which it is going to be used, waits for the values.

        Raises:
            BufferError: A copy is asked for, or an array on another device.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(
                "an output on the GPU gives its own memory and no copy; take it without copy and device, and "
                "copy it then, or call its numpy()"
            )
        # -1 says that the consumer takes care of the order itself.
        if self.stream is not None and stream not in (-1, self.stream):
            with self.device.active():
                self.device.wait_for_stream(stream or LEGACY_DEFAULT, self.stream)
        return give(self.buffer.pointer, self.shape, self.dtype, self.device.ordinal, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type of device, CUDA, and the GPU's index."""
        return CUDA, self.device.ordinal

    def numpy(self) -> NDArray[Any]:
        """Copies the array to the host."""
        array = np.empty(self.shape, self.dtype)
        with self.device.active():
            stream = self.device.new_stream()
            if self.stream is not None:
                self.device.wait_for_stream(stream.handle, self.stream)
            self.device.download(array.ctypes.data, self.buffer.pointer, array.nbytes, stream.handle)
            stream.synchronize()
            stream.free()
        return array

    def free(self) -> None:
        """Frees the memory now rather than when the array is garbage-collected."""
        with self.device.active():
            self.buffer.free()

    def __del__(self) -> None:
        # When the interpreter exits, the driver may have been unloaded already.
        with contextlib.suppress(Exception):
            self.free()
