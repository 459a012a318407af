"""Outputs whose size only the run itself decides."""

from __future__ import annotations

from typing import Any

from calibrators.cuda import Device, DeviceBuffer


def new_output_allocator(trt: Any, device: Device) -> Any:
    """An output allocator for one output of one context.

    Args:
        trt: The TensorRT module.
        device: Where to allocate.

    Returns:
        An ``IOutputAllocator`` with attributes ``buffer`` (a :class:`DeviceBuffer` or None) and ``shape`` (of
        the last run, or None), and a method ``raise_failure()``, to be called after each run. Keep it as
        long as the context.
    """

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.buffer: DeviceBuffer | None = None
            self.shape: tuple[int, ...] | None = None
            self._failure: BaseException | None = None

        def reallocate_output(self, _tensor_name: str, _memory: int, size: int, _alignment: int) -> int:
            # Exceptions are lost in TensorRT; address 0 tells it that there is no memory.
            try:
                if self.buffer is None or self.buffer.nbytes < size:
                    self.free()
                    self.buffer = device.allocate(size)
                return self.buffer.pointer
            except BaseException as error:  # noqa: BLE001
                self._failure = error
                return 0

        def raise_failure(self) -> None:
            """Raises what an allocation failed with, once."""
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, _stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, _tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def free(self) -> None:
            if self.buffer is not None:
                self.buffer.free()
                self.buffer = None

    return OutputAllocator()
