"""Batches of one shape, as TensorRT's calibration wants them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from calibrators.data.feeds import FeedDict, batch_rows
from calibrators.data.inputs import shape_text
from calibrators.errors import CalibrationDataError
from calibrators.user_warnings import warn_user

#: What becomes of a last batch that is not full.
LastBatch = Literal["drop", "pad", "refuse"]


def uniform(feeds: Iterable[FeedDict], last_batch: LastBatch = "drop") -> Iterator[FeedDict]:
    """Passes feeds on that have the shapes of the first, and deals with a smaller one at the end.

    Args:
        feeds: Input name to array.
        last_batch: ``drop`` leaves its samples out; ``pad`` repeats them until it is full, so that they
            count more than once; ``refuse`` fails.

    Yields:
        The feeds, contiguous and in order.

    Raises:
        CalibrationDataError: A feed has other shapes than the first, or the last one is smaller and that
            is refused.

    Warns:
        UserWarning: Samples were left out or repeated.
    """
    wanted: FeedDict | None = None
    short: FeedDict | None = None
    for index, feed in enumerate(feeds):
        feed = type(feed)((name, np.require(array, requirements="C")) for name, array in feed.items())
        wanted = wanted or feed
        if short is not None:
            raise _other_shapes(index - 1, short, wanted)
        if _shapes(feed) == _shapes(wanted):
            yield feed
        elif _is_smaller(feed, wanted):
            short = feed
        else:
            raise _other_shapes(index, feed, wanted)
    if wanted is not None and short is not None:
        yield from _last(short, wanted, last_batch)


def _last(short: FeedDict, wanted: FeedDict, last_batch: LastBatch) -> Iterator[FeedDict]:
    rows, full = batch_rows(short), batch_rows(wanted)
    if last_batch == "refuse":
        raise CalibrationDataError(
            f"the last batch has {rows} of {full} samples; choose last_batch='drop' or 'pad', or "
            f"give a multiple of {full} samples"
        )
    samples = "sample" if rows == 1 else f"{rows} samples"
    what = (
        f"left out the last {samples}, too few to fill a batch of {full} (last_batch='pad' would repeat them)"
        if last_batch == "drop"
        else f"repeated the last {samples} to fill a batch of {full}: what is repeated counts more than once"
    )
    warn_user(what)
    if last_batch == "pad":
        # np.resize repeats the whole rows, because they lie one after another.
        yield {name: np.resize(array, wanted[name].shape) for name, array in short.items()}


def _shapes(feed: FeedDict) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feed.items()}


def _is_smaller(feed: FeedDict, wanted: FeedDict) -> bool:
    rows, full = batch_rows(feed), batch_rows(wanted)
    if rows is None or full is None or rows > full or feed.keys() != wanted.keys():
        return False
    return all(array.shape[1:] == wanted[name].shape[1:] for name, array in feed.items())


def _other_shapes(index: int, feed: FeedDict, wanted: FeedDict) -> CalibrationDataError:
    return CalibrationDataError(
        f"batch {index} has {_listed(feed)} but the first one {_listed(wanted)}; TensorRT calibrates with "
        "one shape per input, so give batches of one size"
    )


def _listed(feed: FeedDict) -> str:
    return ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in feed.items())
