"""Workers of a Ray cluster, each busy with one shard at a time, and what happens when one of them dies."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from calibrators.errors import TrtInt8Error, WorkerError
from calibrators.ray.shards import Shard

#: How many workers may die on one shard, or one after another before they are ready.
_DEATHS = 3

#: Shards under way or waiting for their turn, for each worker. More keeps workers busy behind a slow shard,
#: and room in Ray's object store.
_AHEAD = 4


@dataclass(eq=False)
class _Task:
    """A shard that was handed to Ray once; a second worker gets the same object."""

    first: int
    samples: int
    shard: Any
    #: Ray's reference to the result, once there is one.
    result: Any = None
    #: What a worker raised, once it did.
    failure: Exception | None = None

    @property
    def finished(self) -> bool:
        """Whether there is anything to give out."""
        return self.result is not None or self.failure is not None

    def __str__(self) -> str:
        return f"samples {self.first} to {self.first + self.samples - 1}"


@dataclass(frozen=True)
class _Call:
    """What a worker was asked for.

    Attributes:
        worker: Ray's handle.
        task: What it does, or is to do when it has answered; None where it opens the model.
        result: Ray's reference to what it will return for the task; None where it is only to answer.
    """

    worker: Any
    task: _Task | None
    result: Any = None


class Crew:
    """Workers that share the shards."""

    def __init__(
        self,
        ray: Any,
        worker: Callable[[Any], Any],
        task: Any,
        resources: Mapping[str, float],
        shards: Iterator[Shard],
    ) -> None:
        """Starts nothing yet.

        Args:
            ray: The module, connected.
            worker: The class of the workers.
            task: Ray's reference to what each is made with.
            resources: What Ray reserves for each.
            shards: Each is made when a worker has time for it.
        """
        self._ray, self._task, self._shards = ray, task, shards
        # Named after the worker, as Ray names the process.
        kind = type(getattr(worker, "__name__", "Worker"), (_Actor,), {"worker": staticmethod(worker)})
        self._actor = ray.remote(kind).options(**resources)
        self._workers: set[Any] = set()
        self._idle: deque[Any] = deque()
        #: What is waited for.
        self._calls: dict[Any, _Call] = {}
        #: Shards in the data's order whose results are still to be given out.
        self._order: deque[_Task] = deque()
        self._again: deque[_Task] = deque()
        self._deaths: Counter[int | None] = Counter()

    def results(self, workers: int) -> Iterator[tuple[int, int, Any]]:
        """Has the work done.

        Args:
            workers: How many there are to be.

        Yields:
            For each shard, in their order: how many samples come before it, how many it has, and what a
            worker returned, with arrays that do not depend on Ray.

        Raises:
            TrtInt8Error: What a worker raised, with the samples that it was at, once all shards before have
                been given out; or workers died too often.
        """
        for _ in range(workers):
            self._hire()
        while True:
            self._hand_out()
            if not self._order and self._idle:
                return
            ready = bool(self._order) and self._order[0].finished
            self._listen(wait=not ready)
            if ready and (found := self._take_first()):
                self._hand_out()  # before the caller's work, so that none need wait for it
                yield found

    def dismiss(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            self._ray.kill(worker)

    def _hire(self) -> None:
        worker = self._actor.remote(self._task)
        self._workers.add(worker)
        # Only workers that are ready get shards: others may wait for room in the cluster for ever.
        self._calls[worker.open.remote()] = _Call(worker, None)

    def _hand_out(self) -> None:
        """Finds shards for idle workers."""
        while self._idle and (task := self._next()):
            worker = self._idle.popleft()
            # It may have died meanwhile, which is not the shard's fault: first it has to answer.
            self._calls[worker.open.remote()] = _Call(worker, task)

    def _next(self) -> _Task | None:
        if self._again:
            return self._again.popleft()
        if len(self._order) >= _AHEAD * len(self._workers):
            return None
        shard = next(self._shards, None)
        if shard is None:
            return None
        self._order.append(_Task(shard.first, shard.samples, self._ray.put(shard)))
        return self._order[-1]

    def _listen(self, *, wait: bool) -> None:
        """Takes the answers that are there; where there is none yet, waits for one or goes on."""
        references = list(self._calls)
        if not references:
            return
        count, seconds = (1, None) if wait else (len(references), 0)
        # What is waited for is tiny; results stay where they are.
        answered, _ = self._ray.wait(references, num_returns=count, timeout=seconds)
        for reference in answered:
            self._hear(reference, self._calls.pop(reference))

    def _hear(self, reference: Any, call: _Call) -> None:
        task = call.task
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if task is None:
                raise _told(error) from error.cause
            # Raised when it is this shard's turn: which error it is must not depend on who is the quickest.
            task.failure = _told(error, f"in the shard that begins at sample {task.first}: ")
        except self._ray.exceptions.RayError as error:
            self._replace(call, error)
            return
        if task is None:
            self._deaths[None] = 0
        elif call.result is None:
            self._assign(call.worker, task)
            return
        elif task.failure is None:
            task.result = call.result
        # It has just answered, so it may have the next shard at once.
        following = self._next()
        if following:
            self._assign(call.worker, following)
        else:
            self._idle.append(call.worker)

    def _assign(self, worker: Any, task: _Task) -> None:
        answer, result = worker.work.options(num_returns=2).remote(task.shard)
        self._calls[answer] = _Call(worker, task, result)

    def _take_first(self) -> tuple[int, int, Any] | None:
        """The oldest result; None where it is lost, and its shard to be done again."""
        task = self._order[0]
        if task.failure is not None:
            raise task.failure
        try:
            found = self._ray.get(task.result)
        except self._ray.exceptions.RayError as error:
            # Its machine is gone, after the work was done.
            sentence = (
                f"the result of {task} was lost {_DEATHS} times; see why machines leave the Ray cluster"
            )
            self._count_death(task.first, sentence, error)
            task.result = None
            self._again.append(task)
            return None
        self._order.popleft()
        # Arrays lie in Ray's shared memory; this gives them memory of their own.
        return task.first, task.samples, copy.deepcopy(found)

    def _replace(self, call: _Call, error: Exception) -> None:
        """Takes a worker's death: its shard, of which nothing was counted, goes to another."""
        self._workers.discard(call.worker)
        self._ray.kill(call.worker)
        task = call.task
        advice = "if memory ran out, use a smaller batch_size or fewer workers"
        if task is None:
            self._count_death(None, f"{_DEATHS} workers died while opening the model; {advice}", error)
        else:
            if call.result is not None:
                self._count_death(
                    task.first, f"{_DEATHS} workers died while at work on {task}; {advice}", error
                )
            self._again.append(task)
        self._hire()

    def _count_death(self, key: int | None, sentence: str, error: Exception) -> None:
        self._deaths[key] += 1
        if self._deaths[key] >= _DEATHS:
            reason = " ".join(str(error).split())
            raise WorkerError(f"{sentence}. Ray says: {reason[:300]}") from error


def _told(error: Any, where: str = "") -> Exception:
    """What a worker raised, as this process is to raise it."""
    cause, told = error.cause, error
    if isinstance(cause, TrtInt8Error):
        # Samples that the sentence numbers are those of the shard.
        told = type(cause)(f"{where}{cause}")
        told.__cause__ = cause
    return cast(Exception, told)


class _Actor:
    """A worker in a process of its own."""

    worker: Callable[[Any], Any]

    def __init__(self, task: Any) -> None:
        self._task = task
        self._opened: Any = None

    def open(self) -> None:
        """Makes the worker ready; not when it is made, where an error would look like a worker's death."""
        if self._opened is None:
            opened = self.worker(self._task)
            opened.open()
            self._opened = opened

    def work(self, shard: Shard) -> tuple[None, Any]:
        """Does one shard; the first part of the answer tells that the second is there."""
        return None, self._opened.work(shard)
