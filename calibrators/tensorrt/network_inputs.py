"""Feeds in the element types of TensorRT's network, which are not always those of the ONNX model.

Before version 10, TensorRT's parser makes INT64 inputs INT32, and every version makes DOUBLE inputs FLOAT. A
calibrator gives TensorRT nothing but addresses, so bytes of the wrong type would be read as other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import CalibrationDataError
from calibrators.tensorrt.flavor import numpy_dtype

#: What an input that is INT8 itself can be fed, as float32.
_INT8_RANGE = (-128.0, 127.0)


def network_dtypes(trt: Any, network: Any) -> dict[str, np.dtype[Any]]:
    """Input name to the element type that a network takes; inputs of a type that NumPy lacks are left out.

    Args:
        trt: The TensorRT module.
        network: An ``INetworkDefinition``, parsed, with the types of its inputs set.
    """
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    dtypes = {tensor.name: numpy_dtype(trt, tensor.dtype) for tensor in tensors}
    return {name: dtype for name, dtype in dtypes.items() if dtype is not None}


def to_network(feed: FeedDict, dtypes: Mapping[str, np.dtype[Any]]) -> FeedDict:
    """Converts a feed to the element types of the network.

    Args:
        feed: Input name to array, in the types of the model.
        dtypes: Input name to the type in the network; inputs that it lacks stay as they are. For INT8 inputs
            TensorRT wants float32 within [-128, 127].

    Returns:
        The feed with C-contiguous arrays.

    Raises:
        CalibrationDataError: A value does not fit into the network's type.
    """
    return {name: _converted(name, array, dtypes.get(name, array.dtype)) for name, array in feed.items()}


def _converted(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype == np.int8 and array.dtype != np.int8:
        _check_int8(name, array)
        return array
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
    if dtype.kind in "iu":
        fits = np.array_equal(converted, array)
    else:
        fits = not (np.isfinite(array) & ~np.isfinite(converted)).any()
    if not fits:
        raise CalibrationDataError(
            f"input '{name}' is {dtype} in TensorRT's network, and its {array.dtype} data, from "
            f"{array.min():g} to {array.max():g}, does not fit; give values that {dtype} holds"
        )
    return converted


def _check_int8(name: str, array: NDArray[Any]) -> None:
    low, high = _INT8_RANGE
    if array.dtype != np.float32 or array.min() < low or array.max() > high:
        raise CalibrationDataError(
            f"input '{name}' is INT8 in the network, so its calibration data must be float32 within "
            f"[-128, 127], not {array.dtype} from {array.min():g} to {array.max():g}; divide it by "
            "the input's scale"
        )
