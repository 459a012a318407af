"""Datasets of other libraries: one sample per index, rows of columns, or blocks of a Ray Dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import LABELS, Binding, FeedDict
from calibrators.data.inputs import shape_text
from calibrators.data.sources.arrays import as_labels
from calibrators.data.sources.streams import (
    LABEL_KEYS,
    are_numbers,
    known_length,
    named_arrays,
    warn_left_out,
)
from calibrators.errors import CalibrationDataError


def is_indexed(data: Any) -> bool:
    """Whether something gives one sample per index: a dataset of PyTorch or of Hugging Face with a length."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        return False
    torch_data = sys.modules.get("torch.utils.data")  # nothing is PyTorch's before it was imported
    of_torch = torch_data is not None and isinstance(data, torch_data.Dataset)
    if of_torch and isinstance(data, getattr(torch_data, "IterableDataset", ())):
        return False  # its samples have no indices, though it may have a length
    return (of_torch or has_columns(data)) and known_length(data) is not None


def has_columns(data: Any) -> bool:
    """Whether something is a dataset of Hugging Face, which yields rows of columns."""
    return hasattr(data, "column_names") and hasattr(data, "with_format") and not isinstance(data, Mapping)


def row_batches(dataset: Any, binding: Binding) -> Iterator[dict[str, Any]]:
    """The rows of a streamed dataset of Hugging Face as feed dicts of one sample, not prepared.

    Args:
        dataset: The dataset.
        binding: Says what feeds the model.

    Raises:
        CalibrationDataError: A column is not there.
    """
    return (sample_arrays(_row(row, binding), binding) for row in iter(_as_arrays(dataset)))


@dataclass(frozen=True)
class SampleReader:
    """Reads samples by index and joins them to batches; reads them in this process, without workers.

    Attributes:
        dataset: The dataset, as :func:`opened` returns it.
        binding: Says what feeds the model.
        rows: Whether its samples are rows of columns.
        labelled: Whether its labels are taken.
    """

    dataset: Any
    binding: Binding
    rows: bool
    labelled: bool

    @classmethod
    def of(cls, dataset: Any, binding: Binding, *, labelled: bool) -> SampleReader:
        """The reader of a dataset (see :func:`is_indexed`)."""
        rows = has_columns(dataset)
        return cls(_as_arrays(dataset) if rows else dataset, binding, rows, labelled)

    def samples(self, batch: NDArray[np.intp]) -> int:
        """How many indices there are."""
        return len(batch)

    def read(self, batch: NDArray[np.intp]) -> tuple[FeedDict, NDArray[Any] | None]:
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
        feed = {name: _joined(name, [one for one, _ in read], indices) for name in read[0][0]}
        labels = [{LABELS: own} for _, own in read if own is not None]
        if labels and len(labels) != len(read):
            raise CalibrationDataError(
                "some samples of the data come with labels and others without; give all or none"
            )
        return feed, _joined(LABELS, labels, indices) if labels else None

    def _read_one(self, index: int) -> tuple[FeedDict, NDArray[Any] | None]:
        sample = self.dataset[index]
        try:
            arrays = sample_arrays(_row(sample, self.binding) if self.rows else sample, self.binding)
            feed, labels = self.binding.split(arrays)
            self.binding.check(feed)
            return self.binding.prepare(feed), labels if self.labelled else None
        except CalibrationDataError as error:
            raise CalibrationDataError(f"sample {index} of the data: {error}") from error


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


def _joined(name: str, samples: Sequence[Mapping[str, NDArray[Any]]], indices: Sequence[int]) -> NDArray[Any]:
    """One array of all samples along axis 0."""
    first = samples[0][name]
    for index, sample in zip(indices, samples, strict=True):
        if sample[name].shape != first.shape:
            raise CalibrationDataError(
                f"sample {index} of the data gives '{name}' the shape {shape_text(sample[name].shape[1:])} "
                f"but sample {indices[0]} gives {shape_text(first.shape[1:])}; bring all samples to one shape"
            )
    return np.concatenate([sample[name] for sample in samples])


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


def is_dataset(data: Any) -> bool:
    """Whether something is a Ray Dataset. Nothing is one before Ray Data was imported."""
    ray_data = sys.modules.get("ray.data")
    return ray_data is not None and isinstance(data, ray_data.Dataset)


def block_batches(dataset: Any, size: int, limit: int | None, *, whole: bool) -> Iterator[list[Slice]]:
    """One pass over a Ray Dataset, of which only references are held here.

    Args:
        dataset: The dataset. Its blocks are computed as they are asked for, in the order in which they become
            ready.
        size: Samples per batch.
        limit: The most samples to take; all where None.
        whole: Leave out samples at the end that do not fill a batch.

    Yields:
        Where the samples of a batch are.

    Warns:
        UserWarning: Samples were left out.
    """
    batch: list[Slice] = []
    rows = 0
    for piece in _limited(_blocks(dataset), limit):
        start = piece.start
        while start < piece.stop:
            stop = min(piece.stop, start + size - rows)
            batch.append(Slice(piece.block, start, stop))
            rows += stop - start
            start = stop
            if rows == size:
                yield batch
                batch, rows = [], 0
    if rows and whole:
        warn_left_out(rows, size)
    elif rows:
        yield batch


@dataclass(frozen=True)
class BlockReader:
    """Reads slices of blocks; columns are inputs, and a column ``labels`` holds labels.

    Attributes:
        binding: Says what feeds the model. A dataset's only column besides ``labels`` feeds a model's only
            input, whatever the column is called.
        computes: Whether Ray computes the blocks while the data is read, for which it needs a processor.
    """

    binding: Binding
    computes: bool

    @classmethod
    def of(cls, dataset: Any, binding: Binding) -> BlockReader:
        """The reader of a Ray Dataset."""
        from ray.data.dataset import MaterializedDataset

        return cls(binding, computes=not isinstance(dataset, MaterializedDataset))

    def samples(self, batch: Sequence[Slice]) -> int:
        """How many rows the slices have."""
        return sum(piece.stop - piece.start for piece in batch)

    def read(self, batch: Sequence[Slice]) -> tuple[FeedDict, NDArray[Any] | None]:
        """Joins the slices of a batch.

        Returns:
            What the model is fed, and the labels; None where there are none.

        Raises:
            CalibrationDataError: Columns or element types are not what the model takes.
        """
        fed = {spec.name for spec in self.binding.inputs}
        pieces = [_arrays(piece) for piece in batch]
        try:
            columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        except ValueError as error:
            raise CalibrationDataError(
                f"samples of different shapes cannot share a batch ({error}); bring them to one shape"
            ) from error
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


def _limited(pieces: Iterator[Slice], limit: int | None) -> Iterator[Slice]:
    if limit is None:
        yield from pieces
        return
    left = limit
    for piece in pieces:
        yield Slice(piece.block, piece.start, min(piece.stop, piece.start + left))
        left -= piece.stop - piece.start
        if left <= 0:  # before asking for a block that nobody would see
            return


def _arrays(piece: Slice) -> FeedDict:
    import ray
    from ray.data.block import BlockAccessor

    block = BlockAccessor.for_block(ray.get(piece.block)).slice(piece.start, piece.stop)
    columns: FeedDict = BlockAccessor.for_block(block).to_batch_format("numpy")
    return columns
