"""Constants as the bindings hand them over."""

import ml_dtypes
import numpy as np
import pytest

from calibrators.errors import EngineError
from calibrators.tensorrt.flavor import Flavor
from tests.bindings.conftest import VERSION
from trtint8.builder.dynamic_ranges import weights_array
from trtint8.runtime.refit import as_weights


@pytest.mark.parametrize("values", [[1.0, -7.0, 2.0], [3.0], [0.0, 0.0]])
def test_every_value_of_a_constant_is_seen(trt, values):
    """The bindings of 8.6 give arrays without strides under NumPy 2."""
    source = np.array(values, np.float32)
    assert weights_array(trt.Weights(source).numpy()).tolist() == values


@pytest.mark.parametrize("dtype", [np.float32, np.int64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_new_weights_are_taken_or_refused_in_a_sentence(trt, dtype):
    values = np.ones((2, 3), dtype)
    if trt.__version__.startswith("8.") and dtype != np.float32:
        with pytest.raises(EngineError, match=r"'w' are \w+, which TensorRT 8\.6\.1 takes no weights of"):
            as_weights(Flavor("tensorrt", VERSION), "w", values)
    else:
        weights = as_weights(Flavor("tensorrt", VERSION), "w", values)
        assert (weights.size, weights.nbytes) == (6, values.nbytes)
