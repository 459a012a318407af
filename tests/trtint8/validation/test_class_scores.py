"""Ranks of class scores; what the metrics say is tested with their names in test_metrics.py."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.class_scores import agreement, check_class_folders, top_k, within


def test_of_equal_scores_the_lower_index_ranks_first():
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 2.0, 2.0]])
    assert within(scores, np.array([0, 1, 2]), 1).tolist() == [True, False, False]
    assert within(scores, np.array([0, 1, 2]), 2).tolist() == [True, True, True]


def test_another_output_than_the_first():
    outputs = {"mask": np.zeros((2, 3, 4)), "aux": np.array([[1.0, 0.0], [0.0, 1.0]])}
    reference = {**outputs, "aux": np.array([[1.0, 0.0], [1.0, 0.0]])}
    batch = Batch({}, outputs, reference, np.array([0, 0]), 2)
    assert agreement("agreement:aux", "aux").measure(batch).value().count == 1
    assert top_k("top1:aux", "aux", 1).measure(batch).value().count == 1
    with pytest.raises(CalibrationDataError, match="metric 'agreement' needs one row of class scores"):
        agreement("agreement", "mask").measure(batch)


def test_labels_that_are_no_class_indices():
    batch = Batch({}, {"y": np.eye(3)}, {}, np.zeros((3, 1, 2, 2), np.float32), 3)
    with pytest.raises(CalibrationDataError, match="but the labels are float32 of shape 3x1x2x2; give class"):
        top_k("top1", "y", 1).measure(batch)


def test_there_is_a_folder_for_each_class():
    outputs = {"y": np.zeros((2, 3), np.float32), "aux": np.zeros((2, 4), np.float32)}
    outputs = {"keys": np.zeros((2, 9), np.float32), **outputs}
    form = BatchForm.of(outputs, np.array([0, 1]), 2, cached=("keys",))
    for folders, metrics in [
        (("cat", "cow", "dog"), ["top1", "top5"]),
        (("a", "b", "c", "d"), ["top1:aux"]),
        (("cat", "dog"), ["sqnr", "agreement", "topping"]),
        (None, ["top1"]),
    ]:
        check_class_folders(folders, form, metrics)
    for folders, metrics, words in [
        (("cat", "dog"), ["sqnr", "top1"], r"2 sub-folders.* from 'cat' to 'dog', .*output 'y' has 3"),
        (("a", "b", "c"), ["top2:aux"], "3 sub-folders.*output 'aux' has 4"),
    ]:
        with pytest.raises(CalibrationDataError, match=words):
            check_class_folders(folders, form, metrics)


def test_labels_are_checked_without_outputs():
    form = BatchForm.of({"y": np.zeros((2, 3), np.float32), "mask": np.zeros((2, 3, 4))}, None, 2)
    check = top_k("top1", "y", 1).check_labels
    check(Batch({}, {}, {}, np.array([2, 0, 1]), 3), form)  # a batch of another size
    for labels, words in [
        (np.array([0, 3]), r"^label 3 is not one of the model's 3 classes \(0 to 2\); check the labels$"),
        (np.array([0.5, 1.0]), "but the labels are float64 of shape 2; give class indices"),
        (None, "needs labels and the data has none"),
    ]:
        with pytest.raises(CalibrationDataError, match=words):
            check(Batch({}, {}, {}, labels, 2), form)
    top_k("top1", "mask", 1).check_labels(Batch({}, {}, {}, np.array([9]), 1), form)
