"""Feed dicts, without a look at their values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.data.feeds import (
    Binding,
    OneSample,
    batch_rows,
    check_dtype,
    check_names,
    copied_feed,
    is_float,
    is_image_batch,
    pieces,
)
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError
from tests.calibrators.data.sample_data import IMAGE, TOKENS, VECTOR, pixels, vectors
from tests.calibrators.specs import floats, integers

X = floats("x", "N", 3)
IDS = integers("ids", "N", 2)


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [([(4, 3)], 4), ([(4, 3), (4,)], 4), ([(4, 3), (5,)], None), ([(4, 3), ()], None), ([()], None)],
)
def test_samples_of_a_feed(shapes, rows):
    assert batch_rows({str(i): np.zeros(shape) for i, shape in enumerate(shapes)}) == rows


def test_a_feed_that_is_one_sample():
    feed = OneSample(x=np.zeros((4, 3)))
    copy = copied_feed(feed)
    assert batch_rows(feed) is batch_rows(copy) is None
    assert list(pieces(copy, 1)) == [copy] and not np.shares_memory(copy["x"], feed["x"])
    assert batch_rows(copied_feed({"x": np.zeros((4, 3))})) == 4


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["ids", "b", "a"], r"unknown 'a', 'b' and missing 'x'; .*\(float32, Nx3\), 'ids' \(int64, Nx2\), "),
        (["ids", "images"], r"'ids', 'images': rename 'images' to 'x', .*\*\*{'x': data\['images'\]}\)$"),
        (["ids"], "'ids': add what is missing$"),
        ([], "has none: add what is missing$"),
        (["ids", "x", "y"], "'ids', 'x', 'y': leave 'y' out$"),
    ],
)
def test_names_must_be_the_inputs(names, words):
    check_names(["ids", "x"], [X, IDS])
    with pytest.raises(CalibrationDataError, match=words):
        check_names(names, [X, IDS])


def test_nothing_is_cast():
    check_dtype(np.zeros((1, 3), np.float32), X)
    for array, words in (
        (np.zeros((1, 3)), r"float32 .*float64; .*astype"),
        (np.zeros((1, 4, 4, 3), np.uint8), "uint8 images; declare how they become float32"),
    ):
        with pytest.raises(CalibrationDataError, match=words):
            check_dtype(array, X)
    assert is_image_batch(np.zeros((1, 4, 4, 3), np.uint8))
    assert not is_image_batch(np.zeros((4, 4, 3), np.uint8))
    assert is_float(np.dtype(np.float16)) and not is_float(np.dtype(np.int8))


RAW = Preprocessing(scale=1)


def test_labels_are_not_fed():
    fed, labels = Binding([VECTOR]).split({"x": vectors(3), "labels": np.arange(3)})
    assert list(fed) == ["x"] and labels.tolist() == [0, 1, 2]
    assert Binding([VECTOR]).split({"x": vectors(3)})[1] is None


def test_only_one_input_needs_no_name():
    assert Binding([VECTOR]).only_input("an array") is VECTOR
    with pytest.raises(CalibrationDataError, match=r"^an array .*2"):
        Binding([VECTOR, TOKENS]).only_input("an array")
    with pytest.raises(CalibrationDataError, match="'x' is float32"):
        Binding([VECTOR], RAW).check({"x": vectors(3)})


def test_images_are_preprocessed_and_the_rest_stays():
    binding, images = Binding([IMAGE, TOKENS], RAW), pixels(2, 4, 4, 3)
    feed = {"x": images, "ids": np.asfortranarray(np.arange(4).reshape(2, 2))}
    binding.check(feed)
    prepared = binding.prepare(feed)
    np.testing.assert_array_equal(prepared["x"], images.transpose(0, 3, 1, 2))
    assert prepared["x"].dtype == np.float32 and prepared["ids"].flags.c_contiguous


@given(st.integers(1, 20), st.integers(1, 25), st.integers(1, 4))
def test_pieces_are_the_feed(samples, rows, at_once):
    at_once = min(at_once, rows)
    feed = {"a": np.arange(samples * 3).reshape(samples, 3), "b": np.arange(samples)}
    found = list(pieces(feed, rows, at_once))
    sizes = [len(piece["a"]) for piece in found]
    assert len(sizes) == min(samples, -(-samples // rows) * at_once)
    assert max(sizes) - min(sizes) <= 1 <= min(sizes)
    assert all(sum(sizes[start : start + at_once]) <= rows for start in range(len(sizes)))
    for name, array in feed.items():
        np.testing.assert_array_equal(np.concatenate([piece[name] for piece in found]), array)


def test_what_cannot_be_divided_stays_one_piece():
    x = np.zeros((4, 2))
    for feed, rows in (({"a": x}, None), ({"a": x, "b": np.zeros(3)}, 2), ({"a": np.zeros(())}, 1)):
        (found,) = pieces(feed, rows)
        assert found is feed


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (8, 8, 3)])
def test_images_of_another_name_need_preprocessing_and_no_renaming(shape):
    images = {"data": np.ones(shape, np.uint8)}
    with pytest.raises(CalibrationDataError, match=r"'x' takes float32 .*'data', is uint8 images; declare"):
        Binding([IMAGE]).split(images)
    assert list(Binding([IMAGE], Preprocessing()).split(images)[0]) == ["x"]
    for arrays, inputs in (
        (images, [InputSpec("x", np.dtype(np.uint8), IMAGE.shape)]),
        ({"data": np.ones(shape, np.float32)}, [IMAGE]),
        ({"data": np.ones((2, 3), np.uint8)}, [IMAGE]),
    ):
        with pytest.raises(CalibrationDataError, match="rename 'data' to 'x'"):
            Binding(inputs).split(arrays)
