"""Allocates memory for outputs whose size is known only after the inference."""

from __future__ import annotations

from typing import Any

from calibrators.cuda import Device, DeviceBuffer


def new_output_allocator(trt: Any, device: Device) -> Any:
    """Creates an output allocator for one output of one context.

    Args:
        trt: The TensorRT module.
        device: The GPU on which to allocate.

    Returns:
        An ``IOutputAllocator``, which must be kept as long as the context. Its attributes are ``buffer`` (a
        :class:`DeviceBuffer` or None) and ``shape`` (the output's shape in the last run, or None); its method
        ``raise_failure()`` is to be called after each run, and ``free()`` frees the buffer.
    """

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.buffer: DeviceBuffer | None = None
            self.shape: tuple[int, ...] | None = None
            self._failure: BaseException | None = None

        def reallocate_output(self, _tensor_name: str, _memory: int, size: int, _alignment: int) -> int:
            # An exception would be lost in TensorRT; address 0 means that there is no memory.
            try:
                if self.buffer is None or self.buffer.nbytes < size:
                    self.free()
                    self.buffer = device.allocate(size)
                return self.buffer.pointer
            except BaseException as error:  # noqa: BLE001
                self._failure = error
                return 0

        def raise_failure(self) -> None:
            """Raises the exception of an allocation that failed, once."""
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
