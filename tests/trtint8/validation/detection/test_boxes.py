"""Overlaps of boxes, and non-maximum suppression."""

import numpy as np
import pytest

from trtint8.validation.detection.boxes import MOST_BOXES, box_overlaps, suppress

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
