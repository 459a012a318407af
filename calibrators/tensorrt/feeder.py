"""Brings batches to the GPU: page-locked staging, two buffers per input, one batch ahead.

While TensorRT works on a batch, a thread reads the next one from its source, stages and uploads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from calibrators.cuda import Device, DeviceBuffer, PinnedBuffer, Stream
from calibrators.data.feeds import FeedDict


class Feeder:
    """Uploads feeds of one shape, always one ahead of the one that is in use.

    Attributes:
        batches: How many feeds were returned.
    """

    def __init__(self, feeds: Iterator[FeedDict], device: Device) -> None:
        self.batches = 0
        self._feeds = feeds
        self._device = device
        self._slots = (_Slot(device), _Slot(device))
        self._stream: Stream | None = None
        self._worker = ThreadPoolExecutor(1, "trtint8-feeder")
        self._staged = self._worker.submit(self._stage, 0)

    def next(self) -> dict[str, int] | None:
        """The next feed on the GPU; the one before it may be overwritten from now on.

        Returns:
            Input name to device address, the upload completed; None at the end of the data.

        Raises:
            BaseException: Whatever the source of the feeds raised.
            GpuMemoryError: The GPU has no room for two batches.
        """
        pointers = self._staged.result()
        if pointers is not None:
            self.batches += 1
            self._staged = self._worker.submit(self._stage, self.batches % 2)
        return pointers

    def close(self) -> None:
        """Waits for the thread and frees the memory; a second time does nothing."""
        self._worker.shutdown(cancel_futures=True)
        with self._device.active():
            for slot in self._slots:
                slot.free()
            if self._stream is not None:
                self._stream.free()

    def _stage(self, turn: int) -> dict[str, int] | None:
        feed = next(self._feeds, None)
        if feed is None:
            return None
        with self._device.active():
            self._stream = self._stream or self._device.new_stream()
            pointers = self._slots[turn].upload(feed, self._stream)
            # TensorRT reads on a stream of its own, which does not wait for this one.
            self._stream.synchronize()
        return pointers


class _Slot:
    """One feed's place, in page-locked memory and on the GPU."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: dict[str, tuple[PinnedBuffer, DeviceBuffer]] = {}

    def upload(self, feed: FeedDict, stream: Stream) -> dict[str, int]:
        pointers = {}
        for name, array in feed.items():
            if name not in self._memory:
                pinned = self._device.allocate_pinned(array.nbytes)
                try:
                    self._memory[name] = pinned, self._device.allocate(array.nbytes)
                except BaseException:
                    pinned.free()
                    raise
            pinned, buffer = self._memory[name]
            pinned.array.view(array.dtype).reshape(array.shape)[...] = array
            self._device.upload(buffer.pointer, pinned.array, stream)
            pointers[name] = buffer.pointer
        return pointers

    def free(self) -> None:
        for pinned, buffer in self._memory.values():
            pinned.free()
            buffer.free()
        self._memory = {}
