"""TensorRT with nothing of this project around the call: what an inference costs at least."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtint8 import Engine


class Bare:
    """A context with fixed shapes and addresses; only within ``with engine.device.active():``.

    Args:
        engine: A loaded engine with one input and one output.
        feed: The only batch that it will run.
    """

    def __init__(self, engine: Engine, feed: Mapping[str, NDArray[Any]]) -> None:
        device = self._device = engine.device
        ((name, array),) = feed.items()
        (output,) = engine.outputs
        self._context = engine.raw.create_execution_context()
        self.stream = device.new_stream()
        if not self._context.set_input_shape(name, array.shape):
            raise RuntimeError(f"TensorRT refuses the shape {array.shape}")
        shape = tuple(self._context.get_tensor_shape(output.name))
        result = np.empty(shape, output.dtype)
        self._buffers = [device.allocate(array.nbytes), device.allocate(result.nbytes)]
        self._pinned = [device.allocate_pinned(array.nbytes), device.allocate_pinned(result.nbytes)]
        for tensor, buffer in zip((name, output.name), self._buffers, strict=True):
            self._context.set_tensor_address(tensor, buffer.pointer)
        self._array, self._result = array, result
        self.with_copies()

    def enqueue(self) -> None:
        """Queues one inference."""
        self._context.execute_async_v3(self.stream.handle)

    def run(self) -> None:
        """Queues one inference and waits for it."""
        self.enqueue()
        self.stream.synchronize()

    def with_copies(self) -> NDArray[Any]:
        """Runs one inference, with the input copied from the host and the output copied to it."""
        (fed, made), (source, target) = self._buffers, self._pinned
        source.array.view(self._array.dtype).reshape(self._array.shape)[...] = self._array
        self._device.upload(fed.pointer, source.address, self._array.nbytes, self.stream.handle)
        self.enqueue()
        self._device.download(target.address, made.pointer, self._result.nbytes, self.stream.handle)
        self.stream.synchronize()
        output: NDArray[Any] = target.array.view(self._result.dtype).reshape(self._result.shape).copy()
        return output

    def close(self) -> None:
        """Frees the memory, the context and the stream."""
        for memory in (*self._buffers, *self._pinned):
            memory.free()
        self._context = None
        self.stream.free()
