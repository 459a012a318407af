"""Models run in ONNX Runtime, as comparisons call them."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from tests.trtint8.validation.small_models import scaled
from trtint8.validation.accuracy import onnx_runner


@pytest.mark.parametrize("optimize", [False, True])
def test_outputs_and_their_names(optimize):
    run, names = onnx_runner(scaled(3.0).SerializeToString(), optimize=optimize, threads=1)
    assert names == ["y"]
    (output,) = run({"x": np.eye(2, 4, dtype=np.float32)})
    np.testing.assert_array_equal(output, 3 * np.eye(2, 4))


def test_a_batch_that_the_model_does_not_take():
    run, _ = onnx_runner(scaled(3.0).SerializeToString(), optimize=False)
    with pytest.raises(CalibrationDataError, match="the model fails on a batch: "):
        run({"x": np.eye(2, 3, dtype=np.float32)})
