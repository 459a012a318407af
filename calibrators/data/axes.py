"""Arrays whose samples do not all lie along axis 0, such as the states of a recurrent network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.checks import as_integer
from calibrators.data.feeds import Binding, FeedDict, listed
from calibrators.data.inputs import shape_text
from calibrators.errors import Argument, CalibrationDataError


@dataclass(frozen=True, eq=False)
class BatchAxes:
    """Data of which some inputs have their samples along another axis than the first.

    Attributes:
        data: The path of a .npz, or a dict of arrays.
        axes: Input name to the axis along which its samples lie, counted from 0; 0 for other inputs.
    """

    data: str | os.PathLike[str] | Mapping[str, Any]
    axes: Mapping[str, int]


def check_axes(data: BatchAxes, binding: Binding) -> None:
    """Refuses axes of inputs that the model lacks, what is no axis, and data that has none.

    Raises:
        CalibrationDataError: Says which.
    """
    if not isinstance(data.data, Mapping) and Path(data.data).suffix.lower() != ".npz":
        raise CalibrationDataError(
            f"batch axes are for a .npz or a dict of arrays, and the data is '{data.data}'; leave them out"
        )
    names = {spec.name for spec in binding.inputs}
    for name, axis in data.axes.items():
        if name not in names:
            raise CalibrationDataError(
                f"a batch axis is given for '{name}', which is no input of the model; it has "
                f"{listed(binding.inputs)}: name one of these"
            )
        number = as_integer(axis)
        if number is None or number < 0:
            raise CalibrationDataError(
                f"the batch axis of '{name}' is {axis!r}; give an integer of 0 or more"
            )


def needs_single_feeds(arrays: FeedDict, axes: Mapping[str, int]) -> bool:
    """Whether arrays cannot be cut into batches along axis 0.

    Args:
        arrays: Input name to array.
        axes: Input name to batch axis.
    """
    return any(axes.values()) or len({bool(array.ndim) for array in arrays.values()}) > 1


def count_samples(arrays: FeedDict, axes: Mapping[str, int]) -> int:
    """How many samples arrays hold along their batch axes.

    Args:
        arrays: Input name to array. What is no more than one number is fed with every sample.
        axes: Input name to batch axis.

    Raises:
        CalibrationDataError: The arrays hold different numbers of samples, lack an axis, or are one number
            each.
    """
    counts: dict[str, int] = {}
    for name, array in arrays.items():
        axis = axes.get(name, 0)
        if not array.ndim and not axis:
            continue
        if axis >= array.ndim:
            raise CalibrationDataError(
                f"the batch axis of '{name}' is {axis}, and its array has the shape "
                f"{shape_text(array.shape)}; give one of its axes, counted from 0"
            )
        counts[name] = array.shape[axis]
    if len(set(counts.values())) != 1:
        found = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise CalibrationDataError(
            f"the arrays have different numbers of samples along their batch axes: {found or 'none'}; give "
            f"all of them the same, and say with {Argument('BatchAxes')} where it is another axis than 0"
        )
    return next(iter(counts.values()))


def one_sample(arrays: FeedDict, axes: Mapping[str, int], index: int) -> FeedDict:
    """One sample of arrays, with a batch axis of 1 where it has one.

    Args:
        arrays: Input name to array.
        axes: Input name to batch axis.
        index: Which sample.
    """
    return {name: _part(array, axes.get(name, 0), index) for name, array in arrays.items()}


def _part(array: NDArray[Any], axis: int, index: int) -> NDArray[Any]:
    return np.take(array, [index], axis) if array.ndim else array
