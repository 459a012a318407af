"""An inference that was queued and may not be done yet."""

from __future__ import annotations

import threading
from collections.abc import Callable

from calibrators.cuda import Device, Event
from trtint8.runtime.arrays import HostArray


class InferenceFuture:
    """The outputs of ``infer_async``, once they are there. Any thread may ask for them.

    Attributes:
        event: The CUDA event that is reached when the inference is done; its ``raw`` is PyCUDA's
            object where PyCUDA is installed, else the ``CUevent`` as an integer.
    """

    def __init__(self, device: Device, event: Event, collect: Callable[[], dict[str, HostArray]]) -> None:
        self.event = event
        self._device = device
        self._collect: Callable[[], dict[str, HostArray]] | None = collect
        self._lock = threading.Lock()
        self._outputs: dict[str, HostArray] | None = None
        self._failure: BaseException | None = None

    def done(self) -> bool:
        """Whether :meth:`result` returns without waiting.

        Raises:
            EngineError: The GPU failed.
        """
        if self._outputs is not None or self._failure is not None:
            return True
        with self._device.active():
            return self.event.reached()

    def result(self) -> dict[str, HostArray]:
        """Waits for the inference.

        Returns:
            Output name to an array that is the caller's own.

        Raises:
            EngineError: TensorRT or the GPU failed.
        """
        self.finish()
        if self._failure is not None:
            raise self._failure
        assert self._outputs is not None
        return self._outputs

    def finish(self) -> None:
        """Waits for the inference and keeps its outputs, or what it failed with."""
        with self._lock:
            # Let go, so that the context is not kept.
            collect, self._collect = self._collect, None
            if collect is None:
                return
            try:
                with self._device.active():
                    self.event.synchronize()
                    self._outputs = collect()
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                self._failure = error
