"""Sources of samples, and batches: what divides a source by numbers.

A source says what is known of its samples, and reads them. A batch is made when it is asked for: by iterating
in this process, or by a worker that was sent a shard and reads it with the same source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from calibrators.checks import FilePath, warn_user
from calibrators.data.feeds import (
    LABELS,
    Array,
    FedAndLabels,
    FeedDict,
    Indices,
    Ints,
    NameOf,
    OneSample,
    is_float,
    samples_in,
)
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DEFAULT_BATCH_SIZE, CalibratedInputs, DataOptions
from calibrators.data.samples import NamesOfPart, numbered
from calibrators.errors import Argument, CalibrationDataError, counted, enumerated

_Batch = TypeVar("_Batch")
_Piece = TypeVar("_Piece")


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """Samples of one kind, and how they are read.

    A source can be pickled. It is sent to every worker once, and reads there what is sent of batches.

    Attributes:
        count: How many samples there are; None where that is not known before the end of a pass.
        labels: One label per sample in their order: class indices, int64 of shape (samples,), or arrays along
            axis 0; None where there are none, or where they are read with the samples.
        groups: The number of each sample's group, shape (samples,); None where each sample stands alone.
        class_names: Names of the classes by index, if folders give them.
        name_of: Gives what a sample is called in messages, by its number.
        is_single: Whether samples cannot share a batch: each is a feed dict of its own.
        passes_on: Whether the data has put its samples together, and they are passed on so where nobody
            gives a batch size.
        is_random: Whether the values are random.
        is_computed: Whether a cluster computes the samples while they are read, and needs a processor.
    """

    count: int | None = None
    labels: Array | None = field(default=None, repr=False)
    groups: Indices | None = field(default=None, repr=False)
    class_names: tuple[str, ...] | None = None
    name_of: NameOf = field(default=numbered, repr=False)
    is_single: bool = False
    passes_on: bool = False
    is_random: bool = False
    is_computed: bool = False

    def __getstate__(self) -> dict[str, Any]:
        # Labels and names of samples travel with these; groups are for who puts results together.
        return {**self.__dict__, "labels": None, "groups": None, "name_of": numbered}

    def batches(self, size: int | None) -> Iterator[Any]:
        """Begins a pass over the samples in batches that are not read yet.

        Args:
            size: Samples per batch; None where nobody has said.
        """
        raise NotImplementedError

    def samples(self, batch: Any) -> int:
        """How many samples a batch has."""
        raise NotImplementedError

    def read(self, batch: Any) -> FedAndLabels:
        """What the model is fed, and the labels where they are stored with the samples.

        Raises:
            CalibrationDataError: A sample cannot be read, or does not fit the model.
        """
        raise NotImplementedError

    def first(self) -> FeedDict:
        """The first sample; an empty dict where it cannot be read without beginning a pass."""
        return {}

    def taken(self, order: Indices, **changed: Any) -> Source:
        """Takes some of the samples.

        Args:
            order: Those that are taken, in their order, shape (samples,).
            changed: What is known otherwise of the samples that are taken.
        """
        raise NotImplementedError

    def of_some(self, order: Indices) -> dict[str, Any]:
        """What is known of some of the samples, in their order: those with these numbers."""
        arrays = {name: known for name in ("labels", "groups") if (known := getattr(self, name)) is not None}
        taken = {name: known[order] for name, known in arrays.items()}
        return {"count": len(order), "name_of": partial(_named, self.name_of, order), **taken}

    def boxes(
        self,
        labels: Any,
        order: Indices,  # noqa: ARG002  # images need it
        preprocessing: Preprocessing | None,  # noqa: ARG002
    ) -> Array:
        """The boxes of images in a file of COCO's instances.

        Args:
            labels: The file.
            order: The samples that are taken.
            preprocessing: What the images go through.

        Raises:
            CalibrationDataError: The samples are no images, or the file does not fit them.
        """
        raise CalibrationDataError(
            f"labels file '{labels}' is taken for the boxes of images, and the data is no folder of images; "
            "give a .npy or .npz file"
        )


def facts(source: Source) -> dict[str, Any]:
    """What is known of a source, for a source around it."""
    return {known.name: getattr(source, known.name) for known in fields(Source)}


@dataclass(frozen=True, eq=False)
class IndexedSource(Source):
    """Samples in a known number, at least one, readable in any order."""

    def batches(self, size: int | None) -> Iterator[Any]:
        """Begins a pass over the samples."""
        return self.batches_of(np.arange(self.count or 0), size)

    def batches_of(self, order: Indices, size: int | None) -> Iterator[Any]:
        """Begins a pass over some samples.

        Args:
            order: Their numbers, shape (n,).
            size: Samples per batch; None where nobody has said.
        """
        size = 1 if self.is_single else size or DEFAULT_BATCH_SIZE
        return (self.batch(order[first : first + size]) for first in range(0, len(order), size))

    def batch(self, indices: Indices) -> Any:
        """What is needed to read some samples elsewhere."""
        return indices

    def samples(self, batch: Any) -> int:
        """How many samples a batch has."""
        return len(batch)

    def first(self) -> FeedDict:
        """The first sample."""
        return self.read(self.batch(np.arange(1)))[0]

    def is_bad(self, sample: int) -> bool:  # noqa: ARG002  # files need it
        """Whether a sample cannot be read."""
        return False

    def taken(self, order: Indices, **changed: Any) -> Source:
        """Takes some of the samples."""
        if len(order) == self.count and np.array_equal(order, np.arange(len(order))):
            return replace(self, **changed)
        return _Taken.of(self, order, **{**self.of_some(order), **changed})


@dataclass(frozen=True, eq=False)
class AtPath(IndexedSource):
    """Samples at a path, which each process opens for itself.

    Attributes:
        place: The absolute path: a worker has another working folder.
        opens: Opens it.
        opened: What was opened; None in a process that has not read from it yet.
    """

    place: str
    opens: Callable[[Path], IndexedSource] = field(repr=False)
    opened: IndexedSource | None = field(repr=False)

    @classmethod
    def of(cls, path: FilePath, opens: Callable[[Path], IndexedSource]) -> AtPath:
        """Opens a path."""
        opened = opens(Path(path))
        return cls(str(Path(path).absolute()), opens, opened, **facts(opened))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "opened": None}

    def read(self, batch: Indices) -> FedAndLabels:
        """What the model is fed, and the labels where they are stored with the samples.

        Raises:
            CalibrationDataError: The path cannot be read, or has another number of samples than it had where
                it was opened first.
        """
        source = self._opened_here()
        return source.read(source.batch(batch))

    def boxes(self, labels: Any, order: Indices, preprocessing: Preprocessing | None) -> Array:
        """The boxes of images in a file of COCO's instances."""
        return self._opened_here().boxes(labels, order, preprocessing)

    def is_bad(self, sample: int) -> bool:
        """Whether a sample cannot be read."""
        return self._opened_here().is_bad(sample)

    def _opened_here(self) -> IndexedSource:
        if self.opened is not None:
            return self.opened
        opened = self.opens(Path(self.place))
        if opened.count != self.count:
            raise CalibrationDataError(
                f"'{self.place}' has {opened.count} samples for a worker but {self.count} for the program "
                "that cut it; put it where all machines see the same"
            )
        object.__setattr__(self, "opened", opened)
        return opened


