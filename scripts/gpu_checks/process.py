"""Runs a program in a process of its own, with a time limit; however it ends, the caller continues."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SCRIPTS = Path(__file__).resolve().parents[1]
_TAIL_LINES = 20
#: A process that faulthandler watches prints its stacks when it is aborted.
_SECONDS_TO_ABORT = 2.0


@dataclass(frozen=True)
class Outcome:
    """What became of a process.

    Attributes:
        status: "done", or what happened instead.
        seconds: How long it ran.
        tail: The end of what it printed; empty where it is done.
    """

    status: str
    seconds: float
    tail: str = ""

    @property
    def done(self) -> bool:
        """Whether it ended by itself, and well."""
        return self.status == "done"


def environment() -> dict[str, str]:
    """The environment variables for processes of these checks."""
    paths = [str(_SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Kernels are loaded when they are first used, which saves seconds per process.
    return {"CUDA_MODULE_LOADING": "LAZY", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_limited(
    command: Sequence[str], *, seconds: float, log: Path, environment: Mapping[str, str]
) -> Outcome:
    """Runs a command and waits for it.

    Args:
        command: Program and arguments.
        seconds: The time limit, in seconds, after which the process and its children are ended.
        log: File for all that it prints.
        environment: The environment variables of the process.
    """
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end(process)
    took = time.monotonic() - started
    status = f"ended after its limit of {seconds:.0f} s" if timed_out else _status(process.returncode)
    return Outcome(status, took, "" if status == "done" else _tail(log))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and what it started; one that has ended may have left children."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_ABORT)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _status(returncode: int) -> str:
    if returncode == 0:
        return "done"
    if returncode < 0:
        return f"crashed with {signal.Signals(-returncode).name}"
    return f"failed with exit status {returncode}"


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
