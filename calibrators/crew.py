"""Workers of a Ray cluster, each busy with one shard at a time, and what happens when one of them dies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from calibrators.errors import TrtInt8Error, WorkerError
from calibrators.host import Observation
from calibrators.shards import Shard

#: How many workers may die on one shard, or one after another before they are ready.
_DEATHS = 3


@dataclass(frozen=True)
class _Task:
    """A shard that was handed to Ray once; a second worker gets the same object."""

    first: int
    samples: int
    shard: Any

    def __str__(self) -> str:
        return f"samples {self.first} to {self.first + self.samples - 1}"


def observe_shards(
    ray: Any,
    hire: Callable[[], Any],
    workers: int,
    shards: Iterator[Shard],
    advance: Callable[[int], None],
) -> Observation | None:
    """Has all shards observed by workers.

    Args:
        ray: The module.
        hire: Starts a worker: an actor with ``open()`` and ``observe(shard)``.
        workers: How many there are to be.
        shards: Each is made when a worker has time for it.
        advance: Told the number of samples when a shard is done.

    Returns:
        All observations, merged; None where there was no shard. Its arrays do not depend on Ray.

    Raises:
        TrtInt8Error: What a worker raised, with the samples that it was at; or workers died too often.
    """
    crew = _Crew(ray, hire, shards, advance)
    try:
        return crew.work(workers)
    finally:
        crew.dismiss()


class _Crew:
    def __init__(
        self, ray: Any, hire: Callable[[], Any], shards: Iterator[Shard], advance: Callable[[int], None]
    ) -> None:
        self._ray, self._hire_one, self._shards, self._advance = ray, hire, shards, advance
        self._workers: set[Any] = set()
        self._idle: list[Any] = []
        #: What is waited for: a worker that opens the model (no task), or one that observes a shard.
        self._doing: dict[Any, tuple[Any, _Task | None]] = {}
        self._again: deque[_Task] = deque()
        self._deaths: Counter[int | None] = Counter()
        self._seen: Observation | None = None

    def work(self, workers: int) -> Observation | None:
        for _ in range(workers):
            self._hire()
        while self._hand_out() or not self._idle:
            (reference,), _ = self._ray.wait(list(self._doing), num_returns=1)
            self._finish(reference, *self._doing.pop(reference))
        return self._seen

    def dismiss(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)

    def _hire(self) -> None:
        worker = self._hire_one()
        self._workers.add(worker)
        # Only workers that are ready get shards: others may wait for room in the cluster for ever.
        self._doing[worker.open.remote()] = worker, None

    def _hand_out(self) -> bool:
        """Gives every idle worker a shard; returns whether any is under way."""
        while self._idle and (task := self._next()):
            worker = self._idle.pop()
            self._doing[worker.observe.remote(task.shard)] = worker, task
        return any(task for _, task in self._doing.values())

    def _next(self) -> _Task | None:
        if self._again:
            return self._again.popleft()
        shard = next(self._shards, None)
        return _Task(shard.first, shard.samples, self._ray.put(shard)) if shard else None

    def _finish(self, reference: Any, worker: Any, task: _Task | None) -> None:
        try:
            found = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, TrtInt8Error):
                raise
            # Samples that the sentence numbers are those of the shard.
            where = f"in the shard that begins at sample {task.first}: " if task else ""
            raise type(error.cause)(f"{where}{error.cause}") from error
        except self._ray.exceptions.RayError as error:
            self._replace(worker, task, error)
            return
        self._idle.append(worker)
        if task is None:
            self._deaths[None] = 0
            return
        self._hand_out()  # before the merge, so that the worker need not wait for it
        self._seen = self._seen.merge(found) if self._seen else _copied(found)
        self._advance(task.samples)

    def _replace(self, worker: Any, task: _Task | None, error: Exception) -> None:
        """Takes a worker's death: its shard, of which nothing was counted, goes to another."""
        self._workers.discard(worker)
        self._ray.kill(worker)
        key = task.first if task else None
        self._deaths[key] += 1
        if self._deaths[key] >= _DEATHS:
            doing = f"observing {task}" if task else "opening the model"
            reason = " ".join(str(error).split())
            raise WorkerError(
                f"{_DEATHS} workers died while {doing}; if memory ran out, use a smaller batch_size or fewer "
                f"workers. Ray says: {reason[:300]}"
            ) from error
        if task:
            self._again.append(task)
        self._hire()


def _copied(seen: Observation) -> Observation:
    """The same with arrays of its own, which outlive Ray's shared memory."""
    return replace(seen, histograms={name: found.copy() for name, found in seen.histograms.items()})
