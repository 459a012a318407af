"""A Ray cluster: how a user names it, how it is reached, and how many workers it has room for."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from calibrators.checks import is_number, positive_integer
from calibrators.errors import Argument, CalibrationDataError, UnsupportedError, in_words
from calibrators.imports import install_command

#: Threads per worker, where the user does not say.
WORKER_THREADS = 1


@dataclass(frozen=True)
class RayExecutor:
    """Where work runs, and how it is distributed. This does not change the result.

    Attributes:
        address: The address of a Ray cluster, as ``ray.init`` takes it. None uses the connection of this
            program, else the cluster that Ray finds (``RAY_ADDRESS``), else starts a cluster on this machine.
        workers: How many processes run the model. None means as many as the processors of the cluster allow.
        num_gpus: GPUs that Ray reserves for each worker; may be a fraction of one. The model itself
            runs on the CPU unless another device is asked for.
        shard_batches: Batches per shard, which a worker gets at once. None chooses by the number of workers.

    Examples:
        >>> executor = trtint8.RayExecutor(workers=2)
        >>> table = trtint8.calibrate("model.onnx", "calibration.npz", executor=executor)
    """

    address: str | None = None
    workers: int | None = None
    num_gpus: float = 0
    shard_batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "shard_batches"):
            if (value := getattr(self, name)) is not None:
                positive_integer(name, value)
        gpus = self.num_gpus
        if not (is_number(gpus) and 0 <= gpus < math.inf and (gpus <= 1 or gpus == int(gpus))):
            raise CalibrationDataError(
                f"{Argument('num_gpus')} is {self.num_gpus!r}; give a number from 0 to 1, or a whole one "
                "above"
            )


#: Seconds that a cluster may take to answer.
_SECONDS_TO_ANSWER = 20


def import_ray() -> Any:
    """Imports Ray.

    Raises:
        UnsupportedError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise UnsupportedError(f"Ray is not installed; run {install_command('ray')}") from error
    return ray


def worker_count(ray: Any, executor: RayExecutor, threads: int, *, ray_computes: bool) -> int:
    """How many workers there will be.

    Args:
        ray: The module, connected.
        executor: How many workers were asked for, and what each needs.
        threads: Processors of each worker.
        ray_computes: Whether Ray computes the data meanwhile, and needs a processor for that.

    Returns:
        The number of workers; at least 1.

    Raises:
        UnsupportedError: No machine of the cluster has room for a worker.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needed = {"CPU": threads, "GPU": executor.num_gpus}
    room = sum(
        min(int(node.get(name, 0) // amount) for name, amount in needed.items() if amount) for node in nodes
    )
    if not room:
        largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needed}
        raise UnsupportedError(
            f"a worker needs {needed['CPU']} CPU and {needed['GPU']:g} GPU, but the largest machine of "
            f"the Ray cluster has {largest['CPU']:g} and {largest['GPU']:g}; use fewer threads or GPUs"
        )
    wanted = executor.workers or room
    if not ray_computes:
        return wanted
    # Workers keep their processors to the end: without one for the dataset's own tasks all would wait.
    spare = int((sum(node.get("CPU", 0) for node in nodes) - 1) // threads)
    if not spare:
        raise UnsupportedError(
            "the Ray cluster has no processor left to compute the Ray Dataset beside a worker; ask for "
            "fewer threads, start Ray with more CPUs, or pass dataset.materialize()"
        )
    return min(wanted, spare)


@contextlib.contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """A connection to a cluster for as long as the block runs; one that was there before stays.

    Args:
        ray: The module.
        address: The cluster's address: see :class:`RayExecutor`.

    Raises:
        UnsupportedError: The cluster cannot be reached, or another one is connected already.
    """
    if ray.is_initialized():
        if address is not None:
            raise UnsupportedError(
                f"this program is connected to a Ray cluster already, so the address '{address}' would have "
                "no effect; leave it out, or call ray.shutdown() first"
            )
        yield
        return
    named = address or os.environ.get("RAY_ADDRESS", "")
    try:
        _check_answers(ray, named)
        with _same_reaction_to_termination():
            ray.init(
                address=address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                # The server of a client has a working folder of its own.
                job_config=None if named.startswith("ray://") else _job_config(ray),
            )
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = f"{in_words(error)}; start it or mend the address"
        if isinstance(error, _refusals(ray)):
            reason = (
                "its token is missing or wrong here; set RAY_AUTH_MODE=token, and have the cluster's token "
                "in ~/.ray/auth_token or RAY_AUTH_TOKEN"
            )
        raise UnsupportedError(f"cannot connect to the Ray cluster '{named or 'local'}': {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _job_config(ray: Any) -> Any:
    """The settings of the connection: workers search no folder that this program does not search itself.

    By default they import from its working folder first, which may hold a stranger's files.
    """
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _SearchedHere()  # there is no public way
    return config


class _SearchedHere(list[str]):
    """Folders for workers to import from, without those that this program imports nothing from."""

    def extend(self, folders: Iterable[str]) -> None:
        """Adds folders."""
        here = set(map(os.path.abspath, sys.path))
        super().extend(folder for folder in folders if folder in here)


@contextlib.contextmanager
def _same_reaction_to_termination() -> Iterator[None]:
    """Restores what the program does on SIGTERM: Ray replaces it, and ends with another status.

    A program that does nothing of its own is left with what Ray does, which ends Ray's processes too.
    """
    before = signal.getsignal(signal.SIGTERM)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    except SystemExit:  # SIGTERM came before this program's reaction to it was there again
        before(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_answers(ray: Any, address: str) -> None:
    """Fails at once where ``ray.init`` would try for a long time and not say what is wrong.

    Raises:
        OSError: Nothing listens there.
        ray.exceptions.AuthenticationError: A token is missing or wrong.
        ray.exceptions.RayError: Something listens there, but not Ray.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
    if address.startswith("ray://") or not _refusals(ray):
        return
    try:  # there is no public way to ask
        # A client that is set to show a token, and has none, ends the process.
        ray._private.authentication.authentication_token_setup.ensure_token_if_auth_enabled(
            create_token_if_missing=False
        )
        ray._raylet.GcsClient(address=address)
    except (AttributeError, TypeError):
        return  # this version of Ray has it elsewhere; ray.init will say what is wrong, later


def _refusals(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises where a token is missing or wrong; versions before 2.52 have no tokens."""
    error = getattr(ray.exceptions, "AuthenticationError", None)
    return (error,) if error else ()
