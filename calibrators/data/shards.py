"""Batches that were not read yet: how they travel to a worker, and what reads them there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from calibrators.data.feeds import LABELS, Binding, FeedDict, OneSample, batch_rows
from calibrators.data.samples import numbered
from calibrators.errors import CalibrationDataError


class Reader(Protocol):
    """Makes a feed dict of a batch that was not read yet.

    A reader can be pickled. It is sent to every worker once, and used there again and again.
    """

    def samples(self, batch: Any) -> int:
        """How many samples a batch has."""
        ...

    def read(self, batch: Any) -> tuple[FeedDict, NDArray[Any] | None]:
        """What the model is fed, and the labels where they are stored with the samples."""
        ...


@dataclass(frozen=True)
class FeedReader:
    """Takes batches that are feed dicts.

    Attributes:
        binding: Prepares them; None where that was done before.
        labelled: Whether labels may stand beside what the model is fed.
    """

    binding: Binding | None = None
    labelled: bool = False

    def samples(self, batch: FeedDict) -> int:
        """How many samples a feed dict has; 1 where its arrays do not share axis 0."""
        rows = batch_rows(batch)
        return 1 if rows is None else rows

    def read(self, batch: FeedDict) -> tuple[FeedDict, NDArray[Any] | None]:
        """What the model is fed, and the labels where there are any."""
        labels = batch.get(LABELS) if self.labelled else None
        if labels is not None:
            batch = {name: array for name, array in batch.items() if name != LABELS}
        return (batch if self.binding is None else self.binding.prepare(batch)), labels


@dataclass(frozen=True)
class WholeReader:
    """Takes each batch as one sample, whatever lies along axis 0 of its arrays.

    Attributes:
        reader: Reads the batches.
    """

    reader: Reader

    def samples(self, batch: Any) -> int:  # noqa: ARG002  # as every reader
        """One."""
        return 1

    def read(self, batch: Any) -> tuple[FeedDict, NDArray[Any] | None]:
        """What the model is fed, and the labels where they are stored with the samples."""
        feed, labels = self.reader.read(batch)
        return OneSample(feed), labels


def labelled_alike(batches: Iterator[Any], reader: Reader, first: int = 0) -> Iterator[Any]:
    """Passes on batches that were not read yet, of which all or none come with labels of their own.

    Metrics would take those of some batches for those of all.

    Args:
        batches: The batches. Those that are no feed dicts have their labels from one place.
        reader: Their reader.
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
        first += reader.samples(batch)
        yield batch


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
    labels: NDArray[Any] | None = None
    name_of: Callable[[int], str] = numbered


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
    labels: NDArray[Any] | None
    first: int


class ReadAlready:
    """Takes batches that were read."""

    def samples(self, batch: LabelledFeed) -> int:
        """How many samples a batch has."""
        return FeedReader().samples(batch.feed)

    def read(self, batch: LabelledFeed) -> tuple[FeedDict, NDArray[Any] | None]:
        """What the model is fed, and the labels where there are any."""
        return batch.feed, batch.labels