@dataclass(frozen=True, eq=False)
class _Started(Source):
    """Batches that are put together already.

    Attributes:
        start: Begins a pass over them.
    """

    start: Callable[[], Iterator[Any]] = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "start": None}

    def batches(self, size: int | None) -> Iterator[Any]:  # noqa: ARG002  # they have their size already
        """Begins a pass over the batches as they are."""
        return self.start()


@dataclass(frozen=True, eq=False)
class Feeds(_Started):
    """Feed dicts that are prepared already.

    Attributes:
        labelled: Whether labels may stand in them, under the key ``labels``.
    """

    labelled: bool = False

    def samples(self, batch: FeedDict) -> int:
        """How many samples a feed dict has; 1 where its arrays do not share axis 0."""
        return samples_in(batch)

    def read(self, batch: FeedDict) -> FedAndLabels:
        """The feed dict, and the labels where it has any."""
        labels = batch.get(LABELS) if self.labelled else None
        if labels is not None:
            batch = {name: array for name, array in batch.items() if name != LABELS}
        return batch, labels


# Sources around a source -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Around(Source):
    """A source that reads as another one does.

    Attributes:
        source: The other one.
    """

    source: Source

    @classmethod
    def of(cls, source: Source, *more: Any, **changed: Any) -> Around:
        """Puts one around a source.

        Args:
            source: The source.
            more: The other values of the class, in order.
            changed: What is known otherwise of the samples.
        """
        return cls(source, *more, **{**facts(source), **changed})

    def batches(self, size: int | None) -> Iterator[Any]:
        """Begins a pass over the samples."""
        return self.source.batches(size)

    def samples(self, batch: Any) -> int:
        """How many samples a batch has."""
        return self.source.samples(batch)

    def read(self, batch: Any) -> FedAndLabels:
        """What the model is fed, and the labels where they are stored with the samples."""
        return self.source.read(batch)

    def taken(self, order: Indices, **changed: Any) -> Source:
        """Takes some of the samples."""
        return replace(self, source=self.source.taken(order), **{**self.of_some(order), **changed})


