import numpy as np
import pytest

from calibrators.data.inputs import InputSpec
from calibrators.data.samples import SampleSizes
from calibrators.errors import BuildError, ModelError
from trtint8.engine.profiles import (
    ShapeRange,
    as_sampled,
    check_profile,
    complete_profile,
    largest_shapes,
    parse_profile,
    profile_rows,
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
        f"x=1,2,{'9' * 5000}",
    ],
)
def test_parse_profile_refuses(text):
    with pytest.raises(BuildError, match="is not NAME=MIN,OPT,MAX; write for example"):
        parse_profile(text)


def test_range_prints_as_it_is_written():
    assert str(parse_profile("x=1x3,2x3,4x3")[1]) == "1x3,2x3,4x3"


def test_without_a_profile_the_batch_has_a_default():
    assert complete_profile({}, [IMAGES, spec("fixed", 4, 5), spec("ids", None, 16)]) == {
        "images": ShapeRange((1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224)),
        "ids": ShapeRange((1, 16), (8, 16), (32, 16)),
    }


def test_static_inputs_need_no_profile():
    assert complete_profile({}, [spec("a", 1, 3), spec("b")]) == {}


def test_other_dimensions_have_the_sizes_of_samples():
    sizes = {"images": SampleSizes((3, 64, 320), (3, 96, 320)), "unknown": SampleSizes((1,), (1,))}
    images = spec("images", "N", 3, "height", None)
    wanted = ShapeRange((1, 3, 64, 320), (8, 3, 96, 320), (32, 3, 96, 320))
    assert complete_profile({}, [images], sizes) == {"images": wanted}
    assert complete_profile({}, [images, spec("scale", 1)], sizes) == {"images": wanted}
    assert largest_shapes((), [images], sizes) == {"images": (32, 3, 96, 320)}
    fixed = complete_profile({}, [spec("images", 1, 3, "height", "width"), spec("scale", 1)], sizes)
    assert fixed == {"images": ShapeRange((1, 3, 64, 320), (1, 3, 96, 320), (1, 3, 96, 320))}


def test_a_profile_comes_before_the_sizes_of_samples():
    given = {"ids": ShapeRange((1, 4), (2, 8), (4, 16))}
    sizes = {"ids": SampleSizes((5,), (5,)), "mask": SampleSizes((5, 7), (6, 7))}
    found = complete_profile(given, [spec("ids", "B", "L"), spec("mask", "B", "L", "W")], sizes)
    assert found == {**given, "mask": ShapeRange((1, 4, 7), (2, 8, 7), (4, 16, 7))}


def test_inputs_that_have_the_sizes_of_samples():
    sizes = {"ids": SampleSizes((5,), (9,)), "mask": SampleSizes((5, 7), (9, 7))}
    inputs = [spec("ids", "B", "L"), spec("mask", "B", "L", "W")]
    assert as_sampled([{}], inputs, sizes) == as_sampled([], inputs, sizes) == ["ids", "mask"]
    # "L" is known from "ids", and "W" is not.
    given = {"ids": ShapeRange((1, 5), (2, 9), (4, 9))}
    assert as_sampled([given], inputs, sizes) == ["mask"]
    whole = {**given, "mask": ShapeRange((1, 4, 7), (2, 8, 7), (4, 16, 7))}
    assert as_sampled([whole], inputs, sizes) == []
    assert as_sampled([whole, given], inputs, sizes) == ["mask"]
    assert as_sampled([whole, {}], inputs, sizes) == ["ids", "mask"]
    assert as_sampled([], inputs, {}) == []


def test_inputs_that_have_sizes_by_the_name_of_a_dimension_have_not_those_of_samples():
    inputs = [spec("key", "B", 4, "past"), spec("value", "B", 4, "past")]
    sizes = {name: SampleSizes((4, 1), (4, 1)) for name in ("key", "value")}
    given = {"key": ShapeRange((1, 4, 1), (1, 4, 1), (1, 4, 1))}
    assert as_sampled([given], inputs, sizes) == []


def test_samples_of_a_state_lie_where_the_dimension_is_named_so():
    inputs = [spec("sound", "N", 64), spec("state", 2, "N", 32)]
    assert complete_profile({}, inputs)["state"] == ShapeRange((2, 1, 32), (2, 8, 32), (2, 32, 32))


