"""Detections as rows of one output."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtint8.validation.batch import BatchForm
from trtint8.validation.detection.layouts import layout_reader
from trtint8.validation.detection.rows import (
    BOX_FIRST,
    CLASS_FIRST,
    IMAGE_BOX_FIRST,
    IMAGE_CLASS_FIRST,
    row_order,
)

#: Of two images: boxes, scores and classes.
IMAGES = [
    (np.array([[10.5, 20.25, 60, 80], [0, 0, 31.5, 40]]), np.array([0.875, 0.5]), np.array([3, 0])),
    (np.array([[1.5, 2, 3, 9]]), np.array([0.25]), np.array([7])),
]


def rows_of(order, image, number=0):
    boxes, scores, kinds = image
    rows = np.zeros((len(boxes), 6 if order.image is None else 7), np.float32)
    rows[:, order.box], rows[:, order.score], rows[:, order.kind] = boxes, scores, kinds
    if order.image is not None:
        rows[:, order.image] = number
    return rows


ORDERS = [BOX_FIRST, CLASS_FIRST, IMAGE_BOX_FIRST, IMAGE_CLASS_FIRST]


def detections(outputs, images=2):
    found = layout_reader(BatchForm.of(outputs, None, images))(outputs)
    return [tuple(np.asarray(part).tolist() for part in image) for image in found]


WANTED = [tuple(part.tolist() for part in image) for image in IMAGES]


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_is_known_by_the_values(order):
    together = np.concatenate([rows_of(order, image, number) for number, image in enumerate(IMAGES)])
    assert row_order(together) is order
    filled = np.concatenate([together, np.full((3, together.shape[1]), -1, np.float32)])
    assert row_order(filled) is order


@pytest.mark.parametrize("order", [IMAGE_BOX_FIRST, IMAGE_CLASS_FIRST])
@pytest.mark.parametrize("lead", [(), (1, 1)])
def test_rows_that_say_of_which_image_they_are(order, lead):
    rows = np.concatenate([rows_of(order, image, number) for number, image in enumerate(IMAGES)])
    rows = np.concatenate([rows, np.full((2, 7), -1, np.float32)])
    assert detections({"rows": rows.reshape(*lead, *rows.shape)}) == WANTED


@pytest.mark.parametrize("order", [BOX_FIRST, CLASS_FIRST])
def test_rows_that_stand_one_after_another(order):
    """As PaddleDetection gives those of all images."""
    rows = np.concatenate([rows_of(order, image) for image in IMAGES])
    assert detections({"rows": rows, "number": np.array([2, 1], np.int32)}) == WANTED
    assert detections({"rows": rows[:2]}, images=1) == WANTED[:1]
    assert detections({"rows": rows[:0], "number": np.array([0, 0], np.int32)}) == [([], [], [])] * 2


@pytest.mark.parametrize("order", [BOX_FIRST, CLASS_FIRST])
def test_rows_of_each_image(order):
    rows = np.zeros((2, 2, 6), np.float32)
    for number, image in enumerate(IMAGES):
        rows[number, : len(image[0])] = rows_of(order, image)
    assert detections({"rows": rows, "number": np.array([[2], [1]])}) == WANTED
    assert [len(image[1]) for image in detections({"rows": rows})] == [2, 2]


@pytest.mark.parametrize(
    "array",
    [
        np.array([[0.5, 0.5, 1, 1.5, 0.5, 2.5]], np.float32),  # a class of 0.5 or of 2.5
        np.arange(12, dtype=np.float32).reshape(2, 6) + 0.5,
        np.zeros((2, 5), np.float32),
        np.zeros((2, 6), np.int64),
        np.zeros(6, np.float32),
    ],
)
def test_other_arrays_hold_no_detections(array):
    assert row_order(array) is None


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.sampled_from(ORDERS))
def test_what_is_put_in_comes_out(seed, count, order):
    random = np.random.default_rng(seed)
    corners = random.uniform(2, 300, (count, 2, 2)).cumsum(axis=1).reshape(count, 4).astype(np.float32)
    image = (corners, random.uniform(0, 1, count).astype(np.float32), random.integers(0, 80, count))
    rows = rows_of(order, image)
    wanted = tuple(np.asarray(part, np.float32).tolist() for part in image)
    assert detections({"rows": rows}, images=1) == [wanted]


def padded(width):
    """Three rows of both images, as BOX_FIRST has it, with columns behind them that are left aside."""
    rows = np.zeros((2, 3, width), np.float32)
    rows[..., 6:] = np.random.default_rng(3).uniform(-5, 90, (2, 3, width - 6))
    for number, image in enumerate(IMAGES):
        own = rows_of(BOX_FIRST, image)
        rows[number, : len(own), :6] = own
    return rows


def found_above_zero(outputs):
    images = layout_reader(BatchForm.of(outputs, None, 2))(outputs)
    return [tuple(part[image.scores > 0].tolist() for part in image) for image in images]


def test_masks_and_keypoints_behind_rows_are_left_aside():
    """As ultralytics' networks for segmentation and poses that need no suppression have it."""
    masks = {"protos": np.zeros((2, 32, 16, 16), np.float32)}
    assert found_above_zero({"rows": padded(6 + 32), **masks}) == WANTED
    assert found_above_zero({"rows": padded(6 + 17 * 3)}) == WANTED
    assert row_order(padded(6 + 17 * 3)) is BOX_FIRST


@pytest.mark.parametrize(
    ("rows", "masks"),
    [
        (padded(6 + 32), 16),
        (padded(6 + 5), 0),  # no number of keypoints
        (np.repeat(padded(6 + 6), 400, axis=1), 0),  # more than suppression leaves
        (padded(6 + 6)[..., [2, 3, 0, 1, *range(4, 12)]], 0),  # no corners
        (np.zeros((2, 3, 12), np.float32), 0),
    ],
)
def test_what_is_no_row_with_masks_or_keypoints(rows, masks):
    assert row_order(rows, masks) is None
