"""Feed dicts, and what can be told about one without looking at its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError

#: Input name to array: what one run of a model is given.
FeedDict = dict[str, NDArray[Any]]


def batch_rows(feed: Mapping[str, NDArray[Any]]) -> int | None:
    """How many samples a feed holds: the length of axis 0, or None where its arrays do not share one."""
    lengths = {array.shape[0] if array.ndim else None for array in feed.values()}
    return lengths.pop() if len(lengths) == 1 else None


def check_names(names: Iterable[str], inputs: Sequence[InputSpec]) -> None:
    """Refuses data that lacks an input or has an array that is none.

    Raises:
        CalibrationDataError: Names are unknown or missing; lists them and the model's inputs.
    """
    given, wanted = set(names), {spec.name for spec in inputs}
    unknown, missing = sorted(given - wanted), sorted(wanted - given)
    if unknown or missing:
        problems = [f"unknown {', '.join(map(repr, unknown))}"] if unknown else []
        problems += [f"missing {', '.join(map(repr, missing))}"] if missing else []
        raise CalibrationDataError(
            f"the data does not match the model's inputs: {' and '.join(problems)}; "
            f"the model has {listed(inputs)}: name the arrays after these"
        )


def check_dtype(array: NDArray[Any], spec: InputSpec) -> None:
    """Refuses an array whose element type is not the input's: nothing is cast behind the user's back.

    Raises:
        CalibrationDataError: Names both types and the cast or, for images, the preprocessing to declare.
    """
    if array.dtype == spec.dtype:
        return
    if is_image_batch(array) and is_float(spec.dtype):
        raise CalibrationDataError(
            f"input '{spec.name}' takes {spec.dtype} but its data is uint8 images; declare how they become "
            f"{spec.dtype} with preprocessing=Preprocessing(...) or --mean, --std, --scale and --layout"
        )
    raise CalibrationDataError(
        f"input '{spec.name}' takes {spec.dtype} but its data is {array.dtype}; "
        f"convert it yourself with array.astype('{spec.dtype}')"
    )


def is_image_batch(array: NDArray[Any]) -> bool:
    """Whether an array looks like raw images: uint8 and of rank 4."""
    return array.dtype == np.uint8 and array.ndim == 4


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is one of NumPy's floating-point types."""
    return np.issubdtype(dtype, np.floating)


def listed(inputs: Sequence[InputSpec]) -> str:
    """The inputs as text for a message."""
    return ", ".join(map(str, inputs))


def shape_text(shape: Sequence[int | str | None]) -> str:
    """A shape as text for a message: ``2x3x?x32``, or ``scalar``."""
    return "x".join("?" if dim is None else str(dim) for dim in shape) or "scalar"
