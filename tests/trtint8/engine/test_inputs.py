"""An engine's inputs, as data sources describe them."""

import numpy as np

from calibrators.data.inputs import InputSpec
from trtint8.engine.file import TensorSpec
from trtint8.engine.inputs import input_specs


def test_inputs_as_data_sources_want_them():
    assert input_specs((TensorSpec("x", "float16", (None, 3)),)) == (
        InputSpec("x", np.dtype(np.float16), (None, 3)),
    )
