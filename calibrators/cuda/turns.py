"""One build or measurement at a time on each GPU, over all processes of a machine.

TensorRT chooses kernels by timing them, and asks for nothing else on the GPU meanwhile. Builds beside each
other take many times longer, and choose other kernels.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from calibrators.checks import warn_user
from calibrators.errors import GpuUnavailableError, UnsupportedError
from calibrators.files import free_lock, open_lock, take_lock

#: The environment variable that says what to do while another process has a GPU, and its values.
VARIABLE, _WAYS = "TRTINT8_GPU_LOCK", ("wait", "refuse", "off")


class _Turn:
    """The lock of one GPU in this process: a thread that has it may take it again."""

    def __init__(self) -> None:
        self.lock: BinaryIO | None = None
        self.threads, self.depth = threading.RLock(), 0


_turns: dict[str, _Turn] = {}
_turns_guard = threading.Lock()


@contextlib.contextmanager
def turn_on_gpu(uuid: str, purpose: str) -> Iterator[None]:
    """Lets one process, and one thread of it, use a GPU at a time.

    The environment variable ``TRTINT8_GPU_LOCK`` says what to do while another one has it: ``wait``, which is
    the default, ``refuse``, or ``off`` for no lock at all.

    Args:
        uuid: Identifies the GPU on this machine.
        purpose: What it is used for, in words, for those who wait.

    Raises:
        GpuUnavailableError: Another process uses the GPU, and waiting is refused.
        UnsupportedError: The environment variable has another value.

    Warns:
        UserWarning: It waits for another process, whose number is given; or there can be no lock.
    """
    way = os.environ.get(VARIABLE) or "wait"
    if way not in _WAYS:
        raise UnsupportedError(
            f"the environment variable {VARIABLE} is '{way}'; set it to one of {', '.join(_WAYS)}"
        )
    if way == "off":
        yield
        return
    path = Path(tempfile.gettempdir()) / f"trtint8-{uuid}.lock"
    with _turns_guard:
        turn = _turns.setdefault(uuid, _Turn())
    with turn.threads:
        if turn.depth == 0:
            turn.lock = _locked(path, way, purpose)
        turn.depth += 1
        try:
            yield
        finally:
            turn.depth -= 1
            if turn.depth == 0 and turn.lock is not None:
                free_lock(turn.lock)


def _locked(path: Path, way: str, purpose: str) -> BinaryIO | None:
    """Takes the lock, whose file names the process that has it; None where there can be none."""
    try:
        with contextlib.ExitStack() as unless_taken:
            lock = unless_taken.enter_context(open_lock(path))
            if not take_lock(lock):
                number = lock.read(20)
                holder = f"process {int(number)}" if number.isdigit() else "another process"
                if way == "refuse":
                    raise GpuUnavailableError(
                        f"{holder} uses the GPU, and {VARIABLE} refuses to wait; try again when it has ended"
                    )
                warn_user(f"waiting for {holder}, because {purpose} needs the GPU for itself", note=True)
                take_lock(lock, wait=True)
            lock.truncate(0)
            lock.seek(0)
            lock.write(f"{os.getpid()}".encode())
            unless_taken.pop_all()
            return lock
    except OSError as error:
        warn_user(
            f"the GPU cannot be locked with '{path}' ({error.strerror or error}), so other processes may use "
            "it meanwhile"
        )
    return None
