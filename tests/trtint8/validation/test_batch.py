"""What is known of a batch without its values."""

import numpy as np
import pytest

from trtint8.validation.batch import ArrayForm, BatchForm, by_sample


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
    forms = [
        BatchForm.of({}, labels, 2).has_class_indices
        for labels in (None, np.zeros(2, np.int64), np.zeros(2), np.zeros((2, 3), np.int64))
    ]
    assert forms == [False, True, False, False]


def test_rows_are_samples_where_axis_0_is():
    array = np.arange(12).reshape(2, 3, 2)
    assert np.array_equal(by_sample(array, 2), [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    assert by_sample(array, 3).shape == (1, 12)
    assert by_sample(np.float32(7), 1).tolist() == [[7]]


def test_a_form_in_words():
    assert str(ArrayForm.of(np.zeros((1, 22, 95), np.float32))) == "float32, 1x22x95"
