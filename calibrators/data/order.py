"""Which samples are taken, in which order, and how many make a batch: numbers only, without the samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from calibrators.data.inputs import InputSpec
from calibrators.data.options import DataOptions
from calibrators.data.sources.streams import warn_left_out
from calibrators.display.counts import counted
from calibrators.errors import Argument, CalibrationDataError


def sample_order(
    count: int, options: DataOptions, fixed_batch: int | None, classes: NDArray[np.int64] | None = None
) -> NDArray[np.intp]:
    """Indices of the samples that are taken, in their order.

    Args:
        count: How many samples there are.
        options: Which of them are taken.
        fixed_batch: The model's only batch size; None where it takes any.
        classes: The class of each sample where samples lie sorted by class, so that the first ones would be
            those of one class; int64, shape (count,).

    Raises:
        CalibrationDataError: They do not fill a batch of a model that takes no other.
    """
    limit = count if options.limit is None else min(options.limit, count)
    if options.shuffle:
        order = np.random.default_rng(options.seed).permutation(count)[:limit]
    elif classes is not None and limit < count:
        order = _in_turn(classes, limit)
    else:
        order = np.arange(limit)
    if not fixed_batch or not len(order) % fixed_batch:
        return order
    if len(order) < fixed_batch:
        raise CalibrationDataError(
            f"the data has {counted(len(order), 'sample')} but the model has a fixed batch of {fixed_batch}; "
            f"give at least {fixed_batch}"
        )
    left_out = len(order) % fixed_batch
    warn_left_out(left_out, fixed_batch)
    return order[: len(order) - left_out]


def _in_turn(classes: NDArray[np.int64], limit: int) -> NDArray[np.intp]:
    """The first sample of each class, then the second of each, and so on, up to a limit.

    Where the limit is not enough for one more sample of each, the classes that have one more are evenly
    spaced among them all.
    """
    _, first, sizes = np.unique(classes, return_index=True, return_counts=True)
    rounds = np.arange(len(classes)) - np.repeat(first, sizes)
    order = np.lexsort((classes, rounds))
    whole = int(np.searchsorted(rounds[order], rounds[order[limit]]))
    last = order[whole : np.searchsorted(rounds[order], rounds[order[limit]], side="right")]
    wanted = limit - whole
    return np.concatenate([order[:whole], last[np.arange(wanted) * len(last) // max(wanted, 1)]])


def runs(order: NDArray[np.intp], size: int) -> Iterator[NDArray[np.intp]]:
    """The indices of one batch after another."""
    return (order[first : first + size] for first in range(0, len(order), size))


def fixed_batches(inputs: Sequence[InputSpec]) -> set[int]:
    """The fixed first dimensions of the inputs; mostly one or none."""
    return {spec.static_batch for spec in inputs if spec.static_batch is not None}


def check_fixed(batch_size: int | None, fixed: set[int]) -> None:
    """Refuses a batch size that is not the model's fixed one."""
    if batch_size is not None and fixed and fixed != {batch_size}:
        raise CalibrationDataError(
            f"{Argument('batch_size')} is {batch_size} but the model has a fixed batch of "
            f"{' and '.join(map(str, sorted(fixed)))}; leave {Argument('batch_size')} out"
        )
