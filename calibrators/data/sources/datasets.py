"""A Ray Dataset as batches: slices of blocks, which stay in Ray's object store until a worker reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import LABELS, Binding, FeedDict
from calibrators.data.sources.arrays import as_labels
from calibrators.data.sources.streams import warn_left_out
from calibrators.errors import CalibrationDataError


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
