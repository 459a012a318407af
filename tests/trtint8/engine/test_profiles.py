import numpy as np
import pytest

from calibrators.data.inputs import InputSpec
from calibrators.errors import BuildError, ModelError
from trtint8.engine.profiles import (
    ShapeRange,
    check_profile,
    complete_profile,
    default_profile,
    largest_shapes,
    parse_profile,
)


def spec(name, *shape):
    return InputSpec(name, np.dtype(np.float32), shape)


IMAGES = spec("images", "N", 3, 224, 224)


def test_parse_profile():
    assert parse_profile("images=1x3x224x224,8x3x224x224,32x3x224x224") == (
        "images",
        ShapeRange((1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224)),
    )


def test_parse_profile_keeps_odd_names():
    assert parse_profile("model/x:0=y=1,2,3") == ("model/x:0=y", ShapeRange((1,), (2,), (3,)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "images",
        "=1,2,3",
        "images=1x3,2x3",
        "images=1,2,3,4",
        "images=1x,2x,3x",
        "images=-1,2,3",
        "x=axb,1,1",
    ],
)
def test_parse_profile_refuses(text):
    with pytest.raises(BuildError, match="is not NAME=MIN,OPT,MAX; write for example"):
        parse_profile(text)


def test_range_prints_as_it_is_written():
    assert str(parse_profile("x=1x3,2x3,4x3")[1]) == "1x3,2x3,4x3"


def test_default_profile():
    assert default_profile([IMAGES, spec("fixed", 4, 5), spec("ids", None, 16)]) == {
        "images": ShapeRange((1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224)),
        "ids": ShapeRange((1, 16), (8, 16), (32, 16)),
    }
    assert default_profile([IMAGES], batch=(2, 4, 6))["images"].opt == (4, 3, 224, 224)


def test_default_profile_of_static_inputs_is_empty():
    assert default_profile([spec("a", 1, 3), spec("b")]) == {}


def test_default_profile_needs_help_with_other_dimensions():
    with pytest.raises(BuildError) as caught:
        default_profile([spec("images", "N", 3, "height", None)])
    assert str(caught.value) == (
        "input 'images' (float32, Nx3xheightx?) has a dynamic dimension 2 ('height') besides the batch; give "
        "its sizes with a profile 'images=MIN,OPT,MAX', three shapes like 8x3xSIZExSIZE"
    )


def test_unknown_rank():
    with pytest.raises(ModelError, match=r"^input 'x' has no shape in the model; export"):
        default_profile([InputSpec("x", np.dtype(np.float32), None)])


def test_complete_profile_fills_in_defaults():
    given = {"ids": ShapeRange((1, 4), (2, 8), (4, 16))}
    assert complete_profile(given, [IMAGES, spec("ids", "B", "L")]) == {
        "ids": given["ids"],
        "images": ShapeRange((1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224)),
    }


def test_complete_profile_shares_named_dimensions():
    given = {"ids": ShapeRange((1, 4), (2, 8), (4, 16))}
    assert complete_profile(given, [spec("ids", "B", "L"), spec("mask", "B", 1, "L")])["mask"] == ShapeRange(
        (1, 1, 4), (2, 1, 8), (4, 1, 16)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image=1,2,3", "the profile names an input 'image' that the model lacks; it has 'images'"),
        ("images=1x3,2x3,4x3", "is 1x3,2x3,4x3; give three shapes of 4 dimensions"),
        ("images=1x3x224x224,8x3x224x224,32x3x224", "give three shapes of 4 dimensions"),
        ("images=1x1x224x224,8x3x224x224,9x3x224x224", "dimension 1 is always 3 in the model; write 3 there"),
        ("images=1x4x224x224,8x4x224x224,9x4x224x224", "dimension 1 is always 3 in the model; write 3 there"),
        ("images=8x3x224x224,1x3x224x224,9x3x224x224", "dimension 0 must grow from min over opt to max"),
        ("images=1x3x224x224,9x3x224x224,8x3x224x224", "dimension 0 must grow from min over opt to max"),
        ("images=0x3x224x224,1x3x224x224,9x3x224x224", "sizes must be at least 1"),
    ],
)
def test_check_profile_refuses(text, message):
    with pytest.raises(BuildError) as caught:
        check_profile(dict([parse_profile(text)]), [IMAGES])
    assert message in str(caught.value)


def test_check_profile_takes_a_static_input_as_it_is():
    check_profile({"x": ShapeRange((2, 3), (2, 3), (2, 3))}, [spec("x", 2, 3)])


def test_largest_shapes_of_all_profiles():
    inputs = [IMAGES, spec("ids", "L")]
    images = ShapeRange((1, 3, 224, 224), (8, 3, 224, 224), (64, 3, 224, 224))
    profiles = [
        {"ids": ShapeRange((1,), (8,), (16,)), "images": images},
        {"ids": ShapeRange((1,), (64,), (128,))},
    ]
    assert largest_shapes(profiles, inputs) == {"ids": (128,), "images": (64, 3, 224, 224)}
    assert largest_shapes((), [IMAGES]) == {"images": (32, 3, 224, 224)}
