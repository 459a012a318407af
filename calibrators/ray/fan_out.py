"""Work on data, shared out over the workers of a Ray cluster; its results come back in the data's order.

Nothing here knows what the work is: see :class:`calibrators.ray.work.ShardWork`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Generic, TypeVar

from calibrators.data.batches import Batches
from calibrators.data.sources.datasets import BlockReader
from calibrators.errors import ModelError
from calibrators.ray.cluster import connected, import_ray, worker_count
from calibrators.ray.executor import RayExecutor
from calibrators.ray.work import ShardWork, Task
from calibrators.ray.worker_pool import WorkerPool

Result = TypeVar("Result")

#: Shards per worker, where the number of batches is known: enough to share the work evenly.
_SHARDS_PER_WORKER = 8

#: Why a worker was sent the path of a temporary file.
TEMPORARY = "beyond 2 GiB a model is not sent; set TMPDIR to a folder that all machines share"

#: The fewest batches per shard, where their number is not known, and the most.
_FEW_BATCHES, _MOST_BATCHES = 8, 64


@dataclass(frozen=True)
class Done(Generic[Result]):
    """What came back for one shard.

    Attributes:
        first: How many samples of the data come before it.
        samples: How many samples it has.
        result: What the worker returned; its arrays do not depend on Ray's memory.
    """

    first: int
    samples: int
    result: Result


@contextlib.contextmanager
def fan_out(
    work: ShardWork[Result], batches: Batches, executor: RayExecutor, threads: int
) -> Iterator[Iterator[Done[Result]]]:
    """Connects to Ray and has workers do the work for as long as the block runs.

    A result counts when it has arrived here, whole. If a worker dies before, only time is lost: another one
    does its shard, and a result that is lost with its machine is computed again. Results that are ready
    before their turn wait in Ray's object store, and shards are made only so far ahead of the oldest that is
    not done; so what this process holds does not grow with the data.

    Args:
        work: What to do. It goes into Ray's object store once, and from there once to each machine.
        batches: The data.
        executor: Where to run.
        threads: Processors of each worker.

    Yields:
        What came back, shard by shard in the order of the data. Leaving the block ends the workers.

    Raises:
        TrtInt8Error: A worker raised it.
        UnsupportedError: Ray is not installed, the cluster cannot be reached, or no machine of it has room
            for a worker.
        WorkerError: A worker died again and again.
    """
    ray = import_ray()
    with connected(ray, executor.address):
        reader = batches.reader
        computes = isinstance(reader, BlockReader) and reader.computes
        workers = worker_count(ray, executor, threads, ray_computes=computes)
        size = executor.shard_batches or _shard_batches(batches.num_batches, workers)
        if batches.num_batches is not None:
            workers = max(1, min(workers, -(-batches.num_batches // size)))
        resources = {"num_cpus": threads, "num_gpus": executor.num_gpus}
        task = ray.put(Task(work, reader))
        pool = WorkerPool(ray, type(work).__name__, task, resources, batches.cut(size))
        try:
            yield starmap(Done, pool.results(workers))
        finally:
            pool.close()


def check_sees(model: bytes | Path, advice: str = TEMPORARY) -> None:
    """Refuses a model file that a worker's machine does not see.

    Args:
        model: The serialized model, or its path.
        advice: Why a path was sent, and what to do.

    Raises:
        ModelError: There is no such file on this machine.
    """
    if isinstance(model, Path) and not model.is_file():
        raise ModelError(f"the worker on '{socket.gethostname()}' does not see '{model}', and {advice}")


def _shard_batches(batches: int | None, workers: int) -> int:
    """Batches per shard, for data of so many batches; None where their number is not known."""
    if batches is None:
        # This process must keep up: with more workers each has to be busy for longer.
        return min(_MOST_BATCHES, max(_FEW_BATCHES, workers))
    return min(_MOST_BATCHES, max(1, batches // (_SHARDS_PER_WORKER * workers)))
