"""Samples in the types that a model takes."""

import ml_dtypes
import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.engine.file import TensorSpec
from trtint8.runtime.arrays import as_input
from trtint8.validation.feeding import as_fed, as_floats


def fed(array, dtype, scale=None):
    scales = {} if scale is None else {"x": np.float32(scale)}
    return as_fed({"x": array}, {"x": np.dtype(dtype)}, scales)["x"]


def test_integers_keep_their_values():
    ids = np.array([[101, -102]], np.int64)
    found = fed(ids, np.int32)
    assert found.dtype == np.int32 and found.tolist() == ids.tolist()
    assert as_input(found, TensorSpec("x", "int32", (None, 2)), 1) is found
    assert fed(ids, np.int64) is ids
    with pytest.raises(
        CalibrationDataError,
        match=r"^input 'x' is int32 in the model, and its int64 values, from 5 to 1099511627776, do not fit; "
        "give values that int32 holds$",
    ):
        fed(np.array([5, 1 << 40]), np.int32)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_floating_point_values_are_rounded(dtype):
    array = np.array([1 / 3, 1e6], np.float32)
    with np.errstate(over="ignore"):
        found = fed(array, dtype)
        assert found.dtype == dtype and found.tobytes() == array.astype(dtype).tobytes()


def test_an_int8_input_takes_what_the_scale_makes_of_the_values():
    array = np.array([0.25, 0.26, -0.75, 100, -100], np.float32)
    found = fed(array, np.int8, 0.5)
    # Halves go to the even neighbour, and what is out of range to its ends.
    assert found.dtype == np.int8 and found.tolist() == [0, 1, -2, 127, -128]
    with pytest.raises(
        CalibrationDataError,
        match=r"^input 'x' is int8 in the engine, and the scale that makes int8 of float32 values is not "
        r"known; put the calibration table .* beside the engine, or build without io_types for it$",
    ):
        fed(array, np.int8)


def test_other_kinds_are_left_for_the_model_to_refuse():
    array = np.zeros(3, np.float32)
    assert fed(array, np.int32) is array
    assert fed(array, np.bool_) is array


def test_an_int8_output_stands_for_values():
    output = np.array([-128, 3], np.int8)
    assert as_floats("y", output, {"y": np.float32(0.5)}).tolist() == [-64.0, 1.5]
    assert as_floats("y", output, {"x": np.float32(0.5)}) is output
