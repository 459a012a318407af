"""Splits a data set in two: samples to tune on, and samples to validate the result with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from calibrators.data.batches import Batches, FeedDict
from calibrators.data.feeds import batch_rows
from calibrators.errors import CalibrationDataError


def split(batches: Batches) -> tuple[Batches, Batches]:
    """Splits batches alternately: the first is tuned on, the second is held out, and so on.

    Samples that are sorted in any way, such as by class, should be shuffled before.

    Args:
        batches: The data, which must be iterable more than once.

    Returns:
        The batches to tune on, and the held-out batches.

    Raises:
        CalibrationDataError: There is only one batch, or the data has labels but no batch size to divide
            them by.
    """
    if batches.labels is not None and batches.batch_size is None:
        raise CalibrationDataError("labelled data needs a batch_size to be split; give one")
    if batches.num_samples is not None and batches.num_samples <= (batches.batch_size or 0):
        raise CalibrationDataError(
            f"the data's {batches.num_samples} samples are one batch, which cannot be split into samples to "
            "tune on and samples to judge by; give more samples, a smaller batch_size, or other samples to "
            "judge by"
        )
    return _every_other(batches, 0), _every_other(batches, 1)


def _every_other(batches: Batches, first: int) -> Batches:
    """Every second batch with its labels, from the batch with index ``first`` on."""

    def start() -> Iterator[FeedDict]:
        return itertools.islice(batches, first, None, 2)

    size = batches.batch_size
    count = len(batches.labels) if batches.labels is not None else batches.num_samples
    if size is None or count is None:
        return Batches(start, size)
    chosen = np.arange(count)[np.arange(count) // size % 2 == first]
    labels = None if batches.labels is None else batches.labels[chosen]
    return Batches(start, size, len(chosen), labels, batches.class_names)


def head(batches: Batches, samples: int) -> Batches:
    """The first batches, until they hold a given number of samples.

    Args:
        batches: The data.
        samples: The least number of samples; the last batch is not cut.

    Returns:
        The first batches, or all where there are fewer samples.
    """

    def start() -> Iterator[FeedDict]:
        taken = 0
        for feed in batches:
            if taken >= samples:
                return
            taken += batch_rows(feed) or 1
            yield feed

    return Batches(start, batches.batch_size, None, batches.labels, batches.class_names)
