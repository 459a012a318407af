"""Progress of a build, and Ctrl-C during it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Holds Ctrl-C back while native code runs, and raises it when the block is left.

    An exception cannot pass through TensorRT's callbacks. In threads other than the main one Python
    delivers no signals, and nothing is changed.

    Yields:
        A function that tells whether Ctrl-C was pressed.

    Raises:
        KeyboardInterrupt: On leaving, where it was; it takes the place of any other exception.
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
    """A TensorRT progress monitor.

    Args:
        trt: The TensorRT module.
        advance: Called with 1 for every completed step of any phase.
        cancelled: Asked after every step; True cancels the build.

    Returns:
        An ``IProgressMonitor``. Keep it until the build has ended.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str, num_steps: int) -> None:
            pass  # The base class requires it.

        def phase_finish(self, phase_name: str) -> None:
            pass  # The base class requires it.

        def step_complete(self, _phase_name: str, _step: int) -> bool:
            # An exception here would cancel the build: a broken terminal is no reason to.
            with contextlib.suppress(Exception):
                advance(1)
            return not cancelled()

    return Monitor()
