"""Calibration by several processes, on one machine or many, over Ray.

Each worker opens the model once and observes one shard of the data after another. What it returns merges
exactly, in any order, so the result is bit for bit that of one process. A shard counts when its observation
has arrived, whole; a worker that dies before takes nothing along but time.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrators.batches import Batches
from calibrators.crew import observe_shards
from calibrators.errors import CalibrationDataError, ModelError, UnsupportedError
from calibrators.fingerprint import DataFingerprint
from calibrators.histogram import Histogram
from calibrators.host import Observation, Observer
from calibrators.inputs import InputSpec
from calibrators.preflight import Preflight
from calibrators.progress import progress_bar
from calibrators.shards import Reader, Shard, Shards

#: Threads of a worker, where the user does not say.
_THREADS = 1

#: How many shards a worker gets, where the number of batches is known: enough to share the work evenly.
_SHARDS_A_WORKER = 8

#: How long a cluster may take to answer.
_SECONDS_TO_ANSWER = 20

#: Batches a shard at least, where their number is not known, and at most.
_FEW_BATCHES, _MOST_BATCHES = 8, 64


@dataclass(frozen=True)
class RayExecutor:
    """Where a calibration runs, and how it is shared out. Nothing of this changes its result.

    Attributes:
        address: Of a Ray cluster, as ``ray.init`` takes it. None takes the connection that this program has,
            else the cluster that Ray finds (``RAY_ADDRESS``), else starts one on this machine.
        workers: How many processes run the model; as many as the cluster has processors for where None.
        num_gpus: GPUs that Ray reserves for each worker; may be a fraction. The model itself runs on the CPU
            unless ONNX Runtime is told otherwise.
        shard_batches: Batches that a worker gets at once; chosen by the number of workers where None.
    """

    address: str | None = None
    workers: int | None = None
    num_gpus: float = 0
    shard_batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "shard_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CalibrationDataError(f"{name} is {value}; give 1 or more, or leave it out")
        if not self.num_gpus >= 0:
            raise CalibrationDataError(f"num_gpus is {self.num_gpus}; give 0 or more")


class RayObserver:
    """A model that workers of a Ray cluster observe: :class:`calibrators.host.Observer` in many places."""

    def __init__(
        self,
        model: AbstractContextManager[bytes | Path],
        inputs: Sequence[InputSpec],
        tensors: Iterable[str],
        threads: int | None = None,
        executor: RayExecutor | None = None,
    ) -> None:
        """Remembers what workers are to do.

        Args:
            model: The FP32 model, entered while it is observed: serialized; or, beyond 2 GiB, a path that all
                machines see.
            inputs: Its inputs.
            tensors: Names of float tensors of the graph, inputs included.
            threads: Threads, and processors, of each worker; 1 where None.
            executor: Where to run; ``RayExecutor()`` where None.

        Raises:
            CalibrationDataError: ``threads`` is less than 1.
            UnsupportedError: Ray is not installed.
        """
        if threads is not None and threads < 1:
            raise CalibrationDataError(f"threads is {threads}; give 1 or more, or leave it out")
        self._ray = _import_ray()
        self._model, self._inputs, self._tensors = model, tuple(inputs), tuple(dict.fromkeys(tensors))
        self._threads, self._executor = threads or _THREADS, executor or RayExecutor()

    def observe(self, shards: Shards, *, progress: bool = True) -> Observation:
        """Has all shards observed.

        The driver holds what was merged so far, and one observation more; others wait in Ray's object store,
        no more than there are workers.

        Args:
            shards: The calibration data.
            progress: Show a progress bar on a terminal; it moves when a shard is done.

        Returns:
            What one process would have seen.

        Raises:
            CalibrationDataError: The data does not fit the model, or it makes the model produce NaN.
            ModelError: A worker cannot run the model, or does not see its file.
            UnsupportedError: The cluster cannot be reached, or no machine of it has room for a worker.
            WorkerError: A worker died again and again.
        """
        ray, executor = self._ray, self._executor
        with _connected(ray, executor.address), self._model as model:
            workers = self._crew_size(shards)
            size = executor.shard_batches or _shard_batches(shards, workers)
            if shards.batches is not None:
                workers = max(1, min(workers, -(-shards.batches // size)))
            actor = ray.remote(_Worker).options(num_cpus=self._threads, num_gpus=executor.num_gpus)
            # Once into the object store, and from there once to each machine.
            task = ray.put((model, self._inputs, self._tensors, self._threads, shards.reader))
            with progress_bar("Calibrating", shards.samples, enabled=progress) as advance:
                seen = observe_shards(ray, lambda: actor.remote(task), workers, shards.cut(size), advance)
        return seen or self._nothing()

    def _crew_size(self, shards: Shards) -> int:
        """How many workers there will be."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        needed = {"CPU": self._threads, "GPU": self._executor.num_gpus}
        room = sum(
            min(int(node.get(name, 0) // amount) for name, amount in needed.items() if amount)
            for node in nodes
        )
        if not room:
            largest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needed}
            raise UnsupportedError(
                f"a worker needs {needed['CPU']} CPU and {needed['GPU']:g} GPU, but the largest machine of "
                f"the Ray cluster has {largest['CPU']:g} and {largest['GPU']:g}; use fewer threads or GPUs"
            )
        wanted = self._executor.workers or room
        if not shards.computed:
            return wanted
        # Workers keep their processors to the end: without one for the dataset's own tasks all would wait.
        spare = int((sum(node.get("CPU", 0) for node in nodes) - 1) // self._threads)
        if not spare:
            raise UnsupportedError(
                "the Ray cluster has no processor left to compute the Ray Dataset beside a worker; ask for "
                "fewer threads, start Ray with more CPUs, or pass dataset.materialize()"
            )
        return min(wanted, spare)

    def _nothing(self) -> Observation:
        histograms = {name: Histogram() for name in self._tensors}
        return Observation(histograms, DataFingerprint(), Preflight(self._inputs))


class _Worker:
    """Runs in a process of its own."""

    def __init__(
        self,
        task: tuple[bytes | Path, Sequence[InputSpec], Sequence[str], int, Reader],
    ) -> None:
        self._task = task
        self._observer: Observer | None = None

    def open(self) -> None:
        """Opens the model; not when the worker is made, where an error would look like a worker's death."""
        model, inputs, tensors, threads, _ = self._task
        if isinstance(model, Path) and not model.is_file():
            raise ModelError(
                f"the worker on '{socket.gethostname()}' does not see the model's file '{model}', and beyond "
                "2 GiB a model is not sent; set TMPDIR to a folder that all machines share"
            )
        self._observer = Observer(model, inputs, tensors, threads)

    def observe(self, shard: Shard) -> Observation:
        """Observes a shard."""
        assert self._observer is not None
        reader = self._task[-1]
        batches = Batches(lambda: reader.read(shard.batches), num_samples=shard.samples)
        return self._observer.observe(batches, progress=False)


def _shard_batches(shards: Shards, workers: int) -> int:
    if shards.batches is None:
        # The driver must keep up: with more workers each has to be busy for longer.
        return min(_MOST_BATCHES, max(_FEW_BATCHES, workers))
    return min(_MOST_BATCHES, max(1, shards.batches // (_SHARDS_A_WORKER * workers)))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UnsupportedError('Ray is not installed; run pip install "trtint8[ray]"') from error
    return ray


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """A connection to a cluster for as long as the block runs; one that was there before stays."""
    if ray.is_initialized():
        if address is not None:
            raise UnsupportedError(
                f"this program is connected to a Ray cluster already, so the address '{address}' would have "
                "no effect; leave it out, or call ray.shutdown() first"
            )
        yield
        return
    try:
        _check_answers(address)
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        reason = f"{' '.join(str(error).split())}; start it or mend the address"
        raise UnsupportedError(
            f"cannot connect to the Ray cluster '{address or 'local'}': {reason}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str | None) -> None:
    """Fails at once where nothing listens: Ray would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
