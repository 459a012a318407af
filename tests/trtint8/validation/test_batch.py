"""What is known of a batch without its values."""

import numpy as np
import pytest

from trtint8.validation.batch import ArrayForm, BatchForm, by_sample, copied


@pytest.mark.parametrize(
    ("shape", "dtype", "is_scores"),
    [
        ((4, 10), "float32", True),
        ((4, 2), "float16", True),
        ((4, 1), "float32", False),
        ((300, 4), "float32", False),  # boxes without a batch axis
        ((4, 10), "int64", False),
        ((4,), "float32", False),
        ((), "float32", False),
        ((4, 3, 2), "float32", False),
    ],
)
def test_class_scores_are_one_row_for_each_sample(shape, dtype, is_scores):
    assert BatchForm.of({"y": np.zeros(shape, dtype)}, None, 4).is_class_scores("y") is is_scores


def test_class_indices_are_one_integer_for_each_sample():
    kinds = (None, np.zeros(2, np.int64), np.zeros(2), np.zeros((2, 3), np.int64))
    forms = [BatchForm.of({}, labels, 2) for labels in kinds]
    assert [form.has_class_indices for form in forms] == [False, True, False, False]
    assert str(ArrayForm.of(np.zeros((1, 22, 95), np.float32))) == "float32, 1x22x95"
    # Whatever the length of their rows.
    assert ArrayForm.of(unit_rows()) == ArrayForm.of(2 * unit_rows())


def test_rows_are_samples_where_axis_0_is():
    array = np.arange(12).reshape(2, 3, 2)
    assert np.array_equal(by_sample(array, 2), [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    assert by_sample(array, 3).shape == (1, 12)
    assert by_sample(np.float32(7), 1).tolist() == [[7]]


def unit_rows(dtype="float32"):
    rows = np.random.default_rng(0).standard_normal((4, 16))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)


@pytest.mark.parametrize(
    ("array", "is_embedding"),
    [
        (unit_rows(), True),
        (unit_rows("float16"), True),
        (unit_rows() * np.float32(1.01), False),
        (unit_rows() * np.array([[1], [1], [1], [2]], np.float32), False),
        (np.eye(4, dtype=np.float32), False),  # probabilities of certain classes have the length 1, too
        (unit_rows()[:, :, None], False),
        (unit_rows()[:1], False),  # one row of scores may have the length 1 by chance
        (np.ones((2, 1), np.int64), False),
        (np.ones((0, 3), np.float32), False),
    ],
)
def test_embeddings_are_rows_of_length_1(array, is_embedding):
    assert ArrayForm.of(array).is_embedding is is_embedding


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([[1, 2, 3, 4, 0.5, 1], [5, 5, 5, 6, 0.5, 1]], True),
        ([[1, 2, 3, 4, 0.5, 1], [5, 5, 4, 6, 0.5, 1]], False),
        ([[1, 2, 3, 4, 0.5, 1]] * 19 + [[5, 5, 4, 6, 0.5, 1]], True),
        ([[5, 5, 4, 6, 0.5, 1], *[[0] * 6] * 40, *[[-1] * 6] * 40], False),  # the others fill up
        ([[10, 20, 3, 4, 0.5, 1], [5, 5, 4, 6, 0.5, 1], [1, 1, 2, 2, 0.5, 1]], False),
        (np.empty((0, 6)), True),
        ([[1, 0, 0]], True),
    ],
)
def test_rows_that_begin_with_corners(rows, wanted):
    assert ArrayForm.of(np.array(rows, np.float32)).has_corners is wanted


def test_copies_are_written_into_without_harm():
    arrays = {"y": np.arange(3.0), "sum": np.array(3.0)}
    own = copied(arrays)
    for array in own.values():
        array += 1
    assert arrays["y"].tolist() == [0, 1, 2] and arrays["sum"] == 3 and own["sum"] == 4
