"""Two halves of a data set: one to tune on, and one that nothing was decided on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from calibrators.data.batches import Batches, FeedDict
from calibrators.data.feeds import batch_rows
from calibrators.errors import CalibrationDataError


def split(batches: Batches) -> tuple[Batches, Batches]:
    """Deals batches out in turns, the first to tune on, the second to judge by, and so on.

    Samples in an order with a meaning, such as class by class, should have been shuffled before.

    Args:
        batches: The data, which can be iterated again and again.

    Returns:
        The batches to tune on, and those to judge by.

    Raises:
        CalibrationDataError: There is only one batch, or labels cannot be told apart by batch.
    """
    if batches.labels is not None and batches.batch_size is None:
        raise CalibrationDataError("labelled data that is to be split needs a batch_size; give one")
    if batches.num_samples is not None and batches.num_samples <= (batches.batch_size or 0):
        raise CalibrationDataError(
            f"the data's {batches.num_samples} samples are one batch, which cannot be split into data to "
            "tune on and data to judge by; give more samples, a smaller batch_size, or other data to judge by"
        )
    return _every_other(batches, 0), _every_other(batches, 1)


def _every_other(batches: Batches, first: int) -> Batches:
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
    """The first batches, until there are enough samples.

    Args:
        batches: The data.
        samples: How many are enough.
    """

    def start() -> Iterator[FeedDict]:
        taken = 0
        for feed in batches:
            if taken >= samples:
                return
            taken += batch_rows(feed) or 1
            yield feed

    return Batches(start, batches.batch_size, None, batches.labels, batches.class_names)
