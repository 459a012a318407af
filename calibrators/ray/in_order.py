"""Batches that are looked at by workers of a Ray cluster, and what they showed, in the order of the data.

Each batch is looked at by itself. The driver puts together what came out as one process would: batch after
batch, and no further than that one would go. So what went wrong waits for its turn too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.data.batches import FeedDict
from calibrators.errors import TrtInt8Error
from calibrators.progress import progress_bar
from calibrators.ray.cluster import import_ray
from calibrators.ray.executor import RayExecutor
from calibrators.ray.fan_out import Done, fan_out
from calibrators.ray.shards import Reader, Shard, Shards, labelled_feeds


class Seen(Protocol):
    """What came out for one batch; anything that can be pickled."""

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        ...


#: Takes a batch, labels from its first sample on, and how many samples of the data come before it.
Look = Callable[[FeedDict, NDArray[np.int64] | None, int], Seen]


def look_at(shard: Shard, reader: Reader, look: Look) -> bytes:
    """What a worker does with a shard.

    Args:
        shard: Batches.
        reader: Reads them.
        look: What to do with each.

    Returns:
        What came out for each batch, pickled; the last entry may be the error that ended it.
    """
    seen: list[Seen | TrtInt8Error] = []
    first = shard.first
    try:
        for feed, labels in labelled_feeds(reader, shard):
            one = look(feed, labels, first)
            seen.append(one)
            first += one.samples
    except TrtInt8Error as error:
        seen.append(error)
    # Ray's pickle knows classes that exist in the user's program only.
    pickled: bytes = import_ray().cloudpickle.dumps(seen)
    return pickled


@contextlib.contextmanager
def seen_in_turn(
    worker: Callable[[Any], Any],
    task: Any,
    shards: Shards,
    executor: RayExecutor,
    threads: int,
    *,
    description: str,
    progress: bool,
) -> Iterator[Iterator[Any]]:
    """Has workers look at all data.

    Args:
        worker: Their class, whose ``work`` is :func:`look_at`.
        task: What each is made with.
        shards: The data.
        executor: Where to run.
        threads: Processors of each worker.
        description: For the progress bar.
        progress: Show it on a terminal.

    Yields:
        What came out, batch by batch in the order of the data; an error where one process would raise it.

    Raises:
        TrtInt8Error: As :func:`calibrators.ray.fan_out.fan_out`.
    """
    data = _Patient(shards.start)
    with (
        fan_out(worker, task, replace(shards, start=data), executor, threads) as results,
        progress_bar(description, shards.samples, enabled=progress) as advance,
    ):
        yield _seen(results, data, advance)


class _Patient:
    """A pass over the data that ends early where the data fails, and tells of that later."""

    def __init__(self, start: Callable[[], Iterator[tuple[int, Any]]]) -> None:
        self._start = start
        self._error: Exception | None = None

    def __call__(self) -> Iterator[tuple[int, Any]]:
        try:
            yield from self._start()
        except Exception as error:  # noqa: BLE001  # whatever a user's loader raises
            self._error = error

    def fail(self) -> None:
        """Raises what the data did."""
        if self._error is not None:
            raise self._error


def _seen(results: Iterator[Done], data: _Patient, advance: Callable[[int], None]) -> Iterator[Any]:
    unpickle = import_ray().cloudpickle.loads
    for done in results:
        for one in unpickle(done.result):
            if isinstance(one, TrtInt8Error):
                raise one
            advance(one.samples)
            yield one
    data.fail()
