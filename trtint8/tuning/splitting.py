"""Splits a data set in two: samples to tune on, and samples to validate the result with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from calibrators.data.batches import Batches, labelled_alike
from calibrators.data.feeds import first_feeds
from calibrators.data.inputs import DataOptions
from calibrators.data.samples import numbered
from calibrators.errors import Argument, CalibrationDataError


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
        raise CalibrationDataError(f"labelled data needs a {Argument('batch_size')} to be split; give one")
    if batches.num_samples == 1:
        raise CalibrationDataError(
            "the data has a single sample, which cannot be both tuned on and judged by; give more samples, "
            "or other samples to judge by"
        )
    if batches.num_samples is not None and batches.num_samples <= (batches.batch_size or 0):
        raise CalibrationDataError(
            f"the data's {batches.num_samples} samples are one batch, which cannot be split into samples to "
            f"tune on and samples to judge by; give more samples, a smaller {Argument('batch_size')}, or "
            "other samples to judge by"
        )
    return _every_other(batches, 0), _every_other(batches, 1)


def smaller_batch_size(batches: Batches, options: DataOptions) -> int | None:
    """The batch size with which data can be split that is one batch by default.

    Args:
        batches: The data as it was opened.
        options: The options that it was opened with.

    Returns:
        The size of two batches that share the samples; None where the data is more than one batch, has a
        single sample, or has a batch size that was asked for.
    """
    samples, size = batches.num_samples, batches.batch_size
    if options.batch_size is not None or samples is None or size is None or not 1 < samples <= size:
        return None
    return -(-samples // 2)


def _every_other(batches: Batches, first: int) -> Batches:
    """Every second batch with its labels, from the batch with index ``first`` on."""

    def start() -> Iterator[Any]:
        # One half may have all the labels.
        return itertools.islice(labelled_alike(batches.start(), batches.source), first, None, 2)

    size = batches.batch_size
    count = len(batches.labels) if batches.labels is not None else batches.num_samples
    if size is None or count is None:
        return batches.passing(start, count=None, labels=None, name_of=numbered)
    chosen = np.arange(count)[np.arange(count) // size % 2 == first]
    labels = None if batches.labels is None else batches.labels[chosen]
    return batches.passing(
        start,
        count=len(chosen),
        labels=labels,
        name_of=lambda sample: batches.name_of(int(chosen[sample])),
    )


def head(batches: Batches, samples: int) -> Batches:
    """The first batches, until they hold a given number of samples.

    Args:
        batches: The data.
        samples: The least number of samples; the last batch is not cut.

    Returns:
        The first batches, or all where there are fewer samples.
    """
    return Batches.of_feeds(
        partial(first_feeds, batches, samples), labels=batches.labels, class_names=batches.class_names
    )
