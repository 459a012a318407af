"""Constants as the bindings hand them over."""

import numpy as np
import pytest

from trtint8.builder.dynamic_ranges import weights_array


@pytest.mark.parametrize("values", [[1.0, -7.0, 2.0], [3.0], [0.0, 0.0]])
def test_every_value_of_a_constant_is_seen(trt, values):
    """The bindings of 8.6 give arrays without strides under NumPy 2."""
    source = np.array(values, np.float32)
    assert weights_array(trt.Weights(source).numpy()).tolist() == values
