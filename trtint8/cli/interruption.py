"""Ctrl-C, which importing a compiled module can turn into an error of another kind."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from types import FrameType

#: The exit status after Ctrl-C.
STATUS = 128 + signal.SIGINT

#: Seconds after which an interruption that could not be heeded is tried again.
_AGAIN = 0.02

_times = 0


def interrupted() -> bool:
    """Whether Ctrl-C has come since :func:`heeding_interruption` began."""
    return _times > 0


def heeding_interruption(work: Callable[[], int]) -> int:
    """Runs the program, which ends in one line after Ctrl-C at any moment.

    Args:
        work: The program; returns the exit status.

    Returns:
        Its status, or :data:`STATUS`.
    """
    # Where a shell has started the program in the background, Ctrl-C is ignored.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        return work()
    except KeyboardInterrupt:
        pass
    except Exception:
        if not interrupted():
            raise
    finally:
        if heeds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.stderr is not None:
        sys.stderr.write("interrupted\n")
    return STATUS


def _interrupt(_number: int, frame: FrameType | None) -> None:
    global _times
    _times += 1
    if _in_compiled_module(frame):
        again = threading.Timer(_AGAIN, _interrupt_again)
        again.daemon = True
        again.start()
        return
    raise KeyboardInterrupt


def _interrupt_again() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(
        signal, "pthread_kill"
    ):  # which wakes a thread that waits; not on Windows
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _in_compiled_module(frame: FrameType | None) -> bool:
    """Whether a compiled module is being imported: some end the process where an exception comes then."""
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False
