"""Work on data, shared out over the workers of a Ray cluster; its results come back in the data's order.

Nothing here knows what the work is. Each worker is busy with one shard at a time. Results are put together as
one process would: batch after batch, and no further than one would go. So an error waits for its turn.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from calibrators.data.batches import Batches, Shard, Source, labelled_alike
from calibrators.errors import Argument, TrtInt8Error, WorkerError, in_words
from calibrators.host.work import BatchWork, HasSamples, of_each
from calibrators.host.work import Result as EachResult
from calibrators.imports import find_own_module, import_lazily, own_modules
from calibrators.progress import progress_bar
from calibrators.ray.cluster import RayExecutor, connected, import_ray, worker_count

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class ShardWork(Protocol[Result_co]):
    """Work on a run of batches. It is pickled, and sent to every worker once."""

    def open(self) -> Callable[[Batches, int], Result_co]:
        """Opens what the work needs, in the worker's process.

        Returns:
            The work: a function of batches, and of how many samples of the data come before them. Its result
            can be pickled.

        Raises:
            TrtInt8Error: Something cannot be opened.
        """
        ...


@dataclass(frozen=True)
class Task(Generic[Result_co]):
    """What every worker is made with.

    Attributes:
        work: What it does.
        source: Reads the batches of the data.
    """

    work: ShardWork[Result_co]
    source: Source

    def open(self) -> Callable[[Shard], Result_co]:
        """Opens what the work needs; see :meth:`ShardWork.open`.

        Returns:
            The work as a function of a shard of the data.
        """
        work_on, source = self.work.open(), self.source
        return lambda shard: work_on(Batches.of_shard(shard, source), shard.first)


#: How many workers may die on one shard, or one after another before they are ready.
_DEATHS = 3

#: Shards per worker that are under way or wait for their turn. More keeps workers busy behind a slow shard,
#: and takes more room in Ray's object store.
_AHEAD = 4

#: How long the end waits for workers that have not started, which may have no room in the cluster.
_SECONDS_TO_START = 5.0


@dataclass(eq=False)
class _Job:
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
        """Whether there is a result or a failure."""
        return self.result is not None or self.failure is not None

    def __str__(self) -> str:
        return f"samples {self.first} to {self.first + self.samples - 1}"


@dataclass(frozen=True)
class _Call:
    """A call of a worker's method that has not returned yet.

    Attributes:
        worker: Ray's handle.
        job: What the worker does, or is to do once it has answered; None where it opens what it needs.
        result: Ray's reference to what it will return for the job; None where it is only to answer.
    """

    worker: Any
    job: _Job | None
    result: Any = None


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


class _WorkerPool:
    """Workers that share the shards."""

    def __init__(
        self, ray: Any, name: str, task: Any, resources: Mapping[str, float], shards: Iterator[Shard]
    ) -> None:
        """Starts nothing yet.

        Args:
            ray: The module, connected.
            name: Name of the worker processes.
            task: Ray's reference to the :class:`calibrators.ray.workers.Task` of every worker.
            resources: What Ray reserves for each worker.
            shards: Each is made when a worker has time for it.
        """
        self._ray, self._task, self._shards = ray, task, shards
        # Ray names a process after its class.
        self._actor = ray.remote(type(name, (_Actor,), {})).options(**resources)
        self._workers: set[Any] = set()
        self._idle: deque[Any] = deque()
        #: By Ray's reference to the answer.
        self._calls: dict[Any, _Call] = {}
        #: Shards in the data's order whose results are still to be given out.
        self._order: deque[_Job] = deque()
        self._to_repeat: deque[_Job] = deque()
        self._deaths: Counter[int | None] = Counter()

    def results(self, workers: int) -> Iterator[Done[Any]]:
        """Has the work done.

        Args:
            workers: The number of workers.

        Yields:
            What came back for each shard, in the order of the data.

        Raises:
            TrtInt8Error: A worker raised it. It is raised once all shards before have been given out.
            WorkerError: Workers died too often.
        """
        for _ in range(workers):
            self._start_worker()
        while True:
            self._assign_to_idle()
            if not self._order and self._idle:
                return
            ready = bool(self._order) and self._order[0].finished
            self._take_answers(wait=not ready)
            if ready and (result := self._take_first_result()):
                self._assign_to_idle()  # before the caller's work, so that none need wait for it
                yield result

    def close(self) -> None:
        """Ends all workers."""
        starting = [reference for reference, call in self._calls.items() if call.job is None]
        if starting:
            # Of an actor that is killed while it starts, Ray 2.60 sometimes keeps the processor for minutes.
            self._ray.wait(starting, num_returns=len(starting), timeout=_SECONDS_TO_START)
        for worker in self._workers:
            self._ray.kill(worker)

    def _start_worker(self) -> None:
        worker = self._actor.remote([self._task], own_modules())
        self._workers.add(worker)
        # Only workers that are ready get shards: others may wait for room in the cluster for ever.
        self._calls[worker.open.remote()] = _Call(worker, None)

    def _assign_to_idle(self) -> None:
        """Finds shards for idle workers."""
        while self._idle and (job := self._next_job()):
            worker = self._idle.popleft()
            # It may have died meanwhile, which is not the shard's fault: first it has to answer.
            self._calls[worker.open.remote()] = _Call(worker, job)

    def _next_job(self) -> _Job | None:
        if self._to_repeat:
            return self._to_repeat.popleft()
        if len(self._order) >= _AHEAD * len(self._workers):
            return None
        shard = next(self._shards, None)
        if shard is None:
            return None
        self._order.append(_Job(shard.first, shard.samples, self._ray.put(shard)))
        return self._order[-1]

    def _take_answers(self, *, wait: bool) -> None:
        """Takes the answers that are there.

        Args:
            wait: Wait for an answer where there is none yet.
        """
        references = list(self._calls)
        if not references:
            return
        count, seconds = (1, None) if wait else (len(references), 0)
        # Only small answers are waited for; results stay where they are.
        answered, _ = self._ray.wait(references, num_returns=count, timeout=seconds)
        for reference in answered:
            self._take_answer(reference, self._calls.pop(reference))

    def _take_answer(self, reference: Any, call: _Call) -> None:
        job = call.job
        try:
            failure: Exception | None = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            failure = error
            if call.result is not None:
                # Of an error that nobody has fetched, Ray prints the traceback.
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._ray.get(call.result)
        except self._ray.exceptions.RayError as error:
            self._replace_worker(call, error)
            return
        if failure is not None:
            if job is None:
                raise failure
            # Raised when it is this shard's turn: which error it is must not depend on who is the quickest.
            job.failure = failure
        if job is None:
            self._deaths[None] = 0
        elif call.result is None:
            self._assign(call.worker, job)
            return
        elif job.failure is None:
            job.result = call.result
        # It has just answered, so it may have the next shard at once.
        following = self._next_job()
        if following:
            self._assign(call.worker, following)
        else:
            self._idle.append(call.worker)

    def _assign(self, worker: Any, job: _Job) -> None:
        answer, result = worker.work.options(num_returns=2).remote(job.shard)
        self._calls[answer] = _Call(worker, job, result)

    def _take_first_result(self) -> Done[Any] | None:
        """The oldest result; None where it is lost, and its shard to be done again."""
        job = self._order[0]
        if job.failure is not None:
            raise job.failure
        try:
            result = self._ray.get(job.result)
        except self._ray.exceptions.RayError as error:
            # Its machine is gone, after the work was done.
            sentence = f"the result of {job} was lost {_DEATHS} times; see why machines leave the Ray cluster"
            self._count_death(job.first, sentence, error)
            job.result = None
            self._to_repeat.append(job)
            return None
        self._order.popleft()
        # Arrays lie in Ray's shared memory; this gives them memory of their own.
        return Done(job.first, job.samples, copy.deepcopy(result))

    def _replace_worker(self, call: _Call, error: Exception) -> None:
        """Starts another worker for one that died, whose shard, of which nothing was counted, is repeated."""
        self._workers.discard(call.worker)
        self._ray.kill(call.worker)
        job = call.job
        advice = f"if memory ran out, use a smaller {Argument('batch_size')} or fewer workers"
        if job is None:
            self._count_death(None, f"{_DEATHS} workers died while opening the model; {advice}", error)
        else:
            if call.result is not None:
                self._count_death(
                    job.first, f"{_DEATHS} workers died while at work on {job}; {advice}", error
                )
            self._to_repeat.append(job)
        self._start_worker()

    def _count_death(self, key: int | None, sentence: str, error: Exception) -> None:
        """Counts a death for a shard, or for opening where the key is None, and gives up after some."""
        self._deaths[key] += 1
        if self._deaths[key] >= _DEATHS:
            raise WorkerError(f"{sentence}. Ray says: {in_words(error)}") from error


class _Actor:
    """A worker in a process of its own.

    Errors of this project are returned: of those that are raised Ray makes tracebacks, and prints some.

    Args:
        task: Ray's reference to the :class:`calibrators.ray.workers.Task`, in a list, from which Ray does not
            take it.
        own: The user's own modules: see :func:`calibrators.imports.own_modules`.
    """

    def __init__(self, task: list[Any], own: Sequence[tuple[str, str]]) -> None:
        self._task, self._own = task, own
        self._work_on: Callable[[Shard], Any] | None = None

    def open(self) -> TrtInt8Error | None:
        """Makes the worker ready. An error in ``__init__`` would look like the worker's death.

        Returns:
            The error, if there is one.
        """
        if self._work_on is None:
            try:
                self._work_on = self._received().open()
            except TrtInt8Error as error:
                return error
        return None

    def _received(self) -> Task[Any]:
        """The task. To unpickle it imports what it is made of."""
        import_lazily()
        for name, folder in self._own:
            find_own_module(name, folder)
        try:
            return cast(Task[Any], import_ray().get(self._task[0]))
        except Exception as error:
            # Ray adds the worker's traceback.
            what = in_words(error).partition(" traceback:")[0]
            raise WorkerError(
                f"a worker cannot load what it was sent: {what}; install what this program imports on every "
                "machine of the Ray cluster"
            ) from error

    def work(self, shard: Shard) -> tuple[TrtInt8Error | None, Any]:
        """Does one shard.

        Returns:
            The error, if there is one; and the result, which is there when this first part is.
        """
        assert self._work_on is not None
        try:
            return None, self._work_on(shard)
        except TrtInt8Error as error:
            return error, None


#: Shards per worker, where the number of batches is known: enough to share the work evenly.
_SHARDS_PER_WORKER = 8

#: The fewest batches per shard, where their number is not known, and the most.
_FEW_BATCHES, _MOST_BATCHES = 8, 64


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
        source = batches.source
        workers = worker_count(ray, executor, threads, ray_computes=source.is_computed)
        size = executor.shard_batches or _shard_batches(batches.num_batches, workers)
        if batches.num_batches is not None:
            workers = max(1, min(workers, -(-batches.num_batches // size)))
        resources = {"num_cpus": threads, "num_gpus": executor.num_gpus}
        task = ray.put(Task(work, source))
        pool = _WorkerPool(ray, type(work).__name__, task, resources, batches.cut(size))
        try:
            yield pool.results(workers)
        finally:
            pool.close()


def _shard_batches(batches: int | None, workers: int) -> int:
    """Batches per shard, for data of so many batches; None where their number is not known."""
    if batches is None:
        # This process must keep up: with more workers each has to be busy for longer.
        return min(_MOST_BATCHES, max(_FEW_BATCHES, workers))
    return min(_MOST_BATCHES, max(1, batches // (_SHARDS_PER_WORKER * workers)))


@contextlib.contextmanager
def results_in_order(
    work: BatchWork[EachResult],
    batches: Batches,
    executor: RayExecutor,
    threads: int,
    *,
    description: str,
    progress: bool,
) -> Iterator[Iterator[EachResult]]:
    """Has workers do the work on all batches.

    Args:
        work: What to do with each batch.
        batches: The data.
        executor: Where to run.
        threads: Processors of each worker.
        description: Text of the progress bar.
        progress: Show a progress bar on a terminal.

    Yields:
        The results, batch by batch in the order of the data; an error where one process would raise it.

    Raises:
        TrtInt8Error: See :func:`calibrators.ray.workers.fan_out`.
    """
    # A worker sees some of the batches only.
    start = _LateError(lambda: labelled_alike(batches.start(), batches.source))
    with (
        fan_out(_EachBatch(work), batches.passing(start), executor, threads) as pickled,
        progress_bar(description, batches.num_samples, enabled=progress) as advance,
    ):
        yield _unpickled(pickled, start, advance)


@dataclass(frozen=True)
class _EachBatch(Generic[EachResult]):
    """Work on a shard: that on single batches, one after another."""

    work: BatchWork[EachResult]

    def open(self) -> Callable[[Batches, int], bytes]:
        function = self.work.open()
        return lambda batches, first: _pickled(of_each(function, batches, first))


def _pickled(results: Iterator[HasSamples]) -> bytes:
    """The results of a shard's batches, pickled; the last entry may be the error that ended them."""
    entries: list[HasSamples | TrtInt8Error] = []
    try:
        for result in results:  # one by one: keeps the results before an error
            entries.append(result)
    except TrtInt8Error as error:
        entries.append(error)
    # Ray's pickle knows classes that exist in the user's program only.
    pickled: bytes = import_ray().cloudpickle.dumps(entries)
    return pickled


def _unpickled(
    pickled: Iterator[Done[bytes]], start: _LateError, advance: Callable[[int], None]
) -> Iterator[Any]:
    unpickle = import_ray().cloudpickle.loads
    for done in pickled:
        for entry in unpickle(done.result):
            if isinstance(entry, TrtInt8Error):
                raise entry
            advance(entry.samples)
            yield entry
    start.raise_error()


class _LateError:
    """Begins passes that end early where the data fails; the error is raised later."""

    def __init__(self, start: Callable[[], Iterator[Any]]) -> None:
        self._start = start
        self._error: Exception | None = None

    def __call__(self) -> Iterator[Any]:
        try:
            yield from self._start()
        except Exception as error:  # noqa: BLE001  # whatever a user's loader raises
            self._error = error

    def raise_error(self) -> None:
        """Raises what the data raised, if it did."""
        if self._error is not None:
            raise self._error
