"""Work on data, shared out over the workers of a Ray cluster; its results come back in the data's order.

Nothing here knows what the work is. A worker is a class of three methods: ``__init__(task)``, ``open()``,
which may raise a ``TrtInt8Error``, and ``work(shard)``, which returns anything that can be pickled.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

from calibrators.errors import ModelError
from calibrators.ray.cluster import connected, crew_size, import_ray
from calibrators.ray.executor import RayExecutor
from calibrators.ray.shards import Shards
from calibrators.ray.worker_pool import Crew

#: How many shards a worker gets, where the number of batches is known: enough to share the work evenly.
_SHARDS_A_WORKER = 8

#: Why models lie in temporary files.
TEMPORARY = "beyond 2 GiB a model is not sent; set TMPDIR to a folder that all machines share"

#: Batches a shard at least, where their number is not known, and at most.
_FEW_BATCHES, _MOST_BATCHES = 8, 64


@dataclass(frozen=True)
class Done:
    """What came back for one shard.

    Attributes:
        first: How many samples of the data come before it.
        samples: How many it has.
        result: What the worker made of it; its arrays do not depend on Ray's memory.
    """

    first: int
    samples: int
    result: Any


@contextlib.contextmanager
def fan_out(
    worker: Callable[[Any], Any], task: Any, shards: Shards, executor: RayExecutor, threads: int
) -> Iterator[Iterator[Done]]:
    """Connects to Ray and has workers do the work for as long as the block runs.

    A result counts when it has arrived here, whole. A worker that dies before takes nothing along but time:
    another one does its shard, and a result that is lost with its machine is computed again. Results that
    are ready before their turn wait in Ray's object store, and shards are made only so far ahead of the
    oldest that is not done; so what the driver holds does not grow with the data.

    Args:
        worker: The class of the workers.
        task: What each is made with. It goes into Ray's object store once, and from there once to each
            machine.
        shards: The data.
        executor: Where to run.
        threads: Processors of each worker.

    Yields:
        What came back, shard by shard in the order of the data. Leaving the block ends the workers.

    Raises:
        TrtInt8Error: What a worker raised, with the samples that it was at.
        UnsupportedError: Ray is not installed, the cluster cannot be reached, or no machine of it has room
            for a worker.
        WorkerError: A worker died again and again.
    """
    ray = import_ray()
    with connected(ray, executor.address):
        workers = crew_size(ray, executor, threads, computed=shards.computed)
        size = executor.shard_batches or _shard_batches(shards, workers)
        if shards.batches is not None:
            workers = max(1, min(workers, -(-shards.batches // size)))
        resources = {"num_cpus": threads, "num_gpus": executor.num_gpus}
        crew = Crew(ray, worker, ray.put(task), resources, shards.cut(size))
        try:
            yield starmap(Done, crew.results(workers))
        finally:
            crew.dismiss()


def check_sees(model: bytes | Path, advice: str = TEMPORARY) -> None:
    """What a worker does first with a model that it was told of.

    Args:
        model: Serialized, or a path.
        advice: Why it is a path, and what to do.

    Raises:
        ModelError: It is a file that this machine does not see.
    """
    if isinstance(model, Path) and not model.is_file():
        raise ModelError(f"the worker on '{socket.gethostname()}' does not see '{model}', and {advice}")


def _shard_batches(shards: Shards, workers: int) -> int:
    if shards.batches is None:
        # The driver must keep up: with more workers each has to be busy for longer.
        return min(_MOST_BATCHES, max(_FEW_BATCHES, workers))
    return min(_MOST_BATCHES, max(1, shards.batches // (_SHARDS_A_WORKER * workers)))
