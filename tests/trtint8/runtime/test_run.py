"""An engine on a whole data set, with a stand-in of our own Engine; the verb's tests have more cases."""

import io

import ml_dtypes
import numpy as np
from numpy.testing import assert_array_equal

from calibrators.data.opening import open_batches
from trtint8.api.running import archive, run_on_data
from trtint8.engine.file import TensorSpec, input_specs


class Doubling:
    """The part of our own Engine that is used."""

    info = None
    inputs = (TensorSpec("x", "float32", (None, 2)),)
    outputs = (TensorSpec("y", "bfloat16", (None, 2)),)

    def infer(self, feeds):
        return {"y": (2 * feeds["x"]).astype(ml_dtypes.bfloat16)}


def test_batches_become_one_array_of_a_type_of_numpy():
    samples, inputs = np.arange(6, dtype=np.float32).reshape(3, 2), input_specs(Doubling.inputs)
    outputs = run_on_data(Doubling(), inputs, open_batches(samples, inputs, batch_size=2), progress=False)
    assert outputs["y"].dtype == np.float32
    assert_array_equal(outputs["y"], 2 * samples)
    with np.load(io.BytesIO(archive(outputs))) as read:
        assert_array_equal(read["y"], outputs["y"])
