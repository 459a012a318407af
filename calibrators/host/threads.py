"""How many threads a computation may use, and what is worth handing to them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from calibrators.checks import positive_integer
from calibrators.errors import Argument, CalibrationDataError

#: Where a container's processor quota stands (cgroup 2).
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

#: Threads that may be asked for: with thousands, ONNX Runtime hangs or crashes.
_FEW_THREADS, _THREADS_PER_PROCESSOR = 64, 4

#: Bytes of arrays that take longer than handing them to threads: to round 3 MB of weights in 56 arrays, two
#: threads take three times as long as one.
_WORTH_THREADS = 16 << 20

#: The most parts of a batch that are run at once; with more threads, several work on each. Every part takes
#: time in Python, for which the threads wait for each other.
_MOST_AT_ONCE = 4

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")


def available_threads(quota_file: Path = _QUOTA) -> int:
    """The processors that this process may use: those that exist, less what affinity or a container forbids.

    ONNX Runtime's own choice counts the machine's cores, and pins a thread to each: in a container of two
    processors on a machine of sixty-four, that is sixty-four threads that wait for each other.

    Args:
        quota_file: Holds the quota and the period, or ``max`` and the period.

    Returns:
        At least 1.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
        allowed = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no quota, or no cgroup
        return processors
    return max(1, min(processors, allowed))


def runs_at_once(threads: int, rows: int) -> int:
    """How many parts of a batch are run at once, where samples may be run in any company.

    The threads of one run wait for each other at every operator, those of several runs do not.

    Args:
        threads: How many threads there are.
        rows: How many samples the batches usually have.

    Returns:
        At least 1.
    """
    return max(1, min(threads, rows, _MOST_AT_ONCE))


def threads_of_session(threads: int, runs: int) -> int:
    """How many threads of its own a session needs for several runs at once.

    Args:
        threads: How many threads there are in all.
        runs: How many runs go on at once; each brings the thread that it is called in.
    """
    return threads - (runs - 1)


def check_threads(threads: int | None) -> None:
    """Refuses a number of threads that makes no sense; None leaves the choice to others.

    Raises:
        CalibrationDataError: It is no integer, less than 1, or far more than there are processors.
    """
    if threads is None:
        return
    count = positive_integer("threads", threads)
    most = max(_FEW_THREADS, _THREADS_PER_PROCESSOR * (os.cpu_count() or 1))
    if count > most:
        raise CalibrationDataError(
            f"{Argument('threads')} is {count}, and {most} are the most on this machine; give fewer, or "
            "leave it out"
        )


def map_arrays(
    function: Callable[[_Argument], _Result],
    arguments: Iterable[_Argument],
    nbytes: int,
    threads: int | None = None,
) -> Iterator[_Result]:
    """Applies a function to arrays in turn, in several threads where the arrays are large.

    Args:
        function: The function, which may be called in several threads at once. They save time where NumPy or
            hashing takes most of it.
        arguments: What it is called with in turn.
        nbytes: Bytes of all arrays that it works on.
        threads: The most threads; all that this process may use where None.

    Yields:
        The results, in the order of the arguments.
    """
    if nbytes < _WORTH_THREADS:
        yield from map(function, arguments)
        return
    with ThreadPoolExecutor(threads or available_threads(), "trtint8-arrays") as pool:
        yield from pool.map(function, arguments)


def in_thread(
    function: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
) -> Future[_Result]:
    """Calls a function in a thread of its own while the caller goes on.

    Args:
        function: The function.
        args: What it is called with.
        kwargs: What it is called with by name.

    Returns:
        Its result, or what it raises; the process does not end before it returns.
    """
    executor = ThreadPoolExecutor(1, "trtint8-thread")
    called = executor.submit(function, *args, **kwargs)
    executor.shutdown(wait=False)
    return called
