from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.inputs import InputSpec
from calibrators.data.samples import Preflight, SampleSizes, check_feed
from calibrators.errors import CalibrationDataError

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
IMAGE = InputSpec("x", FLOAT, ("N", 3, 4, 5))
TOKENS = InputSpec("ids", INT, ("N", "T"))
CACHED = InputSpec("cached", FLOAT, ("N", "P", 4))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def refused(feed, inputs, match):
    with pytest.raises(CalibrationDataError, match=match):
        check_feed(feed, inputs)


def test_accepts_what_the_model_takes():
    check_feed({"x": normal(2, 3, 4, 5), "ids": np.ones((2, 7), np.int64)}, [IMAGE, TOKENS])
    check_feed({"x": normal(2, 9)}, [InputSpec("x", FLOAT, None)])
    check_feed({"x": normal()}, [InputSpec("x", FLOAT, ())])


def test_lists_unknown_and_missing_names():
    refused(
        {"y": normal(2, 3, 4, 5), "ids": np.ones((2, 7), np.int64)},
        [IMAGE, TOKENS],
        r"unknown 'y' and missing 'x'; the model has 'x' \(float32, Nx3x4x5\), 'ids' \(int64, NxT\)",
    )
    refused({"x": normal(2, 3, 4, 5)}, [IMAGE, TOKENS], "inputs: missing 'ids';")


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64"])
def test_refuses_another_dtype(dtype):
    refused(
        {"x": np.ones((2, 3, 4, 5), dtype)},
        [IMAGE],
        rf"'x' takes float32 but its data is {dtype}; convert it yourself with array.astype\('float32'\)",
    )


def test_uint8_images_need_preprocessing():
    refused({"x": np.ones((2, 4, 5, 3), np.uint8)}, [IMAGE], "'x' takes float32 but .* uint8 images; declare")
    refused({"x": np.ones((2, 4), np.uint8)}, [IMAGE], "data is uint8; convert it yourself")


def test_refuses_another_rank():
    refused({"x": normal(3, 4, 5)}, [IMAGE], r"shape 3x4x5 .* Nx3x4x5: rank 3 instead of 4; add a batch axis")
    refused({"x": normal(5)}, [IMAGE], "shape 5 .*: rank 1 instead of 4; reshape it")
    refused({"x": normal()}, [IMAGE], "shape scalar .*: rank 0 instead of 4")
    number = InputSpec("x", np.dtype(np.float32), ())
    refused({"x": normal(8)}, [number], "shape 8 but the model takes scalar: .*; give one number, an array w")


def test_refuses_another_fixed_dimension():
    refused({"x": normal(2, 3, 4, 6)}, [IMAGE], "'x' has shape 2x3x4x6 but the model takes Nx3x4x5; bring")
    fixed = InputSpec("x", FLOAT, (8, None))
    refused({"x": normal(2, 6)}, [fixed], r"shape 2x6 but the model takes 8x\?; bring")


def test_names_the_other_layout():
    refused({"x": normal(2, 4, 5, 3)}, [IMAGE], "2x4x5x3 but the model takes Nx3x4x5; .*set layout to")
    refused(
        {"x": normal(2, 3, 4, 5)}, [InputSpec("x", FLOAT, ("N", 4, 5, 3))], "the data has the other layout"
    )
    # Preprocessing, which has a layout, makes no uint8.
    images, raw = np.zeros((2, 4, 5, 3), np.uint8), InputSpec("x", np.dtype(np.uint8), ("N", 3, 4, 5))
    refused({"x": images}, [raw], "; the data has the other layout: transpose it$")


def test_refuses_empty_arrays():
    refused({"x": normal(0, 3, 4, 5)}, [IMAGE], r"'x' is empty \(shape 0x3x4x5\)")
    refused({"ids": np.ones((2, 0), np.int64)}, [TOKENS], "'ids' is empty")
    refused({"cached": normal(2, 0, 4), "ids": np.ones((2, 0), np.int64)}, [CACHED, TOKENS], "'cached' is em")
    refused({"cached": normal(0, 5, 4), "ids": np.ones((2, 3), np.int64)}, [CACHED, TOKENS], "'cached' is em")


def test_one_of_several_inputs_may_be_empty():
    preflight = Preflight([CACHED, TOKENS])
    preflight.observe({"cached": normal(2, 0, 4), "ids": np.ones((2, 3), np.int64)})
    assert preflight.samples == 2
    assert preflight.sizes["cached"] == SampleSizes((0, 4), (0, 4))
    preflight.observe({"cached": normal(2, 5, 4), "ids": np.ones((2, 1), np.int64)})
    assert preflight.sizes["cached"] == SampleSizes((0, 4), (5, 4))
    assert preflight.finish() == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_values_that_are_not_finite(value):
    x = normal(4, 3, 4, 5)
    x[2, 1, 0, 0] = x[3, 0, 0, :2] = value
    refused({"x": x}, [IMAGE], "'x' has 3 values that are NaN or infinite, the first in sample 2;")


def test_counts_the_first_bad_sample_over_all_feeds():
    preflight = Preflight([IMAGE])
    preflight.observe({"x": normal(4, 3, 4, 5)})
    bad = normal(4, 3, 4, 5)
    bad[1] = np.nan
    with pytest.raises(CalibrationDataError, match=r"60 values .* the first in sample 5;"):
        preflight.observe({"x": bad})


