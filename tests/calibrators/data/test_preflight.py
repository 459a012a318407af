from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.inputs import InputSpec
from calibrators.data.samples import Preflight, SampleSizes, check_feed
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import floats, integers

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
IMAGE = floats("x", "N", 3, 4, 5)
TOKENS = integers("ids", "N", "T")
CACHED = floats("cached", "N", "P", 4)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def ids(*shape: int) -> np.ndarray:
    return np.ones(shape, np.int64)


def with_bad(value: float, shape: tuple[int, ...], *places: tuple[int, ...]) -> np.ndarray:
    array = normal(*shape)
    for place in places:
        array[place] = value
    return array


@pytest.mark.parametrize("shape", [("M", "T"), (3, "T"), None])
def test_accepts_what_the_model_takes(shape):
    check_feed({"x": normal(2, 3, 4, 5), "ids": ids(2, 7)}, [IMAGE, TOKENS])
    check_feed({"x": normal(2, 9)}, [InputSpec("x", FLOAT, None)])
    check_feed({"x": normal()}, [NUMBER])
    # Inputs whose first dimensions are not the batch need not agree.
    check_feed({"x": normal(2, 3, 4, 5), "ids": ids(3, 7)}, [IMAGE, InputSpec("ids", INT, shape)])


NUMBER = floats("x")
BAD = [(2, 1, 0, 0), (3, 0, 0, 0), (3, 0, 0, 1)]


@pytest.mark.parametrize(
    ("feed", "inputs", "named"),
    [
        ({"y": normal(2, 3, 4, 5), "ids": ids(2, 7)}, [IMAGE, TOKENS], "unknown 'y' and missing 'x'"),
        ({"x": normal(2, 3, 4, 5)}, [IMAGE, TOKENS], "missing 'ids'"),
        *(
            ({"x": np.ones((2, 3, 4, 5), dtype)}, [IMAGE], rf"'x' .*float32 .*{dtype}; .*astype\('float32'\)")
            for dtype in ("float64", "float16", "int64")
        ),
        ({"x": np.ones((2, 4, 5, 3), np.uint8)}, [IMAGE], "'x' .*float32 .*uint8 images; declare"),
        ({"x": np.ones((2, 4), np.uint8)}, [IMAGE], "uint8; convert it yourself"),
        ({"x": normal(3, 4, 5)}, [IMAGE], "shape 3x4x5 .*Nx3x4x5: rank 3 .*4; .*expand_dims\\(array, 0\\)"),
        ({"x": normal(5)}, [IMAGE], "shape 5 .*rank 1 .*4; reshape it"),
        ({"x": normal()}, [IMAGE], "scalar .*rank 0 .*4"),
        ({"x": normal(8)}, [NUMBER], "shape 8 .*scalar: .*; give one number"),
        ({"x": normal(2, 3, 4, 6)}, [IMAGE], "'x' .*2x3x4x6 .*Nx3x4x5; bring"),
        ({"x": normal(2, 6)}, [floats("x", 8, None)], r"2x6 .*8x\?; bring .*batch_size=8 makes"),
        ({"x": normal(2, 4, 5, 3)}, [IMAGE], "2x4x5x3 .*Nx3x4x5; .*array, -1, -3"),
        ({"x": normal(2, 3, 4, 5)}, [floats("x", "N", 4, 5, 3)], "the other layout"),
        # Preprocessing, which has a layout, makes no uint8.
        (
            {"x": np.zeros((2, 4, 5, 3), np.uint8)},
            [InputSpec("x", np.dtype(np.uint8), ("N", 3, 4, 5))],
            "the other layout: .*array, -1, -3",
        ),
        ({"x": normal(0, 3, 4, 5)}, [IMAGE], r"'x' is empty \(shape 0x3x4x5\)"),
        ({"ids": ids(2, 0)}, [TOKENS], "'ids' is empty"),
        ({"cached": normal(2, 0, 4), "ids": ids(2, 0)}, [CACHED, TOKENS], "'cached' is em"),
        ({"cached": normal(0, 5, 4), "ids": ids(2, 3)}, [CACHED, TOKENS], "'cached' is em"),
        *(
            ({"x": with_bad(value, (4, 3, 4, 5), *BAD)}, [IMAGE], "'x' has 3 values .*in sample 2;")
            for value in (np.nan, np.inf, -np.inf)
        ),
        # Without a common axis a feed is one sample.
        (
            {"x": with_bad(np.nan, (2, 3, 4, 5), (1,)), "scale": np.array(2, np.float32)},
            [IMAGE, floats("scale")],
            "in sample 0;",
        ),
        ({"x": np.array(np.nan, np.float32)}, [NUMBER], "1 value .*in sample 0"),
        ({"x": normal(2, 3, 4, 5), "ids": ids(3, 7)}, [IMAGE, TOKENS], "'x' 2, 'ids' 3;"),
    ],
)
def test_refuses_what_the_model_does_not_take(feed, inputs, named):
    with pytest.raises(CalibrationDataError, match=named):
        check_feed(feed, inputs)


