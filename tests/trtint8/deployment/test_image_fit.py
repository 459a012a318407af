"""Preprocessing that an engine can never be fed with."""

import re

import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError
from tests.trtint8.deployment.conftest import IMAGES, shapes
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange

#: An engine of images of any height and width that its two profiles take.
OPEN = {
    "inputs": (TensorSpec("images", "float32", ("batch", 3, "height", None)),),
    "profiles": (
        {"images": ShapeRange((1, 3, 8, 16), (1, 3, 8, 16), (4, 3, 32, 24))},
        {"images": ShapeRange((1, 3, 64, 64), (1, 3, 64, 64), (4, 3, 64, 64))},
    ),
}
GREY = {"inputs": (TensorSpec("images", "float32", ("batch", 1, 8, 6)),)}
LAST = {"inputs": (TensorSpec("images", "float32", ("batch", 8, 6, 3)),)}


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (TensorSpec("ids", "int64", ("batch", 8)),)},
        {"inputs": (TensorSpec("images", "uint8", ("batch", 3, 8, 6)),)},
        {"inputs": (TensorSpec("images", "float32", ("batch", 8, 6, 3)),)},
        {"inputs": (IMAGES, TensorSpec("others", "float32", ("batch", 3, 8, 6)))},
    ],
)
def test_an_engine_without_such_an_input(make_source, changes):
    with pytest.raises(
        CalibrationDataError, match="with 1 or 3 channels, and no input of the engine takes them"
    ):
        make_source(preprocessing=Preprocessing(), profiles=(), **changes)


@pytest.mark.parametrize(
    ("wanted", "changes", "sentence"),
    [
        ({"crop": (64, 64)}, {}, "of 64x64, and the engine takes 'images' of 8x6 (height x width); correct"),
        ({"letterbox": (6, 8)}, {}, "of 6x8, and the engine takes 'images' of 8x6 (height x width)"),
        ({"resize": (16, 12), "crop": (8, 8)}, {}, "of 8x8, and the engine takes 'images' of 8x6 (height"),
        ({"resize": (8, 3), "layout": "NHWC"}, LAST, "of 8x3, and the engine takes 'images' of 8x6 (height"),
        # One side is the shorter one, and the engine's is 6.
        ({"resize": 5}, {}, "whose shorter side is 5, and the engine takes 'images' of 8x6 (height x width)"),
        ({"resize": 8}, {}, "whose shorter side is 8, and the engine takes 'images' of 8x6 (height x width)"),
        (
            {"crop": (32, 25)},
            OPEN,
            "of 32x25, and the engine takes 'images' of 8x16 to 32x24 or 64x64 (height x width); correct",
        ),
        # Of one profile the height, of the other the width.
        ({"crop": (8, 64)}, OPEN, "of 8x64, and the engine takes 'images' of 8x16 to 32x24 or 64x64"),
        ({"resize": 33}, OPEN, "whose shorter side is 33, and the engine takes 'images' of 8x16 to 32x24 or"),
    ],
)
def test_sizes_that_an_engine_does_not_take(make_source, wanted, changes, sentence):
    with pytest.raises(CalibrationDataError, match=re.escape(f"preprocessing makes images {sentence}")):
        make_source(preprocessing=Preprocessing(**wanted), **changes)


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        ({}, {}),
        ({"crop": (8, 6)}, {}),
        ({"resize": 6}, {}),
        ({"resize": 7, "crop": (8, 6)}, {}),  # images that are higher than wide
        ({"letterbox": (32, 24)}, OPEN),
        ({"crop": (64, 64)}, OPEN),
        ({"resize": 8}, OPEN),  # 8x24 is one of them
        ({"resize": 24}, OPEN),  # and so is 32x24
        ({"crop": (123, 45)}, {**OPEN, "profiles": ()}),
        ({"resize": (8, 6), "layout": "NHWC"}, LAST),
    ],
)
def test_sizes_that_an_engine_may_take(make_source, wanted, changes):
    assert make_source(preprocessing=Preprocessing(**wanted), **changes).preprocessing is not None


def test_a_crop_that_is_larger_than_what_it_is_cut_from(make_source):
    with pytest.raises(
        CalibrationDataError, match=r"cannot crop 8x6 from images of 8x5 \(height x width\); set"
    ):
        make_source(preprocessing=Preprocessing(resize=(8, 5), crop=(8, 6)))
    with pytest.raises(
        CalibrationDataError,
        match=r"cannot crop 8x6 \(height x width\) from images whose shorter side is resized to 5; give",
    ):
        make_source(preprocessing=Preprocessing(resize=5, crop=(8, 6)))


@pytest.mark.parametrize("name", ["mean", "std"])
def test_a_value_for_each_channel(make_source, name):
    wanted = Preprocessing(**{name: (0.1, 0.2, 0.3)})
    sentence = f"has 3 values for {name}, and the engine takes 'images' with 1 channel; give one value"
    with pytest.raises(CalibrationDataError, match=sentence):
        make_source(preprocessing=wanted, **GREY)
    assert make_source(preprocessing=wanted, profiles=({"images": shapes(1, 8, 32)},)).preprocessing == wanted