def test_calls_the_first_bad_sample_by_its_name():
    preflight = Preflight([IMAGE], "image{}.png".format)
    preflight.observe({"x": normal(4, 3, 4, 5)})
    bad = normal(4, 3, 4, 5)
    bad[2, 0, 0, 0] = np.nan
    with pytest.raises(CalibrationDataError, match=r"1 value that .* the first in image6\.png;"):
        preflight.observe({"x": bad})


def test_a_feed_without_a_common_axis_is_one_bad_sample():
    bad = normal(2, 3, 4, 5)
    bad[1] = np.nan
    feed = {"x": bad, "scale": np.array(2, np.float32)}
    refused(feed, [IMAGE, InputSpec("scale", FLOAT, ())], "the first in sample 0;")


def test_refuses_a_bad_scalar():
    refused({"x": np.array(np.nan, np.float32)}, [InputSpec("x", FLOAT, ())], "1 value .* in sample 0")


def test_refuses_different_numbers_of_samples():
    refused(
        {"x": normal(2, 3, 4, 5), "ids": np.ones((3, 7), np.int64)},
        [IMAGE, TOKENS],
        "different numbers of samples: 'x' 2, 'ids' 3;",
    )


@pytest.mark.parametrize("shape", [("M", "T"), (3, "T"), None])
def test_inputs_with_other_first_dimensions_need_not_agree(shape):
    feed = {"x": normal(2, 3, 4, 5), "ids": np.ones((3, 7), np.int64)}
    check_feed(feed, [IMAGE, InputSpec("ids", INT, shape)])


def finish(*arrays: np.ndarray, spec: InputSpec = IMAGE) -> list[str]:
    preflight = Preflight([spec])
    for array in arrays:
        preflight.observe({spec.name: array})
    return preflight.finish()


def test_normal_data_has_no_findings():
    assert finish(normal(2, 3, 4, 5), normal(3, 3, 4, 5)) == []


def test_no_samples_is_an_error():
    with pytest.raises(CalibrationDataError, match="the data has no samples"):
        Preflight([IMAGE]).finish()


def test_finds_constant_data():
    flat = np.full((2, 3, 4, 5), 0.5, np.float32)
    assert finish(flat, flat) == ["input 'x' is 0.5 in all 4 samples; check that the data is not blank"]
    assert finish(flat, flat + 1) == []
    zeros = ["input 'x' is 0 in all 2 samples; check that the data is not blank"]
    assert finish(0 * flat) == finish(-0.0 * flat) == zeros


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 255, True), (0, 2, True), (0, 1, False), (-1, 5, False), (0, 256, False)],
)
def test_finds_whole_numbers_in_the_range_of_pixels(low, high, found):
    x = np.zeros((2, 3, 4, 5), np.float32)
    x[0], x[1, 0] = low, high
    expected = f"input 'x' has only integers from {low} to {high}, like raw pixels; check that the model"
    assert [text.startswith(expected) for text in finish(x)] == ([True] if found else [])


def test_finds_samples_that_reach_further_than_others():
    images = np.clip(normal(40, 3, 4, 5), -2, 2)
    images[7, 0, 0, 0], images[33, 1, 2, 3] = -60, 70
    whole, parts = Preflight([IMAGE]), [Preflight([IMAGE]) for _ in range(2)]
    for start in range(0, 40, 8):
        whole.observe({"x": images[start : start + 8]})
        parts[start >= 16].observe({"x": images[start : start + 8]})
    (finding,) = whole.finish()
    assert finding == (
        "input 'x' reaches 70 in 2 of 40 samples (sample 7, sample 33), and at most 2.378 in 95% of them; "
        "check these, as a few such samples make the ranges worse for all others"
    )
    assert whole.finish("image{}.png".format) == [
        finding.replace("sample 7, sample 33", "image7.png, image33.png")
    ]
    assert parts[0].merge(parts[1]).finish() == Preflight([IMAGE]).merge(whole).finish() == [finding]


def test_one_fraction_anywhere_means_no_pixels():
    x = np.zeros((2, 3, 4, 5), np.float32)
    x[0] = 200
    part = x.copy()
    part[1, 2, 3, 4] = 0.5
    assert finish(x, part) == finish(part, x) == []


def test_integer_inputs_are_not_judged():
    assert finish(np.ones((2, 7), np.int64), spec=TOKENS) == []


def test_a_feed_without_a_common_axis_counts_as_one_sample():
    preflight = Preflight([IMAGE, InputSpec("scale", FLOAT, ())])
    preflight.observe({"x": normal(2, 3, 4, 5), "scale": np.array(2, np.float32)})
    assert preflight.samples == 1
    assert preflight.finish() == []


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_counts_samples(sizes):
    preflight = Preflight([IMAGE])
    for size in sizes:
        preflight.observe({"x": normal(size, 3, 4, 5)})
    assert preflight.samples == sum(sizes)


def test_sizes_are_kept_of_inputs_that_leave_them_open():
    first, second = (
        Preflight([InputSpec("x", FLOAT, ("N", 3, "height", 5)), InputSpec("tokens", INT, ("N", 7))])
        for _ in range(2)
    )
    tokens = np.zeros((2, 7), np.int64)
    first.observe({"x": normal(2, 3, 4, 5), "tokens": tokens})
    first.observe({"x": normal(2, 3, 9, 5), "tokens": tokens})
    second.observe({"x": normal(2, 3, 2, 5), "tokens": tokens})
    assert first.sizes == {"x": SampleSizes((3, 4, 5), (3, 9, 5))}
    assert first.merge(second).sizes == second.merge(first).sizes == {"x": SampleSizes((3, 2, 5), (3, 9, 5))}
