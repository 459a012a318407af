"""A Ray Dataset as batches: slices of blocks, which stay in Ray's object store until a worker reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.binding import LABELS, Binding
from calibrators.data.feeds import FeedDict
from calibrators.data.sources import as_labels
from calibrators.data.streams import warn_left_out
from calibrators.errors import CalibrationDataError


@dataclass(frozen=True)
class Slice:
    """Rows of a block.

    Attributes:
        block: Ray's reference.
        start: The first row.
        stop: The row after the last.
    """

    block: Any
    start: int
    stop: int


def is_dataset(data: Any) -> bool:
    """Whether something is a Ray Dataset; where Ray Data was never imported, nothing is."""
    ray_data = sys.modules.get("ray.data")
    return ray_data is not None and isinstance(data, ray_data.Dataset)


def is_computed(dataset: Any) -> bool:
    """Whether reading a Ray Dataset computes it, rather than looking up what is there."""
    from ray.data.dataset import MaterializedDataset

    return not isinstance(dataset, MaterializedDataset)


def block_batches(
    dataset: Any, size: int, limit: int | None, *, whole: bool
) -> Iterator[tuple[int, list[Slice]]]:
    """One pass over a Ray Dataset, of which only references are held here.

    Args:
        dataset: Its blocks are computed as they are asked for, in the order in which they become ready.
        size: Samples a batch.
        limit: Stops after this many samples.
        whole: Leave out samples at the end that do not fill a batch.

    Yields:
        How many samples a batch has, and where they are.

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
                yield rows, batch
                batch, rows = [], 0
    if rows and whole:
        warn_left_out(rows, size)
    elif rows:
        yield rows, batch


@dataclass(frozen=True)
class BlockReader:
    """Reads slices of blocks; columns are inputs, and a column ``labels`` holds class indices.

    Attributes:
        binding: Says what feeds the model. A dataset's only column, labels left out, feeds a model's only
            input, whatever the column is called.
    """

    binding: Binding

    def read(self, batches: Sequence[Sequence[Slice]]) -> Iterator[FeedDict]:
        """Joins the slices of each batch.

        Raises:
            CalibrationDataError: Columns or element types are not what the model takes.
        """
        return (feed for feed, _ in self.read_labelled(batches))

    def read_labelled(
        self, batches: Sequence[Sequence[Slice]]
    ) -> Iterator[tuple[FeedDict, NDArray[np.int64] | None]]:
        """As :meth:`read`, each batch with its labels, None where there are none."""
        fed = {spec.name for spec in self.binding.inputs}
        for batch in batches:
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
            yield self.binding.prepare(feed), labels


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
