"""TensorRT's element types and NumPy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_NUMPY: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "INT8": np.dtype(np.int8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP8": np.dtype(ml_dtypes.float8_e4m3fn),
}
#: NumPy's names of the element types that TensorRT has. NumPy knows all of them once ml_dtypes is imported.
DTYPES = tuple(dtype.name for dtype in _NUMPY.values())


def numpy_dtype(trt: Any, data_type: Any) -> np.dtype[Any] | None:
    """NumPy's element type for TensorRT's; None where there is none, as for types of four bits.

    Args:
        trt: The TensorRT module.
        data_type: A ``DataType``.
    """
    for member, dtype in _NUMPY.items():
        if data_type == getattr(trt.DataType, member, None):
            return dtype
    return None


def tensorrt_dtype(trt: Any, dtype: np.dtype[Any]) -> Any:
    """TensorRT's ``DataType`` for NumPy's element type; None where this TensorRT has none.

    Args:
        trt: The TensorRT module.
        dtype: NumPy's element type.
    """
    member = next((member for member, known in _NUMPY.items() if known == dtype), "")
    return getattr(trt.DataType, member, None)