@dataclass(frozen=True, eq=False)
class _Taken(Around):
    """Some samples of a source, in some order.

    Attributes:
        source: All of them.
        order: Those that are taken, shape (samples,).
    """

    source: IndexedSource
    order: Indices = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # Batches say which samples they hold.
        return {**super().__getstate__(), "order": self.order[:0]}

    def batches(self, size: int | None) -> Iterator[Any]:
        """Begins a pass over the samples that are taken."""
        return self.source.batches_of(self.order, size)

    def first(self) -> FeedDict:
        """The first sample that is taken."""
        return self.source.read(self.source.batch(self.order[:1]))[0]

    def taken(self, order: Indices, **changed: Any) -> Source:
        """Takes some of these samples."""
        return replace(self, order=self.order[order], **{**self.of_some(order), **changed})


def _named(name_of: NameOf, order: Indices, sample: int) -> str:
    """What a sample is called, wherever it is in the order of iteration."""
    return name_of(int(order[sample]))


@dataclass(frozen=True, eq=False)
class _Begun(_Started, Around):
    """A source of which passes begin otherwise, such as one that goes on with a pass."""

    taken = Source.taken  # a pass has the samples that it has


class _Whole(Around):
    """Takes each batch as one sample, whatever lies along axis 0 of its arrays."""

    def samples(self, batch: Any) -> int:  # noqa: ARG002  # as every source
        """One."""
        return 1

    def read(self, batch: Any) -> FedAndLabels:
        """What the model is fed, and the labels where they are stored with the samples."""
        feed, labels = self.source.read(batch)
        return OneSample(feed), labels


class _ReadAlready(_Begun):
    """Batches that were read."""

    def samples(self, batch: LabelledFeed) -> int:
        """How many samples a batch has; 1 where its arrays do not share axis 0."""
        return samples_in(batch.feed)

    def read(self, batch: LabelledFeed) -> FedAndLabels:
        """What the model is fed, and the labels where there are any."""
        return batch.feed, batch.labels


# Pieces of samples that arrive one after another -------------------------------------------------------


def regrouped(
    pieces: Iterable[_Piece],
    size: int,
    rows: Callable[[_Piece], int],
    part: Callable[[_Piece, int, int], _Piece],
) -> Iterator[list[_Piece]]:
    """Pieces of samples as lists of pieces that have so many together; the last may have fewer.

    Args:
        pieces: The pieces, in order.
        size: How many samples.
        rows: Gives how many samples a piece has.
        part: Gives the samples of a piece from one number on, up to another.
    """
    batch: list[_Piece] = []
    waiting = 0
    for piece in pieces:
        start, count = 0, rows(piece)
        while start < count:
            stop = min(count, start + size - waiting)
            batch.append(part(piece, start, stop))
            waiting, start = waiting + stop - start, stop
            if waiting == size:
                yield batch
                batch, waiting = [], 0
    if batch:
        yield batch


