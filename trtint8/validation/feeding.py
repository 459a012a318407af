"""Samples of a reference in the element types that another model takes, and its INT8 outputs as floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict, is_float
from calibrators.errors import Argument, CalibrationDataError

_INT8 = np.iinfo(np.int8)


def as_fed(
    feed: FeedDict, dtypes: Mapping[str, np.dtype[Any]], scales: Mapping[str, np.float32]
) -> dict[str, NDArray[Any]]:
    """Converts the inputs of a reference to the types that a model takes.

    Args:
        feed: Input name to array, in the types of the reference.
        dtypes: Input name to the model's type. Floating-point values are rounded to it, because that rounding
            is part of what the model costs, and integers keep their value.
        scales: Input or output name to its scale. An engine may take INT8 where the reference takes
            floating-point values: the integers are the values divided by the scale.

    Returns:
        The feed; arrays of other kinds than the model's are left as they are, for the model to refuse.

    Raises:
        CalibrationDataError: An integer does not fit the model's type, or the scale of an INT8 input is not
            known.
    """
    return {name: _fed(name, array, dtypes[name], scales.get(name)) for name, array in feed.items()}


def as_floats(name: str, output: NDArray[Any], scales: Mapping[str, np.float32]) -> NDArray[Any]:
    """An INT8 output as the floating-point values that it stands for; other outputs as they are.

    Args:
        name: The output's name.
        output: The output.
        scales: Input or output name to its scale, of those that are INT8 in the engine alone.
    """
    return output.astype(np.float32) * scales[name] if name in scales else output


def _fed(name: str, array: NDArray[Any], dtype: np.dtype[Any], scale: np.float32 | None) -> NDArray[Any]:
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        return _cast(name, array, dtype)
    if is_float(array.dtype) and dtype == np.int8:
        return _quantized(name, array, scale)
    # BF16 is of no kind that NumPy knows.
    if is_float(array.dtype) and dtype.kind not in "iub":
        return array.astype(dtype)
    return array


def _cast(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    converted = array.astype(dtype)
    if not np.array_equal(converted, array):
        raise CalibrationDataError(
            f"input '{name}' is {dtype} in the model, and its {array.dtype} values, from {array.min()} to "
            f"{array.max()}, do not fit; give values that {dtype} holds"
        )
    return converted


def _quantized(name: str, array: NDArray[Any], scale: np.float32 | None) -> NDArray[np.int8]:
    if scale is None:
        raise CalibrationDataError(
            f"input '{name}' is int8 in the engine, and the scale that makes int8 of {array.dtype} values is "
            "not known; put the calibration table that the engine was built with, which has a range of it, "
            f"beside the engine, or build without {Argument('io_types')} for it"
        )
    return np.clip(np.rint(array / scale), _INT8.min, _INT8.max).astype(np.int8)
