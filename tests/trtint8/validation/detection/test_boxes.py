"""Overlaps of boxes, and non-maximum suppression."""

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from tests.trtint8.validation.small_models import FAR, OTHER, SQUARE, boxes_times
from trtint8.validation.detection.boxes import (
    MOST_BOXES,
    Detections,
    Truth,
    box_overlaps,
    found_tables,
    given_tables,
    suppress,
)
from trtint8.validation.metrics import DetectionAgreement, MeanAveragePrecision

A, B = [0, 0, 10, 10], [20, 20, 30, 30]


def test_overlaps():
    found = box_overlaps(
        np.array([A, B], float), np.array([[0, 0, 10, 5], [5, 5, 15, 15], [3, 3, 3, 9]], float)
    )
    assert found == pytest.approx(np.array([[0.5, 25 / 175, 0], [0, 0, 0]]))
    assert box_overlaps(np.zeros((1, 4)), np.zeros((1, 4))).tolist() == [[0]]


def kept(boxes, scores, classes, iou):
    return suppress(np.array(boxes, float), np.array(scores), np.array(classes), iou).tolist()


def test_the_best_box_of_those_that_overlap_stays():
    boxes, scores = [A, [0, 0, 10, 9], B, [0, 0, 10, 5]], [0.5, 0.9, 0.7, 0.6]
    assert kept(boxes, scores, [0, 0, 0, 0], 0.7) == [1, 2, 3]
    assert kept(boxes, scores, [0, 0, 0, 0], 0.5) == [1, 2]
    assert kept(boxes, scores, [0, 1, 0, 1], 0.5) == [1, 2, 0]
    # What a suppressed box overlaps is not suppressed by it.
    chain = [[0, 0, 10, 10], [0, 4, 10, 14], [0, 8, 10, 18]]
    assert kept(chain, [0.9, 0.8, 0.7], [0, 0, 0], 0.4) == [0, 2]


def test_how_many_boxes_stay():
    boxes = np.arange(400)[:, None] * 20 + np.array([0, 0, 10, 10])
    assert kept(boxes, np.linspace(0, 1, 400), np.zeros(400, int), 0.5) == list(
        range(399, 399 - MOST_BOXES, -1)
    )
    assert kept(np.empty((0, 4)), [], [], 0.5) == []


ONE = ([SQUARE], [0.9], [1])
TWO_IMAGES = {"x": np.zeros((2, 3, 8, 8))}


def tables(decoded, feeds=TWO_IMAGES):
    return found_tables("detections", lambda outputs: decoded, {}, feeds)


def test_a_table_has_boxes_classes_and_scores():
    first, second = tables([Detections([SQUARE, OTHER], [0.9, 0.8], [1, 2]), ([], [], [])])
    assert first.tolist() == [[0, 0, 10, 10, 1, 0.9], [20, 20, 30, 30, 2, 0.8]]
    assert (second.shape, second.dtype) == ((0, 6), np.float64)
    assert [table.tolist() for table in given_tables([Truth([FAR], [7])])] == [[[50, 50, 60, 60, 7]]]


def test_entries_in_other_forms():
    arrays = tuple(np.array(part, np.float32) for part in ONE)
    expected = [[0, 0, 10, 10, 1, np.float64(np.float32(0.9))]] * 2
    for decoded in (iter([arrays, arrays]), (list(arrays), arrays), [(np.array(SQUARE), *arrays[1:])] * 2):
        assert [table[0].tolist() for table in tables(decoded)] == expected
    empty = [(np.zeros((0, 6)), np.zeros(0), np.zeros((0, 1)))] * 2
    assert [table.shape for table in tables(empty)] == [(0, 6)] * 2


@pytest.mark.parametrize(
    ("decoded", "value"),
    [
        (None, "None"),
        (3, "int"),
        ({"boxes": [], "scores": [], "classes": []}, "dict"),
        ([ONE, None], "image 1 .*None"),
        ([ONE[:2], ONE], "image 0 .*length 2"),
        ([ONE, dict(zip(Detections._fields, ONE, strict=True))], "image 1 .*dict"),
        ([ONE, ([0] * 79, [0.9], [1])], "image 1 .*shape 79"),
        ([ONE, ([[0, 0, 1]] * 4, [0.9] * 3, [1] * 3)], "image 1 .*shape 4x3"),
        ([ONE, ([SQUARE], [0.9, 0.8], [1])], "image 1 .*1, 1, 2"),
        ([ONE, ([SQUARE], [0.9], ["cat"])], "image 1 .*classes .*'cat'"),
        ([ONE, ([SQUARE], [np.nan], [1])], "image 1 .*scores .*NaN"),
        ([ONE, ([SQUARE], [0.9], [np.inf])], "image 1 .*classes .*infinite"),
    ],
)
def test_what_decode_may_not_return(decoded, value):
    with pytest.raises(CalibrationDataError, match=f"'detections': .*{value}"):
        tables(decoded)


@pytest.mark.parametrize(
    ("truth", "value"),
    [
        (None, "None"),
        ([([SQUARE], [0]), ONE], "image 1 .*length 3"),
        ([([SQUARE], [0, 1])], "image 0 .*1, 2"),
    ],
)
def test_what_is_no_truth(truth, value):
    with pytest.raises(CalibrationDataError, match=f"tru.*{value}"):
        given_tables(truth)


def test_a_decoder_that_fails_is_named():
    with pytest.raises(CalibrationDataError, match=r"'detections'.*'box'"):
        found_tables("detections", lambda outputs: [(outputs["box"], [], [])], {}, TWO_IMAGES)


def test_every_image_has_an_entry():
    message = "'detections'.*gives 1.*of 2"
    with pytest.raises(CalibrationDataError, match=message):
        tables([ONE])
    with pytest.raises(CalibrationDataError, match=r"gives 2.*of 3"):
        tables([ONE, ONE], {"image": np.zeros((3, 8, 8))})
    # An image without a batch axis, and inputs that share none.
    assert len(tables([ONE], {"image": np.zeros((3, 8, 8))})) == 1
    assert len(tables([ONE], {"images": np.zeros((2, 3, 8, 8)), "size": np.zeros(3)})) == 1


@pytest.mark.parametrize("labels", [None, np.array([[[*SQUARE, 0]], [[*OTHER, 0]], [[*FAR, 0]]])])
@pytest.mark.parametrize("metric", [DetectionAgreement, MeanAveragePrecision])
def test_a_decoder_that_leaves_out_images_without_detections_is_refused(metric, labels):
    boxes = np.array([SQUARE, OTHER, FAR], np.float32)
    arguments = []
    if metric is MeanAveragePrecision:
        pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")
        arguments = [[([box], [0]) for box in boxes]]

    def decode(outputs):
        return [(box[None], [1.0], [0]) for box in outputs["boxes"] if box[0] > 0]

    with pytest.raises(CalibrationDataError, match=r"gives 2.*of 3"):
        trtint8.validate(
            boxes_times(1.0),
            boxes,
            reference=boxes_times(1.0),
            labels=labels,
            metrics=[metric(decode, *arguments)],
        )
