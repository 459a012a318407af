"""Datasets of other libraries: one sample per index, rows of columns, or blocks of a Ray Dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrators.checks import located
from calibrators.data.batches import IndexedSource, Source, limited, regrouped, warn_left_out
from calibrators.data.feeds import (
    LABEL_KEYS,
    LABELS,
    Binding,
    FedAndLabels,
    FeedDict,
    Indices,
    are_numbers,
    join_samples,
    named_arrays,
)
from calibrators.data.inputs import DEFAULT_BATCH_SIZE, DataOptions, fixed_batches
from calibrators.data.sources.arrays import as_labels
from calibrators.data.sources.streams import Stream, has_columns, refuse_shuffling
from calibrators.errors import CalibrationDataError


@dataclass(frozen=True, eq=False)
class Rows(Stream):
    """The rows of a streamed dataset of Hugging Face, one sample each."""

    @classmethod
    def open(cls, data: Any, binding: Binding, options: DataOptions) -> Stream:
        """Opens a streamed dataset for a model; see :class:`Stream`.

        Raises:
            CalibrationDataError: It is to be shuffled; or, while it is read, a column is not there.
        """
        refuse_shuffling(options)

        def start() -> Iterator[dict[str, Any]]:  # rows as feed dicts of one sample, not prepared
            return (sample_arrays(_row(row, binding), binding) for row in iter(_as_arrays(data)))

        return cls.of(start, binding, options, passes_on=False)


@dataclass(frozen=True, eq=False)
class Indexed(IndexedSource):
    """A dataset that gives one sample per index, and perhaps its label with it; read here, without workers.

    Attributes:
        dataset: The dataset.
        binding: Says what feeds the model.
        rows: Whether its samples are rows of columns.
        labelled: Whether its labels are taken.
    """

    dataset: Any
    binding: Binding
    rows: bool
    labelled: bool

    @classmethod
    def open(cls, data: Any, binding: Binding, options: DataOptions) -> Indexed:
        """Opens a dataset for a model.

        Raises:
            CalibrationDataError: It is empty.
        """
        if not len(data):
            raise CalibrationDataError(
                f"the data is an empty {type(data).__name__}; pass at least one sample"
            )
        rows = has_columns(data)
        labelled = options.labels is None
        return cls(_as_arrays(data) if rows else data, binding, rows, labelled, count=len(data))

    def read(self, batch: Indices) -> FedAndLabels:
        """Reads and joins the samples of a batch.

        Args:
            batch: Their indices, shape (n,).

        Returns:
            What the model is fed, and the labels; None where there are none.

        Raises:
            CalibrationDataError: A sample does not fit the model, or samples have different shapes.
        """
        indices = batch.tolist()
        read = [self._read_one(index) for index in indices]

        def join(samples: Sequence[FeedDict]) -> FeedDict:
            return join_samples(samples, lambda place: f"sample {indices[place]} of the data", self.binding)

        labels = [{LABELS: own} for _, own in read if own is not None]
        if labels and len(labels) != len(read):
            raise CalibrationDataError(
                "some samples of the data come with labels and others without; give all or none"
            )
        return join([feed for feed, _ in read]), join(labels)[LABELS] if labels else None

    def _read_one(self, index: int) -> FedAndLabels:
        sample = self.dataset[index]
        with located(f"sample {index} of the data"):
            arrays = sample_arrays(_row(sample, self.binding) if self.rows else sample, self.binding)
            feed, labels = self.binding.split(arrays)
            self.binding.check(feed)
            return self.binding.prepare(feed), labels if self.labelled else None


def sample_arrays(sample: object, binding: Binding) -> dict[str, Any]:
    """Names the parts of one sample after the model's inputs, and gives each a batch axis of 1.

    Args:
        sample: What :func:`calibrators.data.sources.streams.named_arrays` takes, without the batch axis.
        binding: Says what feeds the model.

    Returns:
        Input name to array, and ``labels`` where there are any that are numbers.
    """
    named = named_arrays(sample, binding)
    arrays = {
        name: value[np.newaxis] if isinstance(value, np.ndarray) else value for name, value in named.items()
    }
    if LABELS in arrays and LABELS not in {spec.name for spec in binding.inputs}:
        label = arrays.pop(LABELS)
        if are_numbers(label):
            arrays[LABELS] = label if isinstance(label, np.ndarray) else np.asarray(label)[np.newaxis]
    return arrays


def _as_arrays(dataset: Any) -> Any:
    """A dataset of Hugging Face whose rows are arrays; a format or transform of the user's is kept."""
    is_streamed = not hasattr(dataset, "__len__")
    has_format = not is_streamed and (getattr(dataset, "format", None) or {}).get("type") is not None
    return dataset if has_format else dataset.with_format("numpy")


