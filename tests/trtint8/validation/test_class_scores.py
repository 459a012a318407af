"""Ranks of class scores; what the metrics say is tested with their names in test_metrics.py."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.class_scores import (
    check_class_folders,
    class_axis,
    class_map,
    mean_iou,
    mean_overlap,
    overlap_sums,
    pixels,
    share,
    top_k,
    within,
)


def test_of_equal_scores_the_lower_index_ranks_first():
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 2.0, 2.0]])
    assert within(scores, np.array([0, 1, 2]), 1).tolist() == [True, False, False]
    assert within(scores, np.array([0, 1, 2]), 2).tolist() == [True, True, True]


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
    for labels, value in [
        (np.array([0, 3]), "label 3 "),
        (np.array([0.5, 1.0]), "float64 .*2"),
        (None, "none"),
    ]:
        with pytest.raises(CalibrationDataError, match=value):
            check(Batch({}, {}, {}, labels, 2), form)
    top_k("top1", "mask", 1).check_labels(Batch({}, {}, {}, np.array([9]), 1), form)


#: Classes of two images of 2 x 2 positions.
WANTED = np.array([[[0, 0], [1, 1]], [[2, 2], [2, 2]]])
FOUND = np.array([[[0, 1], [1, 1]], [[2, 2], [2, 0]]])


def scores(classes, count=3):
    """Class scores (N, classes, H, W) with the given classes."""
    return np.moveaxis(np.eye(count, dtype=np.float32)[classes], -1, 1)


#: Class 0: 1 of 3, class 1: 2 of 3, class 2: 3 of 4.
OVERLAP = pytest.approx((1 / 3 + 2 / 3 + 3 / 4) / 3)


def value(metric, found, wanted=None, labels=None, rows=2, name="m"):
    batch = Batch({}, {"y": found}, {"y": found if wanted is None else wanted}, labels, rows)
    measurand = metric(name, "y", BatchForm.of(batch.reference, labels, rows))
    meter = measurand.start()
    meter.merge(measurand.measure(batch))
    return meter.value(), measurand


@pytest.mark.parametrize(
    ("shape", "declared", "axis"),
    [
        ((1, 20, 256, 512), None, 1),
        ((1, 150, 32, 64), None, 1),
        ((1, 80, 22, 22), None, 1),
        ((1, 256, 512, 20), None, 3),
        ((1, 22, 22, 80), None, 3),
        ((2, 3, 3), None, 1),
        ((1, 128, 9), None, 2),
        ((1, 3, 8, 8, 2), None, 1),
        ((2, 5, 9), (None, None, 9), 2),  # a language model
        ((2, 1, 9), (None, None, 9), 2),
        ((2, 9, 5), (None, 9, None), 1),
        ((2, 3, 8, 9), (None, 3, None, None), 1),
        ((2, 8, 9, 12), (2, None, None, 12), 3),
        ((2, 8, 8, 3), (None, None, None, 3), 3),
        ((2, 5, 9), (None, 5, 9), 1),  # as without a declared shape, from here on
        ((2, 3, 8, 9), (None, None, 8, 9), 1),
        ((2, 5, 9), (None, None, None), 1),
        ((2, 5, 9), (None, None), 1),
    ],
)
def test_the_axis_of_classes_is_the_one_that_the_model_fixes(shape, declared, axis):
    assert class_axis(shape, declared) == axis
    scores = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert np.array_equal(class_map(scores, declared), scores.argmax(axis=axis))


def test_positions_of_a_sequence():
    found, wanted = (np.random.default_rng(seed).normal(size=(2, 5, 9)) for seed in (0, 1))
    found[:, :3] = wanted[:, :3]
    batch = Batch({}, {"y": found}, {"y": wanted}, None, 2)
    form = BatchForm.of(batch.reference, None, 2, declared={"y": (None, None, 9)})
    same = np.mean(found.argmax(axis=2) == wanted.argmax(axis=2))
    assert pixels("m", "y", form).measure(batch).value() == pytest.approx(same)
    assert 0.6 <= same < 1


def test_class_maps():
    assert np.array_equal(class_map(scores(WANTED)), WANTED)
    wide = np.tile(WANTED, (1, 2, 2))
    assert np.array_equal(class_map(np.moveaxis(scores(wide), 1, -1)), wide)
    assert np.array_equal(class_map(WANTED[:, None].astype(np.uint8)), WANTED)
    broken = scores(WANTED)
    broken[0, 1, 0, 0] = np.nan
    assert class_map(broken)[0].tolist() == [[-1, 0], [1, 1]]
    assert overlap_sums(np.array([0, 0, 1, 1]), np.array([0, 1, 1, -1]), 3).tolist() == [1, 2, 1, 3, 0, 0]
    assert mean_overlap(np.array([1.0, 2.0, 3.0, 4.0, 0.0, 0.0])) == pytest.approx((1 / 2 + 3 / 4) / 2)
    assert mean_overlap(np.zeros(4)) == 1.0
    assert share(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [0.75, 1.0]


@pytest.mark.parametrize("labels", [None, WANTED, WANTED[:, None].astype(np.uint8)])
def test_against_labels_and_the_reference(labels):
    wanted, whose, whole = (
        (scores(WANTED), "FP32's", "FP32") if labels is None else (None, "the label's", "the labels")
    )
    found, measurand = value(pixels, scores(FOUND), wanted, labels)
    assert (found, measurand.relative, measurand.unit) == (6 / 8, labels is None, "%")
    assert measurand.perfect == (1.0 if labels is None else None)
    assert measurand.title == f"positions of 'y' with {whose} class"
    found, measurand = value(mean_iou, scores(FOUND), wanted, labels)
    assert found == OVERLAP and measurand.title == f"mean IoU of 'y' with {whole}"


@pytest.mark.parametrize(("found", "classes"), [(scores(FOUND), "0 to 2"), (FOUND, "other than 255")])
def test_positions_without_a_class_do_not_count(found, classes):
    labels = WANTED.copy()
    labels[0, 0, 1] = 255  # of the two wrong ones
    assert value(pixels, found, labels=labels)[0] == 6 / 7
    assert value(mean_iou, found, labels=labels)[0] == pytest.approx((1 / 2 + 1 + 3 / 4) / 3)
    for metric in (pixels, mean_iou):
        with pytest.raises(CalibrationDataError, match=f"'m' .*{classes}"):
            value(metric, found, labels=np.full_like(WANTED, 255))
    # What labels mark as unknown is a class of a network.
    own, wanted = (np.where(classes == 1, 255, classes) for classes in (FOUND, WANTED))
    assert value(pixels, own, wanted)[0] == 6 / 8
    assert value(mean_iou, own, wanted)[0] == OVERLAP


@pytest.mark.parametrize(
    ("output", "labels", "named"),
    [
        (np.zeros((2, 3)), None, "'m' .*'y' is float64, 2x3"),
        (np.zeros((2, 1, 4, 4)), None, "'y' .*2x1x4x4"),
        (scores(WANTED), np.zeros((2, 5, 5), int), "2x5x5 .*2x2x2"),
        (scores(WANTED), WANTED[:, None].astype(np.float32), "float32"),
    ],
)
def test_what_has_no_classes_of_positions(output, labels, named):
    with pytest.raises(CalibrationDataError, match=named):
        value(pixels, output, labels=labels)


@pytest.mark.parametrize("metric", [pixels, mean_iou])
def test_a_batch_of_which_no_position_counts_adds_nothing(metric):
    measurand = metric("m", "y", BatchForm.of({"y": scores(FOUND)}, WANTED, 2))
    meter, other = measurand.start(), measurand.start()
    for labels in (np.full_like(WANTED, 255), WANTED):
        meter.merge(measurand.measure(Batch({}, {"y": scores(FOUND)}, {}, labels, 2)))
    other.merge(measurand.measure(Batch({}, {"y": scores(FOUND)}, {}, WANTED, 2)))
    assert meter.value() == other.value() < 1


def test_class_indices_as_outputs_and_batches_of_different_classes():
    measurand = mean_iou("m", "y", BatchForm.of({"y": WANTED}, None, 2))
    meter, other = measurand.start(), measurand.start()
    for half in (slice(0, 1), slice(1, 2)):
        meter.merge(measurand.measure(Batch({}, {"y": FOUND[half]}, {"y": WANTED[half]}, None, 1)))
    assert meter.value() == OVERLAP
    other.merge(measurand.measure(Batch({}, {"y": WANTED}, {"y": WANTED}, None, 2)))
    assert other.against(meter, "B").difference == pytest.approx(1 - (1 / 3 + 2 / 3 + 3 / 4) / 3)
