"""Feed dicts, without a look at their values."""

import numpy as np
import pytest

from calibrators.data.feeds import batch_rows, check_dtype, check_names, is_float, is_image_batch, shape_text
from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError

X = InputSpec("x", np.dtype(np.float32), ("N", 3))
IDS = InputSpec("ids", np.dtype(np.int64), ("N", 2))


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [([(4, 3)], 4), ([(4, 3), (4,)], 4), ([(4, 3), (5,)], None), ([(4, 3), ()], None), ([()], None)],
)
def test_samples_of_a_feed(shapes, rows):
    assert batch_rows({str(i): np.zeros(shape) for i, shape in enumerate(shapes)}) == rows


def test_names_must_be_the_inputs():
    check_names(["ids", "x"], [X, IDS])
    with pytest.raises(CalibrationDataError) as caught:
        check_names(["ids", "b", "a"], [X, IDS])
    assert str(caught.value) == (
        "the data does not match the model's inputs: unknown 'a', 'b' and missing 'x'; the model has "
        "'x' (float32, Nx3), 'ids' (int64, Nx2): name the arrays after these"
    )


def test_nothing_is_cast():
    check_dtype(np.zeros((1, 3), np.float32), X)
    with pytest.raises(
        CalibrationDataError, match=r"takes float32 but its data is float64; convert .*astype"
    ):
        check_dtype(np.zeros((1, 3)), X)
    with pytest.raises(
        CalibrationDataError, match="its data is uint8 images; declare how they become float32"
    ):
        check_dtype(np.zeros((1, 4, 4, 3), np.uint8), X)


def test_kinds_and_shapes():
    assert is_image_batch(np.zeros((1, 4, 4, 3), np.uint8))
    assert not is_image_batch(np.zeros((4, 4, 3), np.uint8))
    assert is_float(np.dtype(np.float16)) and not is_float(np.dtype(np.int8))
    assert shape_text([2, None, "H"]) == "2x?xH" and shape_text([]) == "scalar"