def test_one_of_several_inputs_may_be_empty():
    preflight = Preflight([CACHED, TOKENS])
    preflight.observe({"cached": normal(2, 0, 4), "ids": np.ones((2, 3), np.int64)})
    assert preflight.samples == 2
    assert preflight.sizes["cached"] == SampleSizes((0, 4), (0, 4))
    preflight.observe({"cached": normal(2, 5, 4), "ids": np.ones((2, 1), np.int64)})
    assert preflight.sizes["cached"] == SampleSizes((0, 4), (5, 4))
    assert preflight.finish() == []


@pytest.mark.parametrize(
    ("names", "named"), [((), "60 values .*in sample 5;"), (("image{}.png".format,), r"60 .*in image5\.png;")]
)
def test_counts_the_first_bad_sample_over_all_feeds(names, named):
    preflight = Preflight([IMAGE], *names)
    preflight.observe({"x": normal(4, 3, 4, 5)})
    with pytest.raises(CalibrationDataError, match=named):
        preflight.observe({"x": with_bad(np.nan, (4, 3, 4, 5), (1,))})


def finish(*arrays: np.ndarray, spec: InputSpec = IMAGE) -> list[str]:
    preflight = Preflight([spec])
    for array in arrays:
        preflight.observe({spec.name: array})
    return preflight.finish()


def test_normal_data_has_no_findings():
    assert finish(normal(2, 3, 4, 5), normal(3, 3, 4, 5)) == []
    assert finish(ids(2, 7), spec=TOKENS) == []  # integers are not judged
    with pytest.raises(CalibrationDataError, match="no samples"):
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
    assert finding.startswith(
        "input 'x' reaches 70 in 2 of 40 samples (sample 7, sample 33), and at most 2.378 in 95%"
    )
    (named,) = whole.finish("image{}.png".format)
    assert named == finding.replace("sample 7, sample 33", "image7.png, image33.png")
    assert parts[0].merge(parts[1]).finish() == Preflight([IMAGE]).merge(whole).finish() == [finding]


def test_one_fraction_anywhere_means_no_pixels():
    x = np.zeros((2, 3, 4, 5), np.float32)
    x[0] = 200
    part = x.copy()
    part[1, 2, 3, 4] = 0.5
    assert finish(x, part) == finish(part, x) == []


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_counts_samples(sizes):
    preflight = Preflight([IMAGE])
    for size in sizes:
        preflight.observe({"x": normal(size, 3, 4, 5)})
    assert preflight.samples == sum(sizes)
    preflight = Preflight([IMAGE, floats("scale")])  # without a common axis, a feed is one sample
    preflight.observe({"x": normal(2, 3, 4, 5), "scale": np.array(2, np.float32)})
    assert preflight.samples == 1 and preflight.finish() == []


def test_sizes_are_kept_of_inputs_that_leave_them_open():
    first, second = (
        Preflight([floats("x", "N", 3, "height", 5), integers("tokens", "N", 7)]) for _ in range(2)
    )
    tokens = np.zeros((2, 7), np.int64)
    first.observe({"x": normal(2, 3, 4, 5), "tokens": tokens})
    first.observe({"x": normal(2, 3, 9, 5), "tokens": tokens})
    second.observe({"x": normal(2, 3, 2, 5), "tokens": tokens})
    assert first.sizes == {"x": SampleSizes((3, 4, 5), (3, 9, 5))}
    assert first.merge(second).sizes == second.merge(first).sizes == {"x": SampleSizes((3, 2, 5), (3, 9, 5))}
