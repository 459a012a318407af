"""What a model's input is described by."""

import numpy as np
import pytest

from calibrators.data.inputs import InputSpec, shape_text

FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "batch", "text"),
    [
        ((4, 3, "H", None), 4, "'x' (float32, 4x3xHx?)"),
        (("N", 3), None, "'x' (float32, Nx3)"),
        ((None,), None, "'x' (float32, ?)"),
        ((), None, "'x' (float32, scalar)"),
        (None, None, "'x' (float32, unknown shape)"),
    ],
)
def test_its_batch_and_its_words(shape, batch, text):
    spec = InputSpec("x", FLOAT, shape)
    assert (spec.static_batch, str(spec)) == (batch, text)


@pytest.mark.parametrize(
    ("shape", "is_open"),
    [
        (("N", 3, 64), False),
        (("N", 3, "width"), True),
        ((1, None), True),
        (("N",), False),
        ((), False),
        (None, False),
    ],
)
def test_open_sizes(shape, is_open):
    assert InputSpec("x", np.dtype(np.float32), shape).has_open_sizes is is_open


def test_shapes_as_text():
    assert shape_text([2, None, "H"]) == "2x?xH" and shape_text([]) == "scalar"
    assert shape_text([2, "H"], " x ") == "2 x H"