def _row(row: Any, binding: Binding) -> Any:
    """The columns of a row that the model takes, and its labels.

    Raises:
        CalibrationDataError: There is no column for an input.
    """
    names = [spec.name for spec in binding.inputs]
    columns = [name for name in row if name not in LABEL_KEYS]
    if len(names) == len(columns) == 1:
        return {names[0] if name == columns[0] else name: value for name, value in row.items()}
    for name in names:
        if name not in row:
            free = next((column for column in columns if column not in names), "COLUMN")
            raise CalibrationDataError(
                f"the dataset has no column '{name}', which is an input of the model; it has "
                f"{', '.join(map(repr, row))}: rename one with dataset.rename_column({free!r}, {name!r})"
            )
    return row


@dataclass(frozen=True)
class Slice:
    """Rows of a block.

    Attributes:
        block: Ray's reference to the block.
        start: The first row.
        stop: The row after the last.
    """

    block: Any
    start: int
    stop: int

    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start

    def part(self, start: int, stop: int) -> Slice:
        """Its rows from one number on, up to another."""
        return Slice(self.block, self.start + start, self.start + stop)


@dataclass(frozen=True, eq=False)
class Blocks(Source):
    """A Ray Dataset: where its rows are is looked up here, and they are read where they are needed.

    Its columns are inputs, and a column ``labels`` holds labels. A dataset's only column besides ``labels``
    feeds a model's only input, whatever the column is called.

    Attributes:
        dataset: The dataset. Its blocks are computed as they are asked for, in the order in which they become
            ready. Only references to them are held here.
        binding: Says what feeds the model.
        limit: The most samples to take; all where None.
        whole: Leave out samples at the end that do not fill a batch.
    """

    dataset: Any = field(repr=False)
    binding: Binding
    limit: int | None
    whole: bool

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "dataset": None}

    @classmethod
    def open(cls, data: Any, binding: Binding, options: DataOptions) -> Blocks:
        """Opens a Ray Dataset for a model.

        Raises:
            CalibrationDataError: It is to be shuffled, or its labels do not come with it.
        """
        from ray.data.dataset import MaterializedDataset

        refuse_shuffling(options)
        if options.labels is not None:
            raise CalibrationDataError(
                "labels that do not come with a Ray Dataset cannot be matched with its rows; "
                "put them into a column 'labels'"
            )
        is_computed = not isinstance(data, MaterializedDataset)
        whole = bool(fixed_batches(binding.inputs))
        return cls(data, binding, options.limit, whole, is_computed=is_computed)

    def batches(self, size: int | None) -> Iterator[list[Slice]]:
        """One pass over the dataset.

        Args:
            size: Samples per batch.

        Yields:
            Where the samples of a batch are.

        Warns:
            UserWarning: Samples were left out.
        """
        size = size or DEFAULT_BATCH_SIZE
        pieces = limited(_blocks(self.dataset), self.limit, Slice.rows, Slice.part)
        for batch in regrouped(pieces, size, Slice.rows, Slice.part):
            if self.whole and (rows := self.samples(batch)) < size:
                warn_left_out(rows, size)
            else:
                yield batch

    def samples(self, batch: Sequence[Slice]) -> int:
        """How many rows the slices have."""
        return sum(map(Slice.rows, batch))

    def read(self, batch: Sequence[Slice]) -> FedAndLabels:
        """Joins the slices of a batch.

        Returns:
            What the model is fed, and the labels; None where there are none.

        Raises:
            CalibrationDataError: Columns or element types are not what the model takes.
        """
        fed = {spec.name for spec in self.binding.inputs}
        pieces = [arrays for piece in batch for arrays in _arrays(piece)]
        columns = join_samples(pieces, lambda place: f"row {place} of a batch", self.binding)
        has_labels = len(columns) > 1 and LABELS not in fed
        labels = columns.pop(LABELS, None) if has_labels else None
        if len(columns) == len(fed) == 1:
            columns = {self.binding.inputs[0].name: next(iter(columns.values()))}
        feed, _ = self.binding.split(columns)
        self.binding.check(feed)
        if labels is not None:
            labels = as_labels(labels, None, f"the column '{LABELS}'")
        return self.binding.prepare(feed), labels


def _blocks(dataset: Any) -> Iterator[Slice]:
    for bundle in dataset.iter_internal_ref_bundles():
        # Ray before 2.50 has no slices.
        parts = getattr(bundle, "slices", None) or [None] * len(bundle.block_refs)
        for block, metadata, part in zip(bundle.block_refs, bundle.metadata, parts, strict=True):
            yield Slice(
                block,
                part.start_offset if part else 0,
                part.end_offset if part else metadata.num_rows,
            )


def _arrays(piece: Slice) -> list[FeedDict]:
    """The columns of a slice; of each row by itself where rows have different shapes."""
    import ray
    from ray.data.block import BlockAccessor

    block = BlockAccessor.for_block(ray.get(piece.block)).slice(piece.start, piece.stop)
    columns: FeedDict = BlockAccessor.for_block(block).to_batch_format("numpy")
    if not any(column.dtype.hasobject for column in columns.values()):
        return [columns]
    return [
        {name: np.asarray(column[row])[np.newaxis] for name, column in columns.items()}
        for row in range(piece.rows())
    ]
