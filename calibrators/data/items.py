"""What data loaders yield, as dicts of arrays: tensors, tuples of tensors, and dicts by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrators.data.feeds import LABELS, Binding
from calibrators.errors import CalibrationDataError


def named_arrays(item: object, binding: Binding) -> dict[str, Any]:
    """Names the parts of an item after the model's inputs.

    Args:
        item: One of

            - a dict of input name to array, perhaps with ``labels``;
            - a tuple or list with an array for each of the model's inputs in their order, and perhaps labels
              after them, as data loaders of PyTorch yield them;
            - an array for the model's only input.

            Arrays may be tensors of PyTorch, on any device, and whatever else converts itself for NumPy.
        binding: Says what feeds the model.

    Returns:
        Input name to array, and ``labels`` where there are any.

    Raises:
        CalibrationDataError: The item is something else, or has another number of parts.
    """
    if isinstance(item, Mapping):
        return {name: as_array(value) for name, value in item.items()}
    if isinstance(item, tuple | list):
        names = [spec.name for spec in binding.inputs]
        if len(item) == len(names) + 1 and LABELS not in names:
            names.append(LABELS)
        if len(item) != len(names):
            raise CalibrationDataError(
                f"a {type(item).__name__} of {len(item)} does not fit the model's {len(binding.inputs)} "
                f"inputs ({', '.join(spec.name for spec in binding.inputs)}); an array for each, in this "
                "order, is needed, and perhaps labels after them; or yield dicts of input name to array"
            )
        return {name: as_array(value) for name, value in zip(names, item, strict=True)}
    array = as_array(item)
    if not isinstance(array, np.ndarray):
        raise CalibrationDataError(
            f"it is a {type(item).__name__}; yield arrays, tuples of arrays, or dicts of input name to array"
        )
    return {binding.only_input("an array").name: array}


def as_array(value: Any) -> Any:
    """A tensor as a NumPy array; everything else as it is."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # PyTorch's, which may be on a GPU
        try:
            return value.detach().cpu().numpy()
        except TypeError as error:  # NumPy has no bfloat16
            raise CalibrationDataError(f"a tensor does not become a NumPy array: {error}") from error
    return np.asarray(value) if hasattr(value, "__array__") else value
