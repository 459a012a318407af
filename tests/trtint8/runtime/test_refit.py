import ml_dtypes
import numpy as np
import pytest

from calibrators.errors import EngineError
from trtint8.runtime.refit import as_weights, check_dtypes, check_shared_scales

GROUPS = [("a_scale", "b_scale"), ("c_scale", "d_scale", "e_scale")]


def scale(value):
    return np.array(value, np.float32)


def test_equal_scales_and_other_weights_pass():
    check_shared_scales({"conv.weight": scale([1, 2])}, GROUPS)
    check_shared_scales({"a_scale": scale(0.1), "b_scale": scale(0.1)}, GROUPS)
    check_shared_scales({"a_scale": scale(0.1)}, [])


def test_different_scales_are_named():
    with pytest.raises(EngineError, match=r"'a_scale'.*'b_scale'"):
        check_shared_scales({"a_scale": scale(0.1), "b_scale": scale(0.2)}, GROUPS)


def test_a_part_of_a_group_is_named():
    with pytest.raises(EngineError, match=r"'d_scale'.*'c_scale'.*'e_scale'"):
        check_shared_scales({"d_scale": scale(0.1)}, GROUPS)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i1", "i4", "i8", "u1", "?"])
def test_types_that_tensorrt_has(dtype):
    check_dtypes({"conv.weight": np.zeros(3, dtype)})


@pytest.mark.parametrize(("dtype", "name"), [("f8", "float64"), (">f4", ">f4"), ("c8", "complex64")])
def test_other_types_are_named(dtype, name):
    with pytest.raises(EngineError, match=f"the new weights 'conv.weight' are {name}, and TensorRT takes"):
        check_dtypes({"conv.weight": np.zeros(3, dtype)})


@pytest.mark.parametrize(
    ("dtype", "member"),
    [
        (np.float32, "FLOAT"),
        (np.bool_, "BOOL"),
        (np.int64, "INT64"),
        (ml_dtypes.bfloat16, "BF16"),
        (ml_dtypes.float8_e4m3fn, "FP8"),
    ],
)
def test_weights_of_every_type_reach_tensorrt(rtx, dtype, member):
    check_dtypes({"conv.weight": np.ones(3, dtype)})
    values = np.ones((2, 3), dtype)
    weights = as_weights(rtx, "conv.weight", values)
    assert weights.dtype == getattr(rtx.module.DataType, member)
    assert (weights.size, weights.nbytes) == (6, values.nbytes)


def test_types_that_this_tensorrt_lacks(rtx):
    with pytest.raises(EngineError) as caught:
        as_weights(rtx, "conv.weight", np.zeros(3, ml_dtypes.float8_e5m2))
    assert str(caught.value) == (
        f"the new weights 'conv.weight' are float8_e5m2, which {rtx} takes no weights of; convert them with "
        "astype to the type that they have in the engine"
    )