def test_sizes_of_samples_say_nothing_where_these_do_not_lie_first():
    """A state's second dimension is the number of samples, whatever its name."""
    inputs = [spec("sound", "N", 64), spec("state", 2, "?", 32)]
    with pytest.raises(BuildError, match=r"^input 'state' .* has a dynamic dimension 1 \('\?'\) besides"):
        complete_profile({}, inputs, {"state": SampleSizes((1, 32), (1, 32))})


def test_without_sizes_of_samples_other_dimensions_need_a_profile():
    with pytest.raises(BuildError) as caught:
        complete_profile({}, [spec("images", "N", 3, "height", None)])
    for named in ("'height'", "profile 'images=MIN,OPT,MAX'", "8x3xSIZExSIZE"):
        assert named in str(caught.value)


def test_unknown_rank():
    with pytest.raises(ModelError, match=r"^input 'x' has no shape in the model; export"):
        complete_profile({}, [InputSpec("x", np.dtype(np.float32), None)])


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
        ("images=0x3x224x224,1x3x224x224,9x3x224x224", "it must begin with at least 1"),
    ],
)
def test_check_profile_refuses(text, message):
    with pytest.raises(BuildError) as caught:
        check_profile(dict([parse_profile(text)]), [IMAGES])
    assert message in str(caught.value)


def test_inputs_of_the_same_shapes_share_a_row():
    one, two = ShapeRange((1, 4), (2, 8), (4, 16)), ShapeRange((1, 0), (1, 8), (1, 16))
    profiles = [{"a": one, "b": two, "c": one}, {"a": two, "b": two, "c": two, "d": two}, {"a": one}]
    assert profile_rows(profiles) == [
        ("profile 0, 'a' and 1 other", "1x4,2x8,4x16"),
        ("profile 0, 'b'", "1x0,1x8,1x16"),
        ("profile 1, 'a' and 3 others", "1x0,1x8,1x16"),
        ("profile 2, 'a'", "1x4,2x8,4x16"),
    ]


def test_samples_may_be_empty():
    sizes = {"cached": SampleSizes((0, 8), (7, 8))}
    wanted = ShapeRange((1, 0, 8), (8, 7, 8), (32, 7, 8))
    assert complete_profile({}, [spec("cached", "N", "P", 8)], sizes) == {"cached": wanted}
    check_profile(dict([parse_profile("cached=1x0x8,8x0x8,32x0x8")]), [spec("cached", "N", "P", 8)])


@pytest.mark.parametrize("shapes", [((1, 3), (4, 3), (8, 3)), "1x3,4x3,8x3", None])
def test_shapes_that_are_no_range(shapes):
    with pytest.raises(
        BuildError, match=r"^the profile of input 'x' is .*; give trtint8\.ShapeRange\(min, opt, max\)"
    ):
        check_profile({"x": shapes}, [spec("x", "N", 3)])


@pytest.mark.parametrize("size", [-1, 2**31, 2**70])
def test_sizes_that_tensorrt_has_not(size):
    low, high = sorted((size, 8))
    with pytest.raises(BuildError, match=r"is 1x.*; TensorRT takes sizes from 0 to 2147483647"):
        check_profile({"x": ShapeRange((1, low), (1, 8), (1, high))}, [spec("x", "N", "W")])
    check_profile({"x": ShapeRange((1, 0), (1, 8), (1, 2**31 - 1))}, [spec("x", "N", "W")])


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


def test_sizes_of_numpy_are_integers():
    shapes = ShapeRange(*(np.array([n, 3]) for n in (1, 2, 4)))
    assert shapes == ShapeRange((1, 3), (2, 3), (4, 3))
    assert all(type(size) is int for size in shapes.opt)


@pytest.mark.parametrize("shape", [3, (1, 2.5), ("1", 3), None])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(BuildError, match=r"^opt of a ShapeRange is .*; give a shape, such as"):
        ShapeRange((1, 3), shape, (4, 3))


def test_what_is_no_profile_is_refused():
    with pytest.raises(BuildError, match=r"^a profile is 'images=1'; give a dict from input name to trtint8"):
        check_profile("images=1", [])
