"""What a case may take: errors of this project alone, two seconds, 256 MB."""

from __future__ import annotations

import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from calibrators.errors import TrtInt8Error

#: Seconds of processor time, which do not depend on what else the machine does.
SECONDS = 2.0

#: Bytes that the process may grow by at most, by its resident memory.
MEMORY = 256 << 20

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class TooSlowError(BaseException):
    """A case took too long; no code of the project may catch it."""


@dataclass(frozen=True)
class Breach:
    """A case that broke the rule.

    Attributes:
        kind: What came out, and where: equal for cases that have the same cause.
        text: What to show.
    """

    kind: str
    text: str


def run_case(case: Callable[[], object]) -> Breach | None:
    """Runs a case; what it did wrong, or None."""
    before = _reset_peak()
    begun = time.process_time()
    breach = None
    try:
        with _interrupted(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            case()
    except TrtInt8Error:
        pass
    except (Exception, TooSlowError) as error:  # noqa: BLE001  # whatever it is, it is what is looked for
        breach = _breach(error)
    seconds, grown = time.process_time() - begun, _peak() - before
    if breach is None and seconds > SECONDS:
        breach = Breach("slow", f"it took {seconds:.1f} s")
    if breach is None and grown > MEMORY:
        breach = Breach("memory", f"it took {grown >> 20} MiB")
    return breach


def _breach(error: BaseException) -> Breach:
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (f for f in reversed(frames) if "/trtint8/" in f.filename or "/calibrators/" in f.filename), None
    )
    at = f"{Path(place.filename).name}:{place.lineno}" if place else "?"
    return Breach(f"{type(error).__name__} at {at}", "".join(traceback.format_exception(error))[-3000:])


@contextmanager
def _interrupted() -> Iterator[None]:
    """Ends a case by an exception where it computes for too long."""

    def interrupt(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, 2 * SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _reset_peak() -> int:
    """Begins a new peak of the resident memory; returns the memory now, in bytes."""
    try:
        _RESET.write_text("5")
    except OSError:
        return _peak()  # the peak of the process: a larger case before hides this one
    return _peak()


def _peak() -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10
