"""What a model's input is described by."""

import numpy as np
import pytest

from calibrators.data.inputs import InputSpec, shape_text


@pytest.mark.parametrize(
    ("shape", "batch", "is_open", "text"),
    [
        ((4, 3, "H", None), 4, True, "'x' (float32, 4x3xHx?)"),
        (("N", 3), None, False, "'x' (float32, Nx3)"),
        ((1, None), 1, True, "'x' (float32, 1x?)"),
        ((None,), None, False, "'x' (float32, ?)"),
        ((), None, False, "'x' (float32, scalar)"),
        (None, None, False, "'x' (float32, unknown shape)"),
    ],
)
def test_its_batch_its_open_sizes_and_its_words(shape, batch, is_open, text):
    spec = InputSpec("x", np.dtype(np.float32), shape)
    assert (spec.static_batch, spec.has_open_sizes, str(spec)) == (batch, is_open, text)


def test_shapes_as_text():
    assert shape_text([2, None, "H"]) == "2x?xH" and shape_text([]) == "scalar"
    assert shape_text([2, "H"], " x ") == "2 x H"
