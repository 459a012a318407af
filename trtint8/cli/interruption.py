"""Ctrl-C, which importing a compiled module can turn into an error of another kind."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

#: The exit status after Ctrl-C.
STATUS = 128 + signal.SIGINT

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


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    global _times
    _times += 1
    raise KeyboardInterrupt
