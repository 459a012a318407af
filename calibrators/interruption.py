"""Ctrl-C and SIGTERM: they end the program in order at any moment, or after what may not be interrupted.

Importing a compiled module, for example, can turn what they raise into an error of another kind.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import FrameType

TYPE_CHECKING = False  # see `trtint8/__init__.py`

if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from typing import Any

#: The exit status after Ctrl-C.
STATUS = 128 + signal.SIGINT

#: What there is to say after Ctrl-C where no file was written.
NOTHING = "nothing was written, and the same command begins anew"

#: Seconds after which a signal that could not be heeded is tried again.
_AGAIN = 0.02

_received: signal.Signals | None = None
_again: threading.Timer | None = None


def stop(number: int, frame: FrameType | None) -> None:
    """Reacts to Ctrl-C or SIGTERM, as a handler of signals: an exception has temporary files removed.

    Args:
        number: The signal.
        frame: What the main thread was doing.

    Raises:
        KeyboardInterrupt: It is Ctrl-C.
        SystemExit: It is SIGTERM; the status is 143.
    """
    global _received
    _received = signal.Signals(number)
    if _in_compiled_module(frame):
        _try_again(_received)
    else:
        raise_if_stopped()


def raise_if_stopped(cause: BaseException | None = None) -> None:
    """Raises what ends the program if a signal has come since :func:`heeding_signals` began.

    Args:
        cause: An error that the signal may have become, as where a module could not be imported.

    Raises:
        KeyboardInterrupt: It was Ctrl-C.
        SystemExit: It was SIGTERM; the status is 143.
    """
    if _received == signal.SIGINT:
        raise KeyboardInterrupt from cause
    if _received is not None:
        raise SystemExit(128 + _received) from cause


def heeding_signals(work: Callable[[], int]) -> int:
    """Runs the program, which ends in one line after Ctrl-C at any moment, and without one after SIGTERM.

    Args:
        work: The program; returns the exit status.

    Returns:
        Its status, or 128 and the number of the signal.
    """
    status: int | None = None
    try:
        with _handlers():
            status = work()
    except KeyboardInterrupt:
        pass
    except (Exception, SystemExit):
        if _received is None:
            raise
    # After Ctrl-C within code that is made from text, as that of data classes is, `python -m` ends by the
    # signal and not with the status. Other such code that ends in order takes that back.
    exec("")
    ended_by = _received or signal.SIGINT
    if status is not None and (_received is None or status == 128 + ended_by):
        return status
    if ended_by == signal.SIGINT and sys.stderr is not None:
        # What has come so far as to give a status has said what it wrote.
        sys.stderr.write(f"interrupted: {NOTHING}\n" if status is None else "interrupted\n")
    return 128 + ended_by


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Delays what handlers of Ctrl-C and SIGTERM raise until the block ends.

    An exception cannot pass through the callbacks of native code, and files that belong together are moved
    one by one. In threads other than the main thread Python delivers no signals, so nothing is changed there;
    nor where a signal is ignored or ends the process at once.

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


@contextlib.contextmanager
def _handlers() -> Iterator[None]:
    numbers = [signal.SIGTERM]
    # Where a shell has started the program in the background, Ctrl-C is ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    for number in numbers:
        signal.signal(number, stop)
    hook = sys.unraisablehook

    def unraisable(found: UnraisableHookArgs) -> None:
        """Python prints and forgets what is raised while an object is destroyed, for example."""
        if _received is not None and isinstance(found.exc_value, (KeyboardInterrupt, SystemExit)):
            _try_again(_received)
        else:
            hook(found)

    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        if _again is not None:
            _again.cancel()
        sys.unraisablehook = hook
        for number in numbers:  # the program is over: Python says nothing of a signal while it ends
            signal.signal(number, signal.SIG_DFL)


def _try_again(number: signal.Signals) -> None:
    global _again
    _again = threading.Timer(_AGAIN, _send, [number])
    _again.daemon = True
    _again.start()


def _send(number: signal.Signals) -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(
        signal, "pthread_kill"
    ):  # which wakes a thread that waits; not on Windows
        signal.pthread_kill(main, number)
    else:
        _thread.interrupt_main(number)


def _in_compiled_module(frame: FrameType | None) -> bool:
    """Whether a compiled module is being imported: some end the process where an exception comes then."""
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False
