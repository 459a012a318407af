"""The one way in for calibration and validation data: anything that holds samples becomes batches.

Opening data decides which samples stand in which batch, and reads labels and .npz files. A batch is made when
it is asked for: by iterating in this process, or by a worker that was sent a shard, with the same reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators.checks import refuse_empty_path
from calibrators.data.axes import BatchAxes, check_axes
from calibrators.data.feeds import LABELS, Binding, FeedDict, batch_rows, copied_feed, listed
from calibrators.data.file_reader import FileReader, open_source
from calibrators.data.images.coco_boxes import read_coco_boxes
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import InputSpec
from calibrators.data.options import Array, DataOptions, LabelSource
from calibrators.data.order import check_fixed, fixed_batches, runs, sample_order
from calibrators.data.recorded_steps import RecordedSteps, recorded_steps
from calibrators.data.samples.names import NamesOfPart, in_data, numbered
from calibrators.data.sequences import StateSequences
from calibrators.data.shards import (
    FeedReader,
    LabelledFeed,
    ReadAlready,
    Reader,
    Shard,
    WholeReader,
    labelled_alike,
)
from calibrators.data.sources.arrays import Source, load_labels
from calibrators.data.sources.datasets import BlockReader, block_batches, is_dataset
from calibrators.data.sources.indexed import SampleReader, has_columns, is_indexed, row_batches
from calibrators.data.sources.items import as_array, is_tensor, known_length
from calibrators.data.sources.random_samples import RANDOM
from calibrators.data.sources.streams import Stream, restartable
from calibrators.errors import Argument, CalibrationDataError

__all__ = ["Batches", "DataSource", "FeedDict", "open_batches", "open_data"]

_Batch = TypeVar("_Batch")


@dataclass(frozen=True, eq=False)
class Batches:
    """Feed dicts that can be iterated again and again (a generator's only once).

    Attributes:
        start: Begins a pass over the batches as the reader takes them. Nothing is read yet.
        batch_size: Samples per feed dict; None where an iterable's feed dicts are passed on as they come.
        num_samples: How many samples a pass has; None where that is not known before its end.
        labels: One label per sample in the order of iteration: class indices, int64 of shape (samples,), or
            arrays along axis 0; None where there are none, or where they are read with the samples.
        class_names: Names of the classes by index, where folders give them.
        reader: Makes a feed dict of each batch.
        name_of: Gives what a sample is called in messages, by its number in the order of iteration.
    """

    start: Callable[[], Iterator[Any]] = field(repr=False)
    batch_size: int | None = None
    num_samples: int | None = None
    labels: NDArray[Any] | None = field(default=None, repr=False)
    class_names: tuple[str, ...] | None = None
    reader: Reader = field(default=FeedReader(), repr=False)
    name_of: Callable[[int], str] = field(default=numbered, repr=False)

    @property
    def num_batches(self) -> int | None:
        """How many batches a pass has; None where that is not known before its end."""
        if self.num_samples is None or self.batch_size is None:
            return None
        return -(-self.num_samples // self.batch_size)

    @property
    def usual_rows(self) -> int:
        """How many samples most batches have, as far as that is known before they are read; else 1."""
        if self.batch_size is None:
            return 1
        return self.batch_size if self.num_samples is None else min(self.batch_size, self.num_samples)

    def __iter__(self) -> Iterator[FeedDict]:
        return (self.reader.read(batch)[0] for batch in self.start())

    def labelled(self, first: int = 0) -> Iterator[LabelledFeed]:
        """One pass over the feed dicts with their labels.

        Args:
            first: How many samples of the data come before these batches.

        Raises:
            CalibrationDataError: Some batches have labels and others have none, or one cannot be read.
        """
        labels = self.labels
        for batch in labelled_alike(self.start(), self.reader, first):
            feed, own_labels = self.reader.read(batch)
            rows = batch_rows(feed)
            samples = 1 if rows is None else rows
            yield LabelledFeed(feed, labels if own_labels is None else own_labels, first)
            first += samples
            if labels is not None:
                labels = labels[samples:]

    def cut(self, batches: int) -> Iterator[Shard]:
        """One pass over the data, in runs of whole batches that other processes can read.

        Where the data is cut decides nothing about what the model is fed.

        Args:
            batches: How many batches make a shard; the last one may have fewer.
        """
        first, start = 0, self.start()
        # Each batch is copied at once, because a loader may overwrite its buffers for the next one.
        while taken := [_copied(batch) for batch in islice(start, batches)]:
            samples = sum(map(self.reader.samples, taken))
            labels = None if self.labels is None else self.labels[first : first + samples]
            yield Shard(first, samples, taken, labels, NamesOfPart.of(self.name_of, first, samples))
            first += samples

    @classmethod
    def of_shard(cls, shard: Shard, reader: Reader) -> Batches:
        """A shard as data of its own, whose samples keep their names and their numbers in messages.

        Args:
            shard: A run of batches.
            reader: The reader of the data that the shard was cut from.
        """
        return cls(
            lambda: iter(shard.batches),
            num_samples=shard.samples,
            labels=shard.labels,
            reader=reader,
            name_of=shard.name_of,
        )

    def begun(self, samples: int = 1) -> tuple[Shard | None, Batches]:
        """Takes the first batches of a pass out, to look at them before the pass is continued.

        Args:
            samples: How many samples the batches have together, or more; fewer where the data has fewer, or
                fails behind the first batch.

        Returns:
            The batches as a shard, None where there are none; and the same data, those batches included, for
            the one pass that has begun.
        """

        def enough(head: list[Any]) -> bool:
            return sum(map(self.reader.samples, head)) >= samples

        head, rest = _begun(self.start(), enough, _copied)
        only_head = replace(self, start=lambda: iter(head))
        return next(only_head.cut(len(head)), None), replace(self, start=lambda: chain(head, rest))

    def whole(self) -> Batches:
        """The same data with each batch as one sample, whatever lies along axis 0 of its arrays."""
        return replace(
            self,
            batch_size=1,
            num_samples=self.num_batches,
            labels=None,
            reader=WholeReader(self.reader),
            name_of=numbered,
        )

    def read_ahead(self, nbytes: int) -> tuple[list[LabelledFeed], Batches]:
        """Reads the first batches of a pass before the pass is continued.

        Args:
            nbytes: How many bytes the batches have together, or a batch more; fewer where the data has fewer,
                or fails behind the first batch.

        Returns:
            The batches; and the same data for the one pass that has begun, which gives these batches as they
            are, the same objects.
        """

        def enough(first: list[LabelledFeed]) -> bool:
            return sum(array.nbytes for batch in first for array in batch.feed.values()) >= nbytes

        def copied(batch: LabelledFeed) -> LabelledFeed:
            return replace(batch, feed=_copied(batch.feed))

        first, rest = _begun(self.labelled(), enough, copied)
        return first, replace(self, start=lambda: chain(first, rest), reader=ReadAlready())


class RayDataset(Protocol):
    """A ``ray.data.Dataset``, by two methods that it has and no other kind of data."""

    def materialize(self) -> object:
        """Computes the dataset."""
        ...

    def num_blocks(self) -> int | None:
        """How many blocks it has."""
        ...


#: What calibration and validation data may be: see :func:`open_batches`.
DataSource: TypeAlias = (
    str
    | os.PathLike[str]
    | Array
    | Mapping[str, Array]
    | BatchAxes
    | StateSequences
    | RecordedSteps
    | Iterable[object]
    | Callable[[], Iterable[object]]
    | Batches
    | RayDataset
)


def open_batches(
    data: DataSource,
    inputs: Sequence[InputSpec],
    *,
    batch_size: int | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
    labels: LabelSource | None = None,
) -> Batches:
    """Opens calibration or validation data for a model. Samples are read when they are iterated.

    Args:
        data: One of

            - a path: a .npz (keys are input names) or .npy file; a folder of such files, each one sample, or
              a block of samples with the batch axis; or a folder of images, flat or with one sub-folder per
              class, or with true boxes beside them (see :mod:`calibrators.data.images.true_boxes`);
            - an array or tensor for the model's only input, or a dict of these, with samples along axis 0;
            - :class:`calibrators.data.axes.BatchAxes`: a .npz or a dict of arrays of which some inputs have
              their samples along another axis. Each sample is then a feed dict of its own, as it is where an
              input is one number;
            - :class:`calibrators.data.sequences.StateSequences`, where there is a float model to record the
              states with: every step is then a feed dict of its own;
            - an iterable, or a callable without arguments that returns one, of feed dicts, of arrays for the
              model's only input, or of tuples with an array for each input in the model's order and perhaps
              labels after them: a ``DataLoader`` of PyTorch, for example, whose tensors may be on a GPU;
            - a dataset of PyTorch, which gives one sample per index. It is read in this process; where that
              is slow, a ``DataLoader`` with workers is faster;
            - a dataset of Hugging Face, whose columns are inputs and, if called ``label`` or ``labels``,
              labels; a model's only input takes the only other column;
            - a Ray Dataset, whose columns are inputs and, if called ``labels``, labels;
            - the text ``random:COUNT``: random values, for timing only; where other dimensions than the
              batch are dynamic, with the shape of a sample, as in ``random:64,images=3x480x640``;
            - :class:`Batches`, which are returned as they are.

            The key ``labels`` of a dict or .npz is never fed. It holds class indices, or one array per sample
            that an output can be compared with. Workers of a Ray cluster open a path themselves, under the
            same name. The samples of arrays are sent to them as they are and are preprocessed there; an
            iterable is read, and preprocessed, in this process.
        inputs: What the model takes.
        batch_size: Samples per feed dict. By default the model's fixed batch, else 32; feed dicts of an
            iterable are passed on as they come.
        limit: The most samples to take; all where None. Of a folder with one sub-folder per class, one sample
            of each class in turn.
        shuffle: Take the samples in a random order, before ``limit`` is applied.
        seed: Seed of the random order, and of the values of ``random:COUNT``.
        preprocessing: What raw uint8 images (N, H, W, C) go through. A model with one input then takes the
            only array of a dict or .npz whatever its key.
        labels: One label per sample in the order of the data, as an array or a .npy or .npz file, or for a
            folder of images a .json file of COCO's instances; replaces the data's own. For an iterable their
            number is compared at the end of a pass.

    Returns:
        The batches. Their arrays are C-contiguous and have the inputs' element types.

    Raises:
        CalibrationDataError: The data is unreadable, empty, or does not fit the model or the options.
        UnsupportedError: Images are to be read and Pillow is not installed.

    Warns:
        UserWarning: The model has a fixed batch and the last samples do not fill one: they are left out.
    """
    return open_data(data, inputs, DataOptions(batch_size, limit, shuffle, seed, preprocessing, labels))


def open_data(data: DataSource, inputs: Sequence[InputSpec], options: DataOptions) -> Batches:
    """:func:`open_batches` with its options in one object."""
    if isinstance(data, Batches):
        _check_untouched(options)
        return data
    binding = Binding(tuple(inputs), options.preprocessing)
    if isinstance(data, BatchAxes):
        check_axes(data, binding)
        binding = replace(binding, batch_axes=dict(data.axes))
        data = data.data
    if isinstance(data, StateSequences):
        raise CalibrationDataError(
            "states are recorded by running the float model, and here is none; give the states of each step "
            f"as data, such as a .npz with {Argument('BatchAxes')}"
        )
    if isinstance(data, RecordedSteps):
        data = recorded_steps(data, binding)
    if is_tensor(data):
        data = as_array(data)
    if isinstance(data, Mapping):
        data = {name: as_array(array) for name, array in data.items()}
    refuse_empty_path("the data", data, CalibrationDataError)
    if isinstance(data, str | os.PathLike | np.ndarray | Mapping):
        return _open_samples(data, binding, options)
    if is_indexed(data):
        return _open_indexed(data, binding, options)
    if options.shuffle:
        raise CalibrationDataError("cannot shuffle an iterable of feed dicts; shuffle it where it is made")
    if has_columns(data):
        size = options.batch_size or _fixed_batch(binding) or options.default_size(dict)
        data, options = partial(row_batches, data, binding), replace(options, batch_size=size)
    return _open_dataset(data, binding, options) if is_dataset(data) else _open_stream(data, binding, options)


def _open_samples(data: Any, binding: Binding, options: DataOptions) -> Batches:
    """Data whose samples can be read in any order."""
    first = None if options.shuffle else options.limit
    source = open_source(data, binding, options.seed, first)
    if source.single:
        order, size = _single(source.count, options)
    else:
        classes = source.labels if source.class_names else None
        order, size = _order(source.count, binding, options, source.read, classes)
    if options.labels is None:
        labels = None if source.labels is None else source.labels[order]
    else:
        labels = _own_labels(source, options, order)
    start: Callable[[], Iterator[Any]] = partial(runs, order, size)
    reader: Reader
    if isinstance(data, str | os.PathLike):
        # A worker has another working folder.
        place = data if isinstance(data, str) and data.startswith(RANDOM) else str(Path(data).absolute())
        reader = FileReader(place, binding, options.seed, first, source)
    elif source.single:
        start, reader = partial(_each_of, source, order), FeedReader()
    else:
        start, reader = partial(_rows_of, source.arrays, order, size), FeedReader(binding)
    return Batches(
        start,
        batch_size=size,
        num_samples=len(order),
        labels=labels,
        class_names=source.class_names if options.labels is None else None,
        reader=reader,
        name_of=partial(in_data, source.files, order),
    )


def _open_indexed(data: Any, binding: Binding, options: DataOptions) -> Batches:
    """A dataset that gives one sample per index, and perhaps its label with it."""
    if not len(data):
        raise CalibrationDataError(f"the data is an empty {type(data).__name__}; pass at least one sample")
    labels = None if options.labels is None else load_labels(options.labels, len(data))
    reader = SampleReader.of(data, binding, labelled=labels is None)
    order, size = _order(len(data), binding, options, lambda indices: reader.read(indices)[0])
    return Batches(
        partial(runs, order, size),
        batch_size=size,
        num_samples=len(order),
        labels=None if labels is None else labels[order],
        reader=reader,
        name_of=partial(in_data, (), order),
    )


def _order(
    count: int,
    binding: Binding,
    options: DataOptions,
    read: Callable[[NDArray[np.intp]], FeedDict],
    classes: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.intp], int]:
    """Which samples are taken, in which order, and how many make a batch, for which one may be read."""
    fixed_batch = _fixed_batch(binding)
    check_fixed(options.batch_size, fixed_batches(binding.inputs))
    order = sample_order(count, options, fixed_batch, classes)
    size = options.batch_size or fixed_batch or options.default_size(lambda: read(order[:1]))
    return order, size


def _fixed_batch(binding: Binding) -> int | None:
    """The model's fixed batch, for data that gives one sample at a time; None where it takes any."""
    fixed = fixed_batches(binding.inputs)
    if len(fixed) > 1:
        raise CalibrationDataError(
            f"the model's inputs have different fixed first dimensions: {listed(binding.inputs)}; "
            "pass an iterable of feed dicts"
        )
    return next(iter(fixed), None)


def _open_stream(data: Any, binding: Binding, options: DataOptions) -> Batches:
    """Feed dicts that arrive one after another. They are prepared, and checked, as they arrive."""
    start = restartable(data)
    if known_length(data) == 0:
        raise CalibrationDataError(f"the data is an empty {type(data).__name__}; pass at least one feed dict")
    fixed = fixed_batches(binding.inputs)
    check_fixed(options.batch_size, fixed)
    labels = None if options.labels is None else load_labels(options.labels, None)[: options.limit]
    fixed_batch = next(iter(fixed)) if len(fixed) == 1 else None
    stream = Stream(start, binding, options.batch_size, options.limit, fixed_batch, labels)
    reader = FeedReader(labelled=LABELS not in {spec.name for spec in binding.inputs})
    return Batches(stream, batch_size=options.batch_size, labels=labels, reader=reader)


def _open_dataset(data: Any, binding: Binding, options: DataOptions) -> Batches:
    """A Ray Dataset: where its rows are is looked up here, and they are read where they are needed."""
    if options.labels is not None:
        raise CalibrationDataError(
            "labels that do not come with a Ray Dataset cannot be matched with its rows; "
            "put them into a column 'labels'"
        )
    fixed = fixed_batches(binding.inputs)
    check_fixed(options.batch_size, fixed)
    size = options.batch_size or next(iter(fixed), None) or options.default_size(dict)
    return Batches(
        partial(block_batches, data, size, options.limit, whole=bool(fixed)),
        batch_size=size,
        reader=BlockReader.of(data, binding),
    )


def _own_labels(source: Source, options: DataOptions, order: NDArray[np.intp]) -> NDArray[Any]:
    """Labels that do not come with the samples, in the order of iteration."""
    labels = options.labels
    refuse_empty_path("the labels", labels, CalibrationDataError)
    if not isinstance(labels, str | os.PathLike) or Path(labels).suffix.lower() != ".json":
        return load_labels(labels, source.count)[order]
    if not source.of_images:
        raise CalibrationDataError(
            f"labels file '{labels}' is taken for the boxes of images, and the data is no folder of images; "
            "give a .npy or .npz file"
        )
    files = [source.files[index] for index in order.tolist()]
    return read_coco_boxes(Path(labels), files, options.preprocessing, upright=source.upright)


def _single(count: int, options: DataOptions) -> tuple[NDArray[np.intp], int]:
    """Which samples are taken of those that cannot share a batch."""
    if options.batch_size not in (None, 1):
        raise CalibrationDataError(
            f"{Argument('batch_size')} is {options.batch_size}, and inputs that are one number or have "
            f"another batch axis than 0 are fed one sample at a time; leave {Argument('batch_size')} out"
        )
    return sample_order(count, options, None), 1


def _each_of(source: Source, order: NDArray[np.intp]) -> Iterator[FeedDict]:
    """The samples of one feed after another, prepared."""
    return (source.read(order[index : index + 1]) for index in range(len(order)))


def _rows_of(arrays: FeedDict, order: NDArray[np.intp], size: int) -> Iterator[FeedDict]:
    """The samples of one batch after another, not prepared."""
    return ({name: array[rows] for name, array in arrays.items()} for rows in runs(order, size))


def _begun(
    start: Iterator[_Batch], enough: Callable[[list[_Batch]], bool], copied: Callable[[_Batch], _Batch]
) -> tuple[list[_Batch], Iterator[_Batch]]:
    """The first batches of a pass, and the others. What fails behind the first one does so in its turn.

    Args:
        start: The pass.
        enough: Tells of the first batches whether they are enough.
        copied: Copies a batch, because a loader may overwrite its buffers for the next one.
    """
    head, failures = list(islice(start, 1)), []
    try:
        while head and not enough(head):
            head[-1] = copied(head[-1])
            head.append(next(start))
    except StopIteration:
        pass
    except Exception as error:  # noqa: BLE001  # whatever a user's loader raises
        failures.append(error)

    def rest() -> Iterator[_Batch]:
        if failures:
            raise failures[0]
        yield from start

    return head, rest()


def _copied(batch: Any) -> Any:
    return copied_feed(batch) if isinstance(batch, dict) else batch


def _check_untouched(options: DataOptions) -> None:
    is_given = {
        "batch_size": options.batch_size is not None,
        "limit": options.limit is not None,
        "shuffle": options.shuffle,
        "preprocessing": options.preprocessing is not None,
        "labels": options.labels is not None,
    }
    if given := [f"{Argument(name)}" for name, value in is_given.items() if value]:
        raise CalibrationDataError(
            f"the data is opened already, so {', '.join(given)} would have no effect; "
            "give it where the data is opened"
        )
