"""Work on each batch by itself, here or by workers of a Ray cluster, with results in the order of the data.

Workers' results are put together as one process would: batch after batch, and no further than one process
would go. So an error waits for its turn too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from calibrators.data.batches import Batches, FeedDict
from calibrators.data.shards import labelled_alike
from calibrators.errors import TrtInt8Error
from calibrators.progress import progress_bar
from calibrators.ray.cluster import import_ray
from calibrators.ray.executor import RayExecutor
from calibrators.ray.fan_out import Done, fan_out


class HasSamples(Protocol):
    """What came out for one batch; anything that can be pickled."""

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        ...


Result = TypeVar("Result", bound=HasSamples)
Result_co = TypeVar("Result_co", bound=HasSamples, covariant=True)

#: Takes a batch, labels from its first sample on, how many samples of the data come before it, and what gives
#: the name of a sample for messages, by its number in the data.
BatchFunction = Callable[[FeedDict, NDArray[Any] | None, int, Callable[[int], str]], Result_co]


class BatchWork(Protocol[Result_co]):
    """Work on single batches. It is pickled, and sent to every worker once."""

    def open(self) -> BatchFunction[Result_co]:
        """Opens what the work needs, in the worker's process.

        Raises:
            TrtInt8Error: Something cannot be opened.
        """
        ...


@contextlib.contextmanager
def results_here(
    function: BatchFunction[Result], batches: Batches, *, description: str, progress: bool
) -> Iterator[Iterator[Result]]:
    """Does the work on all batches in this process.

    Args:
        function: What to do with each batch.
        batches: The data.
        description: Text of the progress bar.
        progress: Show a progress bar on a terminal.

    Yields:
        The results, batch by batch in the order of the data.
    """

    def results() -> Iterator[Result]:
        for result in _of_each(function, batches):
            advance(result.samples)
            yield result

    with progress_bar(description, batches.num_samples, enabled=progress) as advance:
        yield results()


@contextlib.contextmanager
def results_in_order(
    work: BatchWork[Result],
    batches: Batches,
    executor: RayExecutor,
    threads: int,
    *,
    description: str,
    progress: bool,
) -> Iterator[Iterator[Result]]:
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
        TrtInt8Error: See :func:`calibrators.ray.fan_out.fan_out`.
    """
    # A worker sees some of the batches only.
    start = _LateError(lambda: labelled_alike(batches.start(), batches.reader))
    with (
        fan_out(_EachBatch(work), replace(batches, start=start), executor, threads) as pickled,
        progress_bar(description, batches.num_samples, enabled=progress) as advance,
    ):
        yield _unpickled(pickled, start, advance)


@dataclass(frozen=True)
class _EachBatch(Generic[Result]):
    """Work on a shard: that on single batches, one after another."""

    work: BatchWork[Result]

    def open(self) -> Callable[[Batches, int], bytes]:
        function = self.work.open()
        return lambda batches, first: _pickled(_of_each(function, batches, first))


def _of_each(function: BatchFunction[Result], batches: Batches, first: int = 0) -> Iterator[Result]:
    """What a function returns for one batch after another, before which there are ``first`` samples."""
    name_of = batches.name_of
    return (function(batch.feed, batch.labels, batch.first, name_of) for batch in batches.labelled(first))


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
