"""Calibration data cut into shards that can be read by other processes, on other machines too.

A shard is a run of whole batches: the very batches that one process would make of all the data. So where
the data is cut decides nothing about what the model is fed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.data.batches import DEFAULT_BATCH_SIZE, Batches, open_batches, open_source
from calibrators.data.binding import Binding
from calibrators.data.feeds import FeedDict, batch_rows
from calibrators.data.inputs import InputSpec
from calibrators.data.sources import Source
from calibrators.errors import CalibrationDataError
from calibrators.ray.block_shards import BlockReader, block_batches, is_computed, is_dataset


@dataclass(frozen=True)
class Shard:
    """A run of batches, on its way to a worker.

    Attributes:
        first: How many samples of the data come before it.
        samples: How many it has.
        batches: What its reader needs to make each batch.
        labels: Class index per sample, int64; None where there are none, or where the reader has them.
    """

    first: int
    samples: int
    batches: Sequence[Any]
    labels: NDArray[np.int64] | None = None


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
        batch_size: Samples a batch; None where an iterable's feed dicts are passed on as they come.
        labels: Class index per sample in the order of the data, int64; None where there are none, or where
            they are read with the samples.
    """

    reader: Reader
    start: Callable[[], Iterator[tuple[int, Any]]]
    samples: int | None = None
    batches: int | None = None
    computed: bool = False
    batch_size: int | None = None
    labels: NDArray[np.int64] | None = None

    def cut(self, batches: int) -> Iterator[Shard]:
        """One pass over the data.

        Args:
            batches: How many of them make a shard; the last may have fewer.
        """
        first, start = 0, self.start()
        while taken := list(islice(start, batches)):
            samples = sum(rows for rows, _ in taken)
            labels = None if self.labels is None else self.labels[first : first + samples]
            yield Shard(first, samples, [batch for _, batch in taken], labels)
            first += samples

    def begun(self) -> tuple[Shard | None, Shards]:
        """Takes the first batch of a pass out, to look at it before the pass goes on.

        Returns:
            The batch as a shard, None where there is none; and the same data, that batch included, for the
            one pass that has begun.
        """
        start = self.start()
        head = list(islice(start, 1))
        only_head = replace(self, start=lambda: iter(head))
        return next(only_head.cut(1), None), replace(self, start=lambda: chain(head, start))


def labelled_feeds(reader: Reader, shard: Shard) -> Iterator[tuple[FeedDict, NDArray[np.int64] | None]]:
    """Reads a shard with its labels.

    Args:
        reader: The data's.
        shard: Of the same data.

    Yields:
        What the model is fed, batch by batch; and the labels from the batch's first sample on, which may go
        beyond its last one. None where there are no labels.
    """
    if isinstance(reader, BlockReader):
        yield from reader.read_labelled(shard.batches)
        return
    labels = shard.labels
    for feed in reader.read(shard.batches):
        yield feed, labels
        if labels is not None:
            rows = batch_rows(feed)
            labels = labels[1 if rows is None else rows :]


def open_shards(data: Any, inputs: Sequence[InputSpec], **options: Any) -> Shards:
    """Opens data for several workers.

    Args:
        data: What :func:`calibrators.data.batches.open_batches` takes, or a Ray Dataset. A path is opened by
            every worker, under the same name. The samples of arrays go out as they are and are preprocessed
            by the workers; an iterable is read, and preprocessed, here.
        inputs: What the model takes.
        **options: Those of ``open_batches``. A Ray Dataset has its labels in a column ``labels``.

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
    order = _order(source, inputs, options)
    if isinstance(data, np.ndarray | Mapping):
        return _open_arrays(data, binding, order)
    # A worker has another working folder.
    place = data if str(data).startswith("random:") else str(Path(data).absolute())
    reader = FileReader(place, binding, seed, source.count)
    return _shards(reader, lambda: _numbered(order), order)


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


def _order(source: Source, inputs: Sequence[InputSpec], options: Mapping[str, Any]) -> Batches:
    """Which samples each batch takes, and their labels: what ``open_batches`` makes of their numbers."""
    number = np.dtype(np.intp)
    specs = [InputSpec(spec.name, number, (spec.static_batch,)) for spec in inputs]
    numbers = np.arange(source.count)
    kept = {name: value for name, value in options.items() if name != "preprocessing"}
    if kept.get("labels") is None:
        kept["labels"] = source.labels
    return open_batches({spec.name: numbers for spec in specs}, specs, **kept)


def _shards(reader: Reader, start: Callable[[], Iterator[tuple[int, Any]]], batches: Batches) -> Shards:
    """Shards of data whose batches are known."""
    samples, size = batches.num_samples, batches.batch_size
    count = None if samples is None or size is None else -(-samples // size)
    return Shards(reader, start, samples, count, batch_size=size, labels=batches.labels)


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

    return _shards(FeedReader(binding), start, order)


def _open_iterable(batches: Batches, binding: Binding) -> Shards:
    def start() -> Iterator[tuple[int, FeedDict]]:
        for feed in batches:
            rows = batch_rows(feed)
            # Copied, because a loader may overwrite its buffers once it is asked for the next feed.
            yield 1 if rows is None else rows, {name: array.copy() for name, array in feed.items()}

    # They are preprocessed already.
    return _shards(FeedReader(Binding(binding.inputs)), start, batches)


def _open_dataset(data: Any, binding: Binding, options: Mapping[str, Any]) -> Shards:
    if options.get("labels") is not None:
        raise CalibrationDataError(
            "labels that do not come with a Ray Dataset cannot be matched with its rows; "
            "put them into a column 'labels'"
        )
    # An iterable's rules hold: its number of samples is not known, and it cannot be shuffled here.
    nothing: tuple[FeedDict, ...] = ()
    open_batches(lambda: nothing, binding.inputs, **options)
    fixed = next((spec.static_batch for spec in binding.inputs if spec.static_batch), None)
    size = options.get("batch_size") or fixed or DEFAULT_BATCH_SIZE
    return Shards(
        BlockReader(binding),
        lambda: block_batches(data, size, options.get("limit"), whole=fixed is not None),
        computed=is_computed(data),
        batch_size=size,
    )
