"""Reports the progress of a build, and lets Ctrl-C cancel it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Delays Ctrl-C while native code runs, and raises KeyboardInterrupt when the block ends.

    An exception cannot pass through TensorRT's callbacks. In threads other than the main thread Python
    delivers no signals, so nothing is changed there.

    Yields:
        A function that returns whether Ctrl-C was pressed.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; it replaces any other exception of the block.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    previous = signal.signal(signal.SIGINT, lambda _signal, _frame: pressed.set())
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, previous)
        if pressed.is_set():
            raise KeyboardInterrupt from None


def new_monitor(trt: Any, advance: Callable[[int], None], cancelled: Callable[[], bool]) -> Any:
    """Creates a progress monitor for TensorRT.

    Args:
        trt: The TensorRT module.
        advance: Function that is called with 1 for every completed step of any phase.
        cancelled: Function that is called after every step; True cancels the build.

    Returns:
        An ``IProgressMonitor``, which must be kept until the build has ended.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str, num_steps: int) -> None:
            pass  # The base class requires it.

        def phase_finish(self, phase_name: str) -> None:
            pass  # The base class requires it.

        def step_complete(self, _phase_name: str, _step: int) -> bool:
            # An exception here would cancel the build, and a closed terminal is no reason for that.
            with contextlib.suppress(Exception):
                advance(1)
            return not cancelled()

    return Monitor()
