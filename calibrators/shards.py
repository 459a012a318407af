"""Calibration data cut into shards that can be read by other processes, on other machines too.

A shard is a run of whole batches: the very batches that one process would make of all the data. So where
the data is cut decides nothing about what the model is fed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.batches import DEFAULT_BATCH_SIZE, Batches, open_batches, open_source
from calibrators.binding import Binding
from calibrators.block_shards import BlockReader, block_batches, is_computed, is_dataset
from calibrators.errors import CalibrationDataError
from calibrators.feeds import FeedDict, batch_rows
from calibrators.inputs import InputSpec
from calibrators.sources import Source


@dataclass(frozen=True)
class Shard:
    """A run of batches, on its way to a worker.

    Attributes:
        first: How many samples of the data come before it.
        samples: How many it has.
        batches: What its reader needs to make each batch.
    """

    first: int
    samples: int
    batches: Sequence[Any]


class Reader(Protocol):
    """Makes feed dicts of a shard. It is sent to every worker once, and used there again and again."""

    def read(self, batches: Sequence[Any]) -> Iterator[FeedDict]:
        """What the model is fed, batch by batch."""
        ...


@dataclass(frozen=True, eq=False)
class Shards:
    """Data that can be cut.

    Attributes:
        reader: Makes feed dicts of the shards.
        start: Begins a pass over the data: how many samples each batch has, and what the reader needs.
        samples: How many samples there are; None where that is not known before the end.
        batches: How many batches there are; None likewise.
        computed: Whether Ray computes the data while it is read, for which it needs a processor.
    """

    reader: Reader
    start: Callable[[], Iterator[tuple[int, Any]]]
    samples: int | None = None
    batches: int | None = None
    computed: bool = False

    def cut(self, batches: int) -> Iterator[Shard]:
        """One pass over the data.

        Args:
            batches: How many of them make a shard; the last may have fewer.
        """
        first, start = 0, self.start()
        while taken := list(islice(start, batches)):
            samples = sum(rows for rows, _ in taken)
            yield Shard(first, samples, [batch for _, batch in taken])
            first += samples


def open_shards(data: Any, inputs: Sequence[InputSpec], **options: Any) -> Shards:
    """Opens data for several workers.

    Args:
        data: What :func:`calibrators.batches.open_batches` takes, or a Ray Dataset. A path is opened by every
            worker, under the same name. The samples of arrays go out as they are and are preprocessed by the
            workers; an iterable is read, and preprocessed, here.
        inputs: What the model takes.
        **options: Those of ``open_batches``, but for ``labels``.

    Returns:
        The shards; together they hold the batches that ``open_batches`` would give.

    Raises:
        CalibrationDataError: As ``open_batches``.
    """
    binding = Binding(tuple(inputs), options.get("preprocessing"))
    if is_dataset(data):
        return _open_dataset(data, binding, options)
    seed = options.get("seed", 0)
    source = None if isinstance(data, Batches) else open_source(data, binding, seed)
    if source is None:
        return _open_iterable(open_batches(data, inputs, **options), binding)
    order = _order(source.count, inputs, options)
    if isinstance(data, np.ndarray | Mapping):
        return _open_arrays(data, binding, order)
    # A worker has another working folder.
    place = data if str(data).startswith("random:") else str(Path(data).absolute())
    reader = FileReader(place, binding, seed, source.count)
    return Shards(reader, lambda: _numbered(order), order.num_samples, _count(order))


@dataclass(frozen=True)
class FileReader:
    """Reads samples by number from files, or makes random ones.

    Attributes:
        data: An absolute path, or ``random:COUNT``.
        binding: Says what feeds the model.
        seed: Of random samples.
        count: How many samples there were where the data was cut.
    """

    data: str
    binding: Binding
    seed: int
    count: int

    def read(self, batches: Sequence[NDArray[np.intp]]) -> Iterator[FeedDict]:
        """Reads batches, each given as the numbers of its samples."""
        return (self._source.read(numbers) for numbers in batches)

    @cached_property
    def _source(self) -> Source:
        source = open_source(self.data, self.binding, self.seed)
        if source is None or source.count != self.count:
            raise CalibrationDataError(
                f"'{self.data}' has {source.count if source else 'no'} samples for a worker but {self.count} "
                "for the program that cut it; put it where all machines see the same"
            )
        return source


@dataclass(frozen=True)
class FeedReader:
    """Takes feeds that come with the shard.

    Attributes:
        binding: Says how they are prepared.
    """

    binding: Binding

    def read(self, batches: Sequence[FeedDict]) -> Iterator[FeedDict]:
        """Prepares one feed after another."""
        return map(self.binding.prepare, batches)


def _order(count: int, inputs: Sequence[InputSpec], options: Mapping[str, Any]) -> Batches:
    """Which samples each batch takes: what ``open_batches`` makes of their numbers."""
    number = np.dtype(np.intp)
    specs = [InputSpec(spec.name, number, (spec.static_batch,)) for spec in inputs]
    numbers = np.arange(count)
    kept = {name: value for name, value in options.items() if name != "preprocessing"}
    return open_batches({spec.name: numbers for spec in specs}, specs, **kept)


def _count(batches: Batches) -> int | None:
    if batches.num_samples is None or batches.batch_size is None:
        return None
    return -(-batches.num_samples // batches.batch_size)


def _numbered(order: Iterable[FeedDict]) -> Iterator[tuple[int, NDArray[Any]]]:
    for feed in order:
        numbers = next(iter(feed.values()))
        yield len(numbers), numbers


def _open_arrays(data: Any, binding: Binding, order: Batches) -> Shards:
    named = {binding.only_input("an array").name: data} if isinstance(data, np.ndarray) else data
    fed, _ = binding.split(named)

    def start() -> Iterator[tuple[int, FeedDict]]:
        for rows, numbers in _numbered(order):
            yield rows, {name: array[numbers] for name, array in fed.items()}

    return Shards(FeedReader(binding), start, order.num_samples, _count(order))


def _open_iterable(batches: Batches, binding: Binding) -> Shards:
    def start() -> Iterator[tuple[int, FeedDict]]:
        for feed in batches:
            rows = batch_rows(feed)
            # Copied, because a loader may overwrite its buffers once it is asked for the next feed.
            yield 1 if rows is None else rows, {name: array.copy() for name, array in feed.items()}

    # They are preprocessed already.
    return Shards(FeedReader(Binding(binding.inputs)), start, batches.num_samples, _count(batches))


def _open_dataset(data: Any, binding: Binding, options: Mapping[str, Any]) -> Shards:
    # An iterable's rules hold: its number of samples is not known, and it cannot be shuffled here.
    nothing: tuple[FeedDict, ...] = ()
    open_batches(lambda: nothing, binding.inputs, **options)
    fixed = next((spec.static_batch for spec in binding.inputs if spec.static_batch), None)
    size = options.get("batch_size") or fixed or DEFAULT_BATCH_SIZE
    return Shards(
        BlockReader(binding),
        lambda: block_batches(data, size, options.get("limit"), whole=fixed is not None),
        computed=is_computed(data),
    )
