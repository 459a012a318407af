"""Fills our own interface of a GPU, and what is used of TensorRT's context, with calls that only count.

Shapes are TensorRT's own ``Dims``, because turning those into tuples is part of what an inference costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrators.cuda.device import Active
from calibrators.tensorrt.flavor import Flavor
from trtint8.engine.file import TensorSpec


class Buffer:
    """Host memory in the place of memory on the GPU and of page-locked memory."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.zeros(nbytes, np.uint8)
        self.nbytes = nbytes
        self.pointer = self.address = self.array.ctypes.data

    def free(self) -> None:
        """Does nothing: the memory is freed with the object."""


class Mark:
    """An event and a stream that are always reached."""

    raw = None
    handle = 0x5EED

    def synchronize(self) -> None:
        """Does not wait."""

    def record(self, _stream: object) -> None:
        """Notes nothing."""

    def reached(self) -> bool:
        """Always true."""
        return True

    def free(self) -> None:
        """Does nothing."""


class RecordingDevice:
    """Fills :class:`calibrators.cuda.Device`.

    Attributes:
        copies: How many copies were queued.
        allocations: How often memory was allocated.
    """

    ordinal = 0

    def __init__(self) -> None:
        self.copies = self.allocations = self._depth = 0
        self._active = Active(self._push, self._pop)

    def _push(self) -> None:
        self._depth += 1

    def _pop(self) -> None:
        self._depth -= 1

    def active(self) -> Active:
        """See :class:`calibrators.cuda.Device`."""
        return self._active

    def allocate(self, nbytes: int) -> Buffer:
        """See :class:`calibrators.cuda.Device`."""
        self.allocations += 1
        return Buffer(nbytes)

    allocate_pinned = allocate

    def new_stream(self) -> Mark:
        """See :class:`calibrators.cuda.Device`."""
        return Mark()

    new_event = new_stream

    def upload(self, _target: int, _source: Any, *_more: Any) -> None:
        """See :class:`calibrators.cuda.Device`."""
        self.copies += 1

    download = copy = upload

    def wait_for_stream(self, _waiting: int, _producing: int) -> None:
        """See :class:`calibrators.cuda.Device`."""

    def pointer_problem(self, _pointer: int) -> None:
        """See :class:`calibrators.cuda.Device`."""


class RecordingContext:
    """The part of ``IExecutionContext`` that the runtime uses, for outputs of the inputs' batch size.

    Args:
        flavor: The TensorRT whose ``Dims`` are used.
        outputs: The outputs; the first dimension is the batch.

    Attributes:
        runs: How many inferences were queued.
        asked: How many other calls there were.
    """

    active_optimization_profile = 0

    def __init__(self, flavor: Flavor, outputs: Sequence[TensorSpec]) -> None:
        self._dims = flavor.module.Dims
        self._outputs = {spec.name: spec.shape[1:] for spec in outputs}
        self._batch = -1
        self.runs = self.asked = 0

    def set_input_shape(self, _name: str, shape: Sequence[int]) -> bool:
        """Takes the batch size from the shape."""
        self.asked += 1
        self._batch = shape[0]
        return True

    def get_tensor_shape(self, name: str) -> Any:
        """The shape of an output."""
        self.asked += 1
        return self._dims([self._batch, *self._outputs[name]])

    def set_tensor_address(self, _name: str, _pointer: int) -> bool:
        """Takes every address."""
        self.asked += 1
        return True

    def execute_async_v3(self, _stream: int) -> bool:
        """Counts the inference."""
        self.runs += 1
        return True
