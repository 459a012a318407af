"""Feed dicts that arrive one after another, in an unknown number, and the items that make them.

What an iterable gives is copied when it is bound to the inputs: a loader may overwrite its buffers once it is
asked for the next item. Everything behind has arrays of its own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

import numpy as np

from calibrators.checks import located
from calibrators.data.batches import Feeds, limited, regrouped, warn_left_out
from calibrators.data.feeds import (
    LABELS,
    Binding,
    FeedDict,
    OneSample,
    are_numbers,
    batch_rows,
    join_samples,
    named_arrays,
    part_of,
    samples_in,
)
from calibrators.data.inputs import DataOptions, fixed_batches
from calibrators.data.samples import numbered
from calibrators.data.sources.arrays import as_labels, load_labels
from calibrators.errors import Argument, CalibrationDataError, counted


@dataclass(frozen=True, eq=False)
class Stream(Feeds):
    """Feed dicts from an iterable, brought to the batches that were asked for.

    Where the items come with labels, these stand in the feed dicts under the key ``labels``. Labels that were
    given apart (of the first ``limit`` samples) replace those, and are compared in number.

    Attributes:
        start: Begins a pass over the data.
        binding: Says what feeds the model.
        limit: Stops after this many samples; None takes all.
        fixed_batch: The batch that the model insists on; a smaller rest at the end is left out.
    """

    binding: Binding = field(kw_only=True)
    limit: int | None = field(default=None, kw_only=True)
    fixed_batch: int | None = field(default=None, kw_only=True)

    @classmethod
    def open(cls, data: Any, binding: Binding, options: DataOptions) -> Stream:
        """Opens an iterable for a model. Its items are prepared, and checked, as they arrive.

        Args:
            data: The iterable, or a callable without arguments that returns one.
            binding: Says what feeds the model.
            options: Which samples are taken.

        Raises:
            CalibrationDataError: It is neither, is empty, or is to be shuffled.
        """
        refuse_shuffling(options)
        start = restartable(data)
        if known_length(data) == 0:
            raise CalibrationDataError(
                f"the data is an empty {type(data).__name__}; pass at least one feed dict"
            )
        return cls.of(start, binding, options, passes_on=True)

    @classmethod
    def of(
        cls,
        start: Callable[[], Iterator[Any]],
        binding: Binding,
        options: DataOptions,
        *,
        passes_on: bool,
    ) -> Stream:
        """Makes a source of items.

        Args:
            start: Begins a pass over the items.
            binding: Says what feeds the model.
            options: Which samples are taken.
            passes_on: Whether items are passed on as they come where nobody gives a batch size.
        """
        fixed = fixed_batches(binding.inputs)
        labels = None if options.labels is None else load_labels(options.labels, None)[: options.limit]
        return cls(
            start,
            labelled=LABELS not in {spec.name for spec in binding.inputs},
            binding=binding,
            limit=options.limit,
            fixed_batch=next(iter(fixed)) if len(fixed) == 1 else None,
            labels=labels,
            passes_on=passes_on,
        )

    def batches(self, size: int | None) -> Iterator[FeedDict]:
        """One pass over the data.

        Args:
            size: Samples are regrouped to this many; None passes the feeds on as they come.

        Raises:
            CalibrationDataError: What the iterable yields is no feed dict, does not fit the model, or
                cannot be regrouped; the data is no longer there; or the labels are not one per sample.
        """
        feeds = self._counted(limited(self._bound(), self.limit, samples_in, part_of))
        if size is not None:
            feeds = _regrouped(feeds, size, self.binding)
        return feeds if self.fixed_batch is None else _whole(feeds, self.fixed_batch)

    def _bound(self) -> Iterator[FeedDict]:
        for index, item in enumerate(self.start()):
            with located(f"item {index} of the data"):
                feed, labels = self.binding.split(named_arrays(item, self.binding))
                self.binding.check(feed)
                prepared = self.binding.prepare(feed, copied=True)
                if isinstance(item, OneSample):
                    prepared = OneSample(prepared)
                if self.labels is None and are_numbers(labels):
                    prepared[LABELS] = as_labels(np.array(labels), batch_rows(prepared), "labels")
            yield prepared

    def _counted(self, feeds: Iterator[FeedDict]) -> Iterator[FeedDict]:
        count = 0
        for feed in feeds:
            count += samples_in(feed)
            yield feed
        if self.labels is not None and len(self.labels) != count:
            raise CalibrationDataError(
                f"{Argument('labels')} has {len(self.labels)} entries but the data has "
                f"{counted(count, 'sample')}; give one per sample"
            )


def known_length(data: object) -> int | None:
    """Returns the length of data; None where it has none, or cannot tell it.

    Readers of ONNX Runtime, and loaders over iterable datasets, have a ``__len__`` that raises.
    """
    try:
        return len(cast("Sized", data))
    except Exception:  # noqa: BLE001  # whatever a user's class raises
        return None


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


def is_dataset(data: Any) -> bool:
    """Whether something is a Ray Dataset. Nothing is one before Ray Data was imported."""
    ray_data = sys.modules.get("ray.data")
    return ray_data is not None and isinstance(data, ray_data.Dataset)


def refuse_shuffling(options: DataOptions) -> None:
    """Refuses to shuffle samples that come one after another."""
    if options.shuffle:
        raise CalibrationDataError("cannot shuffle an iterable of feed dicts; shuffle it where it is made")


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


def _regrouped(feeds: Iterator[FeedDict], size: int, binding: Binding) -> Iterator[FeedDict]:
    """The same samples in feeds of ``size``; the last may be smaller."""

    def rows(feed: FeedDict) -> int:
        if (found := batch_rows(feed)) is None:
            raise CalibrationDataError(
                f"cannot regroup the data to batches of {size}: the inputs of a feed do not share axis 0; "
                f"leave {Argument('batch_size')} out to feed them as they come"
            )
        return found

    for number, pieces in enumerate(regrouped(feeds, size, rows, part_of)):
        yield _joined(pieces, number * size, binding)


def _joined(pieces: list[FeedDict], first: int, binding: Binding) -> FeedDict:
    """Pieces as one feed; ``first`` is the number of their first sample."""
    if any(piece.keys() != pieces[0].keys() for piece in pieces):
        raise CalibrationDataError(
            "some items of the data come with labels and others without; give all or none"
        )
    numbers = list(accumulate((batch_rows(piece) or 0 for piece in pieces), initial=first))
    return join_samples(pieces, lambda place: numbered(numbers[place]), binding)


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
