"""Random values to take the time with."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime.benchmark import random_feed

IMAGES = TensorSpec("images", "float32", (None, 3, None, None))


IDS = TensorSpec("ids", "int64", (None, 16))


FIXED = TensorSpec("fixed", "float16", (4, 3))


PROFILE = {
    "images": ShapeRange((1, 3, 8, 8), (2, 3, 16, 16), (4, 3, 32, 32)),
    "ids": ShapeRange((1, 16), (2, 16), (4, 16)),
}


def test_random_values_have_the_shapes_of_the_profile():
    feed = random_feed((IMAGES, IDS, FIXED), (PROFILE,), None)
    assert {name: (array.shape, array.dtype.name) for name, array in feed.items()} == {
        "images": ((2, 3, 16, 16), "float32"),
        "ids": ((2, 16), "int64"),
        "fixed": ((4, 3), "float16"),
    }
    assert feed["images"].std() == pytest.approx(1, abs=0.1)
    assert not feed["ids"].any()


def test_random_values_of_types_that_numpy_lacks():
    values = random_feed((TensorSpec("x", "bfloat16", (64, 64)),), (), None)["x"]
    assert values.dtype.name == "bfloat16"
    assert values.astype(np.float32).std() == pytest.approx(1, abs=0.1)


def test_a_batch_size_replaces_dynamic_first_dimensions_only():
    feed = random_feed((IMAGES, FIXED), (PROFILE,), 3)
    assert (feed["images"].shape, feed["fixed"].shape) == ((3, 3, 16, 16), (4, 3))
    assert random_feed((FIXED,), (), 4)["fixed"].shape == (4, 3)


@pytest.mark.parametrize(
    ("inputs", "batch_size", "message"),
    [
        ((FIXED,), 8, "--batch-size is 8 but the engine has a fixed batch of 4; leave it out"),
        ((IMAGES,), 0, "--batch-size is 0; give a positive integer"),
        (
            (TensorSpec("more", "int32", (None,)),),
            None,
            "no profile says a shape for input 'more'; give --data",
        ),
    ],
)
def test_shapes_that_no_random_values_can_have(inputs, batch_size, message):
    with pytest.raises(CalibrationDataError) as caught:
        random_feed(inputs, (PROFILE,), batch_size)
    assert str(caught.value) == message
