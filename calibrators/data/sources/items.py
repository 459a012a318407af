"""What data loaders yield, as dicts of arrays: tensors, tuples of tensors, and dicts by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sized
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import LABELS, Binding
from calibrators.errors import CalibrationDataError

#: The keys that hold labels in dicts by name: the second is that of datasets before a collator renames it.
LABEL_KEYS = (LABELS, "label")

#: Element types of PyTorch that NumPy has from ml_dtypes, with PyTorch's type of integers of their size.
_BITS = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


def known_length(data: object) -> int | None:
    """Returns the length of data; None where it has none, or cannot tell it.

    Readers of ONNX Runtime, and loaders over iterable datasets, have a ``__len__`` that raises.
    """
    try:
        return len(cast("Sized", data))
    except Exception:  # noqa: BLE001  # whatever a user's class raises
        return None


def named_arrays(item: object, binding: Binding) -> dict[str, Any]:
    """Names the parts of an item after the model's inputs.

    Args:
        item: One of

            - a dict of input name to array, perhaps with ``labels`` or ``label``;
            - a tuple or list with an array for each of the model's inputs in their order, and perhaps labels
              after them, as data loaders of PyTorch yield them;
            - a tuple or list of two: such a dict, tuple or list without labels, and the labels;
            - an array for the model's only input.

            Arrays may be tensors of PyTorch, on any device, images of Pillow, and whatever else converts
            itself for NumPy.
        binding: Says what feeds the model.

    Returns:
        Input name to array, and ``labels`` where there are any.

    Raises:
        CalibrationDataError: The item is something else, or has another number of parts.
    """
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Mapping | tuple | list):
        return {**named_arrays(item[0], binding), LABELS: as_array(item[1])}
    if isinstance(item, Mapping):
        return _named(item, binding)
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


def _named(item: Mapping[Any, Any], binding: Binding) -> dict[str, Any]:
    """The arrays of a dict, with its labels under one name.

    Tokenizers give more than every model takes: what is no input is left out where all inputs are there.
    """
    names = {spec.name for spec in binding.inputs}
    labels = next((key for key in LABEL_KEYS if key in item and key not in names), None)
    item = {(LABELS if name == labels else name): value for name, value in item.items()}
    if names <= item.keys():
        item = {name: value for name, value in item.items() if name in names or name == LABELS}
    return {name: as_array(value) for name, value in item.items()}


def are_numbers(labels: Any) -> bool:
    """Whether labels can be compared with outputs; a detector's boxes, for example, are lists of dicts."""
    try:
        return labels is not None and np.asarray(labels).dtype.kind in "biuf"
    except ValueError:  # lists of unequal length
        return False


def is_tensor(value: object) -> bool:
    """Whether something is a tensor of PyTorch, by methods that it has and no array of NumPy."""
    return all(hasattr(value, name) for name in ("detach", "cpu", "numpy"))


def as_array(value: Any) -> Any:
    """A tensor or an image as a NumPy array; everything else as it is.

    Raises:
        CalibrationDataError: A tensor holds nothing that NumPy can.
    """
    if isinstance(value, np.ndarray):
        return value
    if is_tensor(value):
        return _tensor_values(value)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):  # images have the second only
        return np.asarray(value)
    return value


def _tensor_values(tensor: Any) -> NDArray[Any]:
    """The values of a tensor, which may be on a GPU, need gradients, or be a lazy conjugate or negative."""
    try:
        tensor = tensor.detach().cpu()
        name = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
        if name in _BITS:
            bits = tensor.contiguous().view(getattr(sys.modules["torch"], _BITS[name])).numpy()
            return cast("NDArray[Any]", bits.view(getattr(ml_dtypes, name)))
        for lazy in ("resolve_conj", "resolve_neg"):
            if hasattr(tensor, lazy):
                tensor = getattr(tensor, lazy)()
        return cast("NDArray[Any]", tensor.numpy())
    except (TypeError, RuntimeError) as error:  # such as those of sparse tensors and of tensors without data
        reason = str(error).strip().splitlines()[0].rstrip(".!")
        raise CalibrationDataError(
            f"a tensor does not become a NumPy array: {reason}; yield dense tensors that hold values"
        ) from error
