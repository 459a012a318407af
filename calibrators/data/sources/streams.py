"""Feed dicts that arrive one after another, in an unknown number: limits, batches and their ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import LABELS, Binding, FeedDict, OneSample, batch_rows
from calibrators.data.sources.arrays import as_labels
from calibrators.data.sources.items import are_numbers, named_arrays
from calibrators.display.counts import counted
from calibrators.errors import Argument, CalibrationDataError
from calibrators.user_warnings import warn_user


@dataclass(frozen=True, eq=False)
class Stream:
    """Feed dicts from an iterable, brought to the batches that were asked for.

    Where the items come with labels, these stand in the feed dicts under the key ``labels``.

    Attributes:
        start: Begins a pass over the data.
        binding: Says what feeds the model.
        batch_size: Samples are regrouped to this many; None passes the feeds on as they come.
        limit: Stops after this many samples; None takes all.
        fixed_batch: The batch that the model insists on; a smaller rest at the end is left out.
        labels: One label per sample (of the first ``limit``), only to compare their number; they replace
            those that come with the items.
    """

    start: Callable[[], Iterator[Any]]
    binding: Binding
    batch_size: int | None
    limit: int | None
    fixed_batch: int | None
    labels: NDArray[Any] | None

    def __call__(self) -> Iterator[FeedDict]:
        """One pass over the data.

        Raises:
            CalibrationDataError: What the iterable yields is no feed dict, does not fit the model, or
                cannot be regrouped; the data is no longer there; or the labels are not one per sample.
        """
        feeds: Iterator[FeedDict] = self._counted(self._limited(self._bound()))
        if self.batch_size is not None:
            feeds = _regrouped(feeds, self.batch_size)
        return feeds if self.fixed_batch is None else _whole(feeds, self.fixed_batch)

    def _bound(self) -> Iterator[FeedDict]:
        for index, item in enumerate(self.start()):
            try:
                feed, labels = self.binding.split(named_arrays(item, self.binding))
                self.binding.check(feed)
                prepared = self.binding.prepare(feed)
                if isinstance(item, OneSample):
                    prepared = OneSample(prepared)
                if self.labels is None and are_numbers(labels):
                    prepared[LABELS] = as_labels(labels, batch_rows(prepared), "labels")
            except CalibrationDataError as error:
                raise CalibrationDataError(f"item {index} of the data: {error.template}") from error
            yield prepared

    def _limited(self, feeds: Iterator[FeedDict]) -> Iterator[FeedDict]:
        if self.limit is None:
            yield from feeds
            return
        left = self.limit
        for feed in feeds:
            rows = batch_rows(feed)
            if rows is not None and rows > left:
                feed = {name: array[:left] for name, array in feed.items()}
            yield feed
            left -= 1 if rows is None else rows
            if left <= 0:  # before asking for a feed that nobody would see
                return

    def _counted(self, feeds: Iterator[FeedDict]) -> Iterator[FeedDict]:
        count = 0
        for feed in feeds:
            rows = batch_rows(feed)
            count += 1 if rows is None else rows
            yield feed
        if self.labels is not None and len(self.labels) != count:
            raise CalibrationDataError(
                f"{Argument('labels')} has {len(self.labels)} entries but the data has "
                f"{counted(count, 'sample')}; give one per sample"
            )


def restartable(data: Any) -> Callable[[], Iterator[Any]]:
    """How to begin a pass over an iterable, or over what a callable without arguments returns.

    Args:
        data: The iterable or callable.

    Returns:
        A function that returns a new iterator; for a one-shot iterator, only the first time.

    Raises:
        CalibrationDataError: ``data`` is neither.
    """
    if isinstance(data, Iterator):
        return _OneShot(data)
    # No trial iter(): it can be expensive, such as for a data loader that starts its workers.
    several = isinstance(data, Iterable) or hasattr(data, "__getitem__")
    if several and not isinstance(data, (type, np.generic, memoryview)):
        return lambda: iter(data)
    if callable(data) and not _takes_nothing(data):
        raise CalibrationDataError(
            f"the data's callable {getattr(data, '__name__', data)!r} needs arguments; pass one that needs "
            "none, or what it returns"
        )
    if callable(data):
        return lambda: _iterate_result(data)
    raise CalibrationDataError(
        f"cannot take data from a {type(data).__name__}; pass a path, an array, a dict of arrays, "
        "an iterable of feed dicts, such as a data loader, or a callable that returns one"
    )


def warn_left_out(count: int, fixed_batch: int) -> None:
    """Says that samples at the end do not fill a batch of a model that takes no other."""
    samples = "sample" if count == 1 else f"{count} samples"
    warn_user(f"left out the last {samples}, too few to fill the model's fixed batch of {fixed_batch}")


class _OneShot:
    """Hands an iterator out once."""

    def __init__(self, data: Iterator[Any]) -> None:
        self._data: Iterator[Any] | None = data

    def __call__(self) -> Iterator[Any]:
        if self._data is None:
            raise CalibrationDataError(
                "the data is a generator that was already read and cannot be read again; "
                "pass a callable that returns a new one, or a list"
            )
        data, self._data = self._data, None
        return data


def _takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether a callable can be called without arguments, as far as it says."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # it says nothing, as some that are written in C
        return True
    return True


def _iterate_result(function: Callable[[], Any]) -> Iterator[Any]:
    result = function()
    try:
        return iter(result)
    except TypeError as error:
        raise CalibrationDataError(
            f"the data's callable returned a {type(result).__name__}; return an iterable of feed dicts"
        ) from error


def _regrouped(feeds: Iterator[FeedDict], size: int) -> Iterator[FeedDict]:
    """The same samples in feeds of ``size``; the last may be smaller."""
    pieces: list[FeedDict] = []
    waiting = 0
    for feed in feeds:
        rows = batch_rows(feed)
        if rows is None:
            raise CalibrationDataError(
                f"cannot regroup the data to batches of {size}: the inputs of a feed do not share axis 0; "
                f"leave {Argument('batch_size')} out to feed them as they come"
            )
        start = 0
        while start < rows:
            stop = min(rows, start + size - waiting)
            # Copied, because a loader may overwrite its buffers once it is asked for the next feed.
            pieces.append({name: array[start:stop].copy() for name, array in feed.items()})
            waiting += stop - start
            start = stop
            if waiting == size:
                yield _joined(pieces)
                pieces, waiting = [], 0
    if pieces:
        yield _joined(pieces)


def _joined(pieces: list[FeedDict]) -> FeedDict:
    if any(piece.keys() != pieces[0].keys() for piece in pieces):
        raise CalibrationDataError(
            "some items of the data come with labels and others without; give all or none"
        )
    try:
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    except ValueError as error:
        raise CalibrationDataError(
            f"samples of different shapes cannot share a batch ({error}); bring them to one shape, or set "
            f"{Argument('batch_size')} to 1"
        ) from error


def _whole(feeds: Iterator[FeedDict], size: int) -> Iterator[FeedDict]:
    """Leaves out a last feed of fewer than ``size`` samples; others that do not fit are not checked here."""
    short: FeedDict | None = None
    for feed in feeds:
        if short is not None:
            yield short
            short = None
        rows = batch_rows(feed)
        if rows is not None and rows < size:
            short = feed
        else:
            yield feed
    if short is not None:
        warn_left_out(batch_rows(short) or 0, size)
