"""Brings batches to the GPU: page-locked staging, two buffers per input, one batch ahead.

While TensorRT works on a batch, a thread reads the next one from its source, stages and uploads it.
"""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from calibrators.cuda import Device, DeviceBuffer, PinnedBuffer, Stream
from calibrators.data.feeds import FeedDict
from calibrators.user_warnings import with_users_line

#: How long a batch is waited for before it is asked whether to go on waiting, in seconds.
_PATIENCE = 0.1

_Pointers = dict[str, int] | None


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
        self._closed = self._abandoned = False
        self._uploading = threading.Lock()
        self._requests: queue.SimpleQueue[tuple[int, Future[_Pointers]] | None] = queue.SimpleQueue()
        # A daemon, so that a source that never gives its next batch does not keep the process from ending.
        work = with_users_line(self._work)
        self._worker = threading.Thread(target=work, name="trtint8-feeder", daemon=True)
        self._worker.start()
        self._staged = self._request(0)

    def next(self, cancelled: Callable[[], bool] = lambda: False) -> _Pointers:
        """The next feed on the GPU; the one before it may be overwritten from now on.

        Args:
            cancelled: Asked while the source is waited for; True ends the waiting.

        Returns:
            Input name to device address, the upload completed; None at the end of the data.

        Raises:
            BaseException: Whatever the source of the feeds raised.
            GpuMemoryError: The GPU has no room for two batches.
            KeyboardInterrupt: The waiting was cancelled.
        """
        try:
            while not concurrent.futures.wait((self._staged,), _PATIENCE).done:
                if cancelled():
                    raise KeyboardInterrupt
        except BaseException:  # Ctrl-C also where nobody asks
            self._abandoned = True
            raise
        pointers = self._staged.result()
        if pointers is not None:
            self.batches += 1
            self._staged = self._request(self.batches % 2)
        return pointers

    def close(self) -> None:
        """Ends the thread and frees the memory; a second time does nothing.

        A source that is giving a batch is waited for, unless waiting for it in :meth:`next` was ended.
        """
        self._closed = True
        self._requests.put(None)
        if not self._abandoned:
            self._worker.join()
        with self._uploading, self._device.active():
            for slot in self._slots:
                slot.free()
            if self._stream is not None:
                self._stream.free()
                self._stream = None

    def _request(self, turn: int) -> Future[_Pointers]:
        staged: Future[_Pointers] = Future()
        self._requests.put((turn, staged))
        return staged

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            turn, staged = request
            try:
                staged.set_result(None if self._closed else self._stage(turn))
            except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
                staged.set_exception(error)

    def _stage(self, turn: int) -> _Pointers:
        feed = next(self._feeds, None)
        if feed is None:
            return None
        with self._uploading, self._device.active():
            if self._closed:
                return None
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
            self._device.upload(buffer.pointer, pinned.address, array.nbytes, stream.handle)
            pointers[name] = buffer.pointer
        return pointers

    def free(self) -> None:
        for pinned, buffer in self._memory.values():
            pinned.free()
            buffer.free()
        self._memory = {}
