"""Reports the progress of a build, and lets Ctrl-C and SIGTERM cancel it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Delays what handlers of Ctrl-C and SIGTERM raise while native code runs, until the block ends.

    An exception cannot pass through TensorRT's callbacks. In threads other than the main thread Python
    delivers no signals, so nothing is changed there; nor where a signal is ignored or ends the process at
    once.

    Yields:
        A function that returns whether a handler has raised.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; it replaces any other exception of the block.
        BaseException: A handler of the program raised it; it replaces any other exception of the block.
    """
    raised: list[BaseException] = []
    before: dict[int, Any] = {}

    def defer(number: int, frame: FrameType | None) -> None:
        try:
            before[number](number, frame)
        except BaseException as error:  # noqa: BLE001 - raised when the block ends
            # Its traceback refers to the frames that were interrupted, which hold TensorRT's objects.
            raised.append(error.with_traceback(None))

    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before.update({number: handler for number, handler in handlers.items() if callable(handler)})
    for number in before:
        signal.signal(number, defer)
    try:
        yield lambda: bool(raised)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if raised:
            # Taken out of the list, to which the frames of its traceback refer: otherwise they would stay in
            # memory, with what they hold, until Python looks for such cycles.
            raise raised.pop(0) from None


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