def limited(
    pieces: Iterable[_Piece],
    limit: int | None,
    rows: Callable[[_Piece], int],
    part: Callable[[_Piece, int, int], _Piece],
) -> Iterator[_Piece]:
    """The first pieces of samples, which have at most so many together; all where ``limit`` is None.

    Args:
        pieces: The pieces, in order.
        limit: How many samples.
        rows: Gives how many samples a piece has.
        part: Gives the samples of a piece from one number on, up to another.
    """
    left = math.inf if limit is None else limit
    for piece in pieces:
        count = rows(piece)
        yield part(piece, 0, int(left)) if count > left else piece
        left -= count
        if left <= 0:  # before asking for a piece that nobody would see
            return


# Batches -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """A run of batches, on its way to a worker.

    Attributes:
        first: How many samples of the data come before it.
        samples: How many samples it has.
        batches: The batches, not read yet.
        labels: One label per sample; None where there are none, or where they are read with the samples.
        name_of: Gives what one of its samples is called in messages, by its number in the data.
    """

    first: int
    samples: int
    batches: Sequence[Any]
    labels: Array | None = None
    name_of: NameOf = numbered


@dataclass(frozen=True)
class LabelledFeed:
    """A batch that was read.

    Attributes:
        feed: What the model is fed.
        labels: Labels from the batch's first sample on, which may go beyond its last one; None where
            there are no labels.
        first: How many samples of the data come before the batch.
    """

    feed: FeedDict
    labels: Array | None
    first: int


@dataclass(frozen=True, eq=False)
class Batches:
    """Feed dicts that can be iterated again and again (a generator's only once).

    Attributes:
        source: The samples.
        batch_size: Samples per feed dict. None if the feed dicts of an iterable are used without a change, or
            if the reader decides.
    """

    source: Source = field(repr=False)
    batch_size: int | None = None

    @classmethod
    def of_feeds(cls, start: Callable[[], Iterator[FeedDict]], **known: Any) -> Batches:
        """Feed dicts that are prepared already.

        Args:
            start: Begins a pass over them.
            known: What is known of them: see :class:`Source`.
        """
        return cls(Feeds(start, passes_on=True, **known))

    @property
    def num_samples(self) -> int | None:
        """The number of samples of a pass; None if that is not known before its end."""
        return self.source.count

    @property
    def labels(self) -> Array | None:
        """One label per sample in the order of iteration: see :class:`Source`."""
        return self.source.labels

    @property
    def groups(self) -> Indices | None:
        """The number of each sample's group in the order of iteration: see :class:`Source`."""
        return self.source.groups

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by index, if folders give them."""
        return self.source.class_names

    @property
    def name_of(self) -> NameOf:
        """Returns the name of a sample in messages, by its number in the order of iteration."""
        return self.source.name_of

    @property
    def num_batches(self) -> int | None:
        """The number of batches of a pass; None if that is not known before its end."""
        if self.num_samples is None or self.batch_size is None:
            return None
        return -(-self.num_samples // self.batch_size)

    @property
    def usual_rows(self) -> int:
        """The number of samples of most batches, if that is known before they are read; else 1."""
        if self.batch_size is None:
            return 1
        return self.batch_size if self.num_samples is None else min(self.batch_size, self.num_samples)

    def fitting(self, size: int | Callable[[FeedDict], int]) -> Batches:
        """Returns the same samples in batches of a suitable size, unless a size was given.

        Args:
            size: The size, or a function that gives it for the first sample. The function gets an empty dict
                if the sample cannot be read yet.
        """
        if self.batch_size is not None or self.source.passes_on:
            return self
        return replace(self, batch_size=size(self.source.first()) if callable(size) else size)

    def start(self) -> Iterator[Any]:
        """Begins a pass over the batches as the source reads them. Nothing is read yet."""
        return self.source.batches(self.batch_size)

    def __iter__(self) -> Iterator[FeedDict]:
        for batch in self.start():
            yield self.source.read(batch)[0]

    def labelled(self, first: int = 0) -> Iterator[LabelledFeed]:
        """One pass over the feed dicts with their labels.

        Args:
            first: How many samples of the data come before these batches.

        Raises:
            CalibrationDataError: Some batches have labels and others have none, or one cannot be read.
        """
        labels = self.labels
        for batch in labelled_alike(self.start(), self.source, first):
            feed, own_labels = self.source.read(batch)
            samples = samples_in(feed)
            yield LabelledFeed(feed, labels if own_labels is None else own_labels, first)
            first += samples
            if labels is not None:
                labels = labels[samples:]

    def cut(self, batches: int) -> Iterator[Shard]:
        """One pass over the data, in runs of whole batches that other processes can read.

        The way in which the data is cut does not change the inputs of the model.

        Args:
            batches: How many batches make a shard; the last one may have fewer.
        """
        first, start = 0, self.start()
        while some := list(islice(start, batches)):
            samples = sum(map(self.source.samples, some))
            labels = None if self.labels is None else self.labels[first : first + samples]
            yield Shard(first, samples, some, labels, NamesOfPart.of(self.name_of, first, samples))
            first += samples

    @classmethod
    def of_shard(cls, shard: Shard, source: Source) -> Batches:
        """Returns a shard as separate data. Its samples keep their names and their numbers in messages.

        Args:
            shard: A run of batches.
            source: The source of the data that the shard was cut from.
        """
        known = {"count": shard.samples, "labels": shard.labels, "name_of": shard.name_of}
        return cls(_Begun.of(source, lambda: iter(shard.batches), **known))

    def begun(self, samples: int = 1) -> tuple[Shard | None, Batches]:
        """Takes the first batches of a pass out, to look at them before the pass is continued.

        Args:
            samples: How many samples the batches have together, or more; fewer where the data has fewer, or
                fails behind the first batch.

        Returns:
            The batches as a shard, None where there are none; and the same data, those batches included, for
            the one pass that has begun.
        """
        head, rest = _begun(self.start(), self.source.samples, samples)
        only_head = self.passing(lambda: iter(head))
        return next(only_head.cut(len(head)), None), self.passing(lambda: chain(head, rest))

    def passing(self, start: Callable[[], Iterator[Any]], **changed: Any) -> Batches:
        """The same data, of which passes begin otherwise.

        Args:
            start: Begins a pass over batches that are not read yet.
            changed: What is known otherwise of the samples of such a pass: see :class:`Source`.
        """
        return replace(self, source=_Begun.of(self.source, start, **changed))

    def whole(self) -> Batches:
        """Returns the same data with each batch as one sample, whatever lies along axis 0 of its arrays."""
        known = {"count": self.num_batches, "labels": None, "groups": None, "name_of": numbered}
        return Batches(_Whole.of(self.passing(self.start).source, **known), 1)

    def read_ahead(self, nbytes: int) -> tuple[list[LabelledFeed], Batches]:
        """Reads the first batches of a pass before the pass is continued.

        Args:
            nbytes: How many bytes the batches have together, or a batch more; fewer where the data has fewer,
                or fails behind the first batch.

        Returns:
            The batches; and the same data for the one pass that has begun, which gives these batches as they
            are, the same objects.
        """

        def size(batch: LabelledFeed) -> int:
            return sum(array.nbytes for array in batch.feed.values())

        first, rest = _begun(self.labelled(), size, nbytes)
        return first, replace(self, source=_ReadAlready.of(self.source, lambda: chain(first, rest)))


def warn_left_out(count: int, fixed_batch: int) -> None:
    """Says that samples at the end do not fill a batch of a model that takes no other."""
    samples = "sample" if count == 1 else f"{count} samples"
    warn_user(
        f"left out the last {samples}, too few to fill the model's fixed batch of {fixed_batch}", note=True
    )


#: How many files that cannot be read a warning names.
_MOST_NAMED = 20


def bad_samples(source: IndexedSource, options: DataOptions, classes: Ints | None = None) -> frozenset[int]:
    """Reads the samples that would be taken, and returns the numbers of those that cannot be read.

    In the place of each, the next one is read, until all that are taken are sound.

    Args:
        source: The samples.
        options: Which of them are taken.
        classes: See :func:`sample_order`.

    Raises:
        CalibrationDataError: None can be read.

    Warns:
        UserWarning: Some cannot be read; names them.
    """
    assert source.count is not None
    read: dict[int, bool] = {}
    bad: frozenset[int] = frozenset()
    while new := set(_chosen(source.count, options, classes, bad).tolist()) - read.keys():
        read |= {sample: source.is_bad(sample) for sample in sorted(new)}
        bad = frozenset(sample for sample, is_bad in read.items() if is_bad)
    names = list(dict.fromkeys(map(source.name_of, sorted(bad))))
    if len(bad) == source.count:
        raise CalibrationDataError(
            f"no file of the data can be read ({counted(len(names), 'file')}, such as {names[0]}); replace "
            "them, or give other data"
        )
    if names:
        verb = "is" if len(names) == 1 else "are"
        warn_user(
            f"{counted(len(names), 'file')} of the data cannot be read and {verb} skipped: "
            f"{enumerated(names, _MOST_NAMED)}"
        )
    return bad


def sample_order(
    count: int,
    options: DataOptions,
    fixed_batch: int | None,
    classes: Ints | None = None,
    bad: Collection[int] = (),
) -> Indices:
    """Indices of the samples that are taken, in their order.

    Args:
        count: How many samples there are.
        options: Which of them are taken.
        fixed_batch: The model's only batch size; None where it takes any.
        classes: The class of each sample where samples lie sorted by class, so that the first ones would be
            those of one class; int64, shape (count,).
        bad: The samples that are never taken.

    Raises:
        CalibrationDataError: They do not fill a batch of a model that takes no other.
    """
    order = _chosen(count, options, classes, bad)
    if not fixed_batch or not len(order) % fixed_batch:
        return order
    if len(order) < fixed_batch:
        raise CalibrationDataError(
            f"the data has {counted(len(order), 'sample')} but the model has a fixed batch of {fixed_batch}; "
            f"give at least {fixed_batch}"
        )
    left_out = len(order) % fixed_batch
    warn_left_out(left_out, fixed_batch)
    return order[: len(order) - left_out]


def _chosen(count: int, options: DataOptions, classes: Ints | None, bad: Collection[int]) -> Indices:
    """The samples that are taken where batches have any size: see :func:`sample_order`."""
    order = np.random.default_rng(options.seed).permutation(count) if options.shuffle else np.arange(count)
    if bad:
        order = order[~np.isin(order, list(bad))]
    if options.limit is None or options.limit >= len(order):
        return order
    return order[first_samples(options.limit, None if options.shuffle or classes is None else classes[order])]


def first_samples(limit: int, classes: Ints | None) -> Indices:
    """The samples that a limit takes: the first sample of each class, then the second of each, and so on.

    Where the limit is not enough for one more sample of each, the classes that have one more are evenly
    spaced among them all.

    Args:
        limit: How many; at most as many as there are.
        classes: The class of each sample where samples lie sorted by class.
    """
    if classes is None:
        return np.arange(limit)
    _, first, sizes = np.unique(classes, return_index=True, return_counts=True)
    rounds = np.arange(len(classes)) - np.repeat(first, sizes)
    order = np.lexsort((classes, rounds))
    whole = int(np.searchsorted(rounds[order], rounds[order[limit]]))
    last = order[whole : np.searchsorted(rounds[order], rounds[order[limit]], side="right")]
    wanted = limit - whole
    return np.concatenate([order[:whole], last[np.arange(wanted) * len(last) // max(wanted, 1)]])


def labelled_alike(batches: Iterator[Any], source: Source, first: int = 0) -> Iterator[Any]:
    """Passes on batches that were not read yet, of which all or none come with labels of their own.

    Metrics would take those of some batches for those of all.

    Args:
        batches: The batches. Those that are no feed dicts have their labels from one place.
        source: Their source.
        first: How many samples of the data come before them.

    Raises:
        CalibrationDataError: Some have labels and others have none.
    """
    expected: bool | None = None
    for batch in batches:
        has_labels = isinstance(batch, dict) and LABELS in batch
        if expected not in (None, has_labels):
            found = (
                "labels, and those before it have none" if has_labels else "no labels, unlike those before it"
            )
            raise CalibrationDataError(
                f"the batch that begins with sample {first} has {found}; give labels with every batch, or "
                "with none"
            )
        expected = has_labels
        first += source.samples(batch)
        yield batch


def _begun(
    start: Iterator[_Batch], size: Callable[[_Batch], int], least: int
) -> tuple[list[_Batch], Iterator[_Batch]]:
    """The first batches of a pass, and the others. What fails behind the first one does so in its turn.

    Args:
        start: The pass.
        size: Gives the size of a batch.
        least: The size that the first batches have together.
    """
    head, failures = list(islice(start, 1)), []
    read = sum(map(size, head))
    try:
        while head and read < least:
            head.append(next(start))
            read += size(head[-1])
    except StopIteration:
        pass
    except Exception as error:  # noqa: BLE001  # whatever a user's loader raises
        failures.append(error)

    def rest() -> Iterator[_Batch]:
        if failures:
            raise failures[0]
        yield from start

    return head, rest()


class Observer(Protocol):
    """What looks at every batch that is read."""

    def observe(self, feed: FeedDict) -> object:
        """Looks at a batch."""
        ...


@dataclass(frozen=True, eq=False)
class _Observed(Around):
    """A source that shows what was read of it.

    Attributes:
        source: The source.
        seen: Is shown what was read.
    """

    seen: Observer

    def read(self, batch: Any) -> FedAndLabels:
        """What the model is fed, and the labels where they are stored with the samples."""
        feed, labels = self.source.read(batch)
        self.seen.observe(feed)
        return feed, labels


def observed(batches: Batches, seen: Observer) -> Batches:
    """The same samples, which are shown as they are read.

    Args:
        batches: The samples.
        seen: Is shown each batch.
    """
    return replace(batches, source=_Observed.of(batches.source, seen))


#: How many times as large as all calibration samples an input's values may be before that is doubtful.
_BEYOND = 2.0

#: The share of values beyond those of the calibration from which an input is doubtful.
_SHARE_BEYOND = 0.01


class _InputRanges:
    """Watches whether inputs stay near the values that a model was calibrated with.

    Args:
        peaks: Input name to the largest magnitude of its values in the calibration.
        what: What was calibrated, in words.
    """

    def __init__(self, peaks: Mapping[str, float], what: str) -> None:
        self._peaks, self._what = dict(peaks), what
        self._largest = dict.fromkeys(self._peaks, 0.0)
        self._beyond = dict.fromkeys(self._peaks, 0)
        self._values = dict.fromkeys(self._peaks, 0)

    def observe(self, feed: FeedDict) -> None:
        """Looks at a batch."""
        for name, peak in self._peaks.items():
            array = feed.get(name)
            if array is None or not array.size or not is_float(array.dtype):
                continue
            self._values[name] += array.size
            largest = float(max(array.max(), -array.min()))
            if largest > peak:
                self._largest[name] = max(self._largest[name], largest)
                self._beyond[name] += int(np.count_nonzero(np.abs(array) > peak))

    def finish(self) -> None:
        """Warns of inputs that went far beyond.

        Warns:
            UserWarning: An input did.
        """
        for name, peak in self._peaks.items():
            largest, beyond = self._largest[name], self._beyond[name]
            # An input that was all zeros, as the first state of a sequence is, says nothing of what is usual.
            if peak and largest > _BEYOND * peak and beyond > _SHARE_BEYOND * self._values[name]:
                share = 100 * beyond / self._values[name]
                warn_user(
                    f"the input '{name}' has values up to {largest:g}, and {self._what} was calibrated with "
                    f"values up to {peak:g}: {share:.0f} % of them are beyond, where INT8 clips; check "
                    f"that {Argument('preprocessing')} is that of the calibration"
                )


@contextmanager
def warning_of_inputs(
    calibrated: CalibratedInputs | None, what: str, *parts: Batches
) -> Iterator[tuple[Batches, ...]]:
    """Warns, when the samples were read, of inputs far beyond those of a calibration.

    Args:
        calibrated: What was fed during the calibration; None where that is not known.
        what: What was calibrated, in words.
        parts: The samples.

    Yields:
        The same samples, for this process.

    Warns:
        UserWarning: An input went far beyond.
    """
    if calibrated is None or not calibrated.peaks:
        yield parts
        return
    ranges = _InputRanges(calibrated.peaks, what)
    yield tuple(observed(part, ranges) for part in parts)
    ranges.finish()
