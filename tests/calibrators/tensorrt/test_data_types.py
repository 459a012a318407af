"""TensorRT's element types, of TensorRT for RTX's own module."""

from types import SimpleNamespace

import numpy as np

from calibrators.tensorrt.data_types import DTYPES, numpy_dtype, tensorrt_dtype


def test_types_that_numpy_has_and_has_not(rtx):
    trt = rtx.module
    pairs = {"FLOAT": "float32", "HALF": "float16", "INT8": "int8", "INT32": "int32", "INT64": "int64"}
    pairs |= {"UINT8": "uint8", "BOOL": "bool", "BF16": "bfloat16", "FP8": "float8_e4m3fn"}
    for member, name in pairs.items():
        assert numpy_dtype(trt, getattr(trt.DataType, member)) == np.dtype(name)
        assert tensorrt_dtype(trt, np.dtype(name)) == getattr(trt.DataType, member)
    assert sorted(DTYPES) == sorted(pairs.values())
    assert numpy_dtype(trt, trt.DataType.INT4) is None
    assert numpy_dtype(trt, trt.DataType.FP4) is None
    assert tensorrt_dtype(trt, np.dtype(np.float64)) is None
    assert tensorrt_dtype(SimpleNamespace(DataType=object()), np.dtype(np.float32)) is None
