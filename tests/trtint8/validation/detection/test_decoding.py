"""Detections as rows of one output."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtint8.validation.batch import BatchForm
from trtint8.validation.detection.decoding import (
    BOX_FIRST,
    CLASS_FIRST,
    IMAGE_BOX_FIRST,
    IMAGE_CLASS_FIRST,
    Activation,
    Grid,
    activation_of,
    grid_of,
    row_order,
)
from trtint8.validation.detection.layouts import reading_of

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
    found = reading_of(BatchForm.of(outputs, None, images)).read(outputs)
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
def test_rows_of_each_image_or_one_after_another(order):
    """As PaddleDetection gives those of all images."""
    rows = np.concatenate([rows_of(order, image) for image in IMAGES])
    assert detections({"rows": rows, "number": np.array([2, 1], np.int32)}) == WANTED
    assert detections({"rows": rows[:2]}, images=1) == WANTED[:1]
    assert detections({"rows": rows[:0], "number": np.array([0, 0], np.int32)}) == [([], [], [])] * 2
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
    images = reading_of(BatchForm.of(outputs, None, 2)).read(outputs)
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


#: Two objects in an image of 320 x 320: centre, size and class. The first one is seen by two boxes.
OBJECTS = [(100, 120, 40, 60, 2), (102, 120, 40, 60, 2), (200, 90, 30, 20, 0)]
CORNERS = [[80, 90, 120, 150], [185, 80, 215, 100]]


def boxes(count):
    random = np.random.default_rng(5)
    return np.concatenate([random.uniform(8, 312, (count, 2)), random.uniform(4, 40, (count, 2))], axis=1)


def grid(count, classes, first=None):
    """Boxes and scores; with a first column, scores that hold only if there is an object."""
    random = np.random.default_rng(6)
    own = boxes(count)
    likely = (
        random.uniform(0.1, 0.9, (count, classes)) if first is not None else np.full((count, classes), 1e-5)
    )
    rows = [own, likely] if first is None else [own, np.full((count, 1), first), likely]
    array = np.concatenate(rows, axis=1)
    for row, (*box, kind) in enumerate(OBJECTS):
        array[row, :4] = box
        array[row, 4:] = 0
        if first is not None:
            array[row, 4] = 1.0
        array[row, (5 if first is not None else 4) + min(kind, classes - 1)] = 0.9 - row / 10
    return array[None].astype(np.float32)


PLAIN = grid(6300, 3)


def read(outputs):
    (image,) = reading_of(BatchForm.of(outputs, None, 1)).read(outputs)
    kept = image.scores > 0.3
    return (
        image.boxes[kept].round(3).tolist(),
        image.scores[kept].round(3).tolist(),
        image.classes[kept].tolist(),
    )


@pytest.mark.parametrize("count", [200, 6300])
@pytest.mark.parametrize("first", [None, 1e-4])
@pytest.mark.parametrize("classes", [3, 80])
def test_the_rows_of_yolo_networks(count, first, classes):
    output = grid(count, classes, first)
    assert grid_of(output).objectness is (first is not None)
    assert read({"output0": output}) == (CORNERS, [0.9, 0.7], [2, 0])


@pytest.mark.parametrize("certain", [1.0, 0.97, None])
def test_one_class_with_objectness(certain):
    plain = grid(6300 if certain else 2100, 1)
    output = np.concatenate([plain, np.full_like(plain[..., :1], certain)], axis=-1) if certain else plain
    assert grid_of(output).objectness is (certain is not None)
    found, scores, classes = read({"output": output})
    assert found == CORNERS and classes == [0, 0]
    assert scores == pytest.approx([0.9 * (certain or 1), 0.7 * (certain or 1)], abs=1e-3)


def test_further_outputs_of_the_levels_are_left_aside():
    levels = {f"level{size}": np.zeros((1, 3, size, size, 8), np.float32) for size in (40, 20)}
    assert read({"output": grid(6300, 3, 1e-4), **levels}) == (CORNERS, [0.9, 0.7], [2, 0])
    output = columns_of(PLAIN)
    assert grid_of(output) == Grid(3, boxes_last=True)
    levels = {f"level{size}": np.zeros((1, 144, size, size), np.float32) for size in (40, 20)}
    assert read({"output0": output, **levels}) == (CORNERS, [0.9, 0.7], [2, 0])
    # YOLOv6 has a score of 1 for there being an object, and classes that say whether there is one.
    output = np.concatenate([PLAIN[..., :4], np.ones_like(PLAIN[..., :1]), PLAIN[..., 4:]], axis=-1)
    assert grid_of(output).objectness
    assert read({"outputs": output}) == (CORNERS, [0.9, 0.7], [2, 0])


def columns_of(output):
    """The same with boxes along the last axis."""
    return np.ascontiguousarray(output.swapaxes(1, 2))


def with_columns(output, further):
    """Rows with further columns behind the scores."""
    return np.concatenate([output, np.broadcast_to(further, (*output.shape[:2], further.shape[-1]))], axis=2)


def with_angles(output):
    """The boxes of ultralytics' networks for turned objects: an angle follows the scores."""
    angles = np.random.default_rng(8).uniform(0.3, 0.9, (1, output.shape[1], 1)).astype(np.float32)
    return columns_of(with_columns(output, angles))


MASKS = {"output1": np.zeros((1, 32, 40, 40), np.float32)}
COEFFICIENTS = np.random.default_rng(7).uniform(0, 1, (1, 1, 32)).astype(np.float32)
#: Seventeen keypoints: x, y and how sure it is that it can be seen.
KEYPOINTS = np.tile(np.array([100, 120, 0.5], np.float32), 17)[None, None]


@pytest.mark.parametrize("first", [None, 1e-4])
@pytest.mark.parametrize(
    ("further", "classes", "found", "masks"), [(COEFFICIENTS, 3, [2, 0], MASKS), (KEYPOINTS, 1, [0, 0], {})]
)
def test_coefficients_of_masks_and_keypoints_are_no_scores(first, further, classes, found, masks):
    """As YOLOv8's and YOLOv5's networks for segmentation have it, and YOLOv8's and YOLOv7's for poses."""
    output = with_columns(grid(6300, classes, first), further)
    read_from = grid_of(output, masks=32 if masks else 0)
    assert read_from.scores == (classes if first is None else classes + 1)
    for one in (output, columns_of(output)) if first is None else (output,):
        assert read({"output0": one, **masks}) == (CORNERS, [0.9, 0.7], found)
    if first is None:
        expected = Grid(classes, boxes_last=True)
        assert grid_of(columns_of(output), masks=32 if masks else 0) == expected


def _corners():
    centres = grid(400, 3)
    half = centres[..., 2:4] / 2
    return np.concatenate([centres[..., :2] - half, centres[..., :2] + half, centres[..., 4:]], axis=-1)


def _picked():
    """Rows that are left, by centre and size: score and class."""
    array = grid(300, 2)
    array[..., 5] = np.arange(300) % 2
    return array


@pytest.mark.parametrize(
    "output",
    [
        _corners(),
        _picked(),
        PLAIN + np.float32([0, 0, 0, 0, 2, 0, 0]),  # no scores
        PLAIN / np.float32([320, 320, 320, 320, 1, 1, 1]),  # shares of the image, as of tokens
        PLAIN * np.float32([1, 1, -1, 1, 1, 1, 1]),  # no sizes
        PLAIN[..., :4],
        PLAIN[0],
        with_angles(PLAIN),
        PLAIN.astype(np.int64),
    ],
)
def test_what_is_no_grid_of_rows(output):
    assert grid_of(output) is None


def logits(shares):
    """Logits of boxes of which one in five shows something."""
    random = np.random.default_rng(3)
    table = random.normal(-6, 1, (1, 20, shares)).astype(np.float32)
    table[0, ::5, 1] = 2.0
    return table


def with_none(table, place):
    return np.insert(table, place, np.where(table.max(axis=-1) > 0, -3.0, 5.0), axis=-1).astype(np.float32)


def softmax(values):
    powers = np.exp(values.astype(np.float64))
    return powers / powers.sum(axis=-1, keepdims=True)


INDEPENDENT = logits(4)
FIRST, LAST = with_none(INDEPENDENT, 0), with_none(INDEPENDENT, 4)


@pytest.mark.parametrize(
    ("array", "activation"),
    [
        (INDEPENDENT, Activation.SIGMOID),
        (INDEPENDENT[..., :1], Activation.SIGMOID),
        (FIRST, Activation.SOFTMAX_WITHOUT_FIRST),
        (LAST, Activation.SOFTMAX_WITHOUT_LAST),
        (LAST[0], Activation.SOFTMAX_WITHOUT_LAST),
        (np.roll(LAST, 2, axis=-1), Activation.SIGMOID),
        (softmax(FIRST).astype(np.float32), Activation.WITHOUT_FIRST),
        (softmax(FIRST).astype(np.float32) / 2, Activation.NONE),
        (np.ones((1, 20, 1), np.float32), Activation.NONE),
        (LAST.astype(np.int64), Activation.NONE),
        (LAST[None], Activation.NONE),
        (LAST[:, :0], Activation.NONE),
    ],
)
def test_which_function_is_missing(array, activation):
    assert activation_of(array) is activation


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (INDEPENDENT, 1 / (1 + np.exp(-INDEPENDENT.astype(np.float64)))),
        (FIRST, softmax(FIRST)[..., 1:]),
        (LAST, softmax(LAST)[..., :-1]),
        (softmax(FIRST), softmax(FIRST)[..., 1:]),
        (np.float32([[[800.0, -800.0]]]), [[[1.0]]]),
    ],
)
def test_scores(array, wanted):
    activation = activation_of(array) if array.size > 2 else Activation.SOFTMAX_WITHOUT_LAST
    np.testing.assert_allclose(activation.apply(array), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("array", [INDEPENDENT, FIRST, LAST, softmax(FIRST).astype(np.float32)])
def test_the_boxes_of_a_detector_with_logits(array):
    random = np.random.default_rng(1)
    boxes = np.concatenate([random.uniform(0.3, 0.7, (1, 20, 2)), np.full((1, 20, 2), 0.1)], axis=2)
    outputs = {"logits": array, "pred_boxes": boxes.astype(np.float32)}
    (image,) = reading_of(BatchForm.of(outputs, None, 1)).read(outputs)
    found = image.scores > 0.3
    assert np.flatnonzero(found).tolist() == [0, 5, 10, 15]
    assert image.classes[found].tolist() == [1] * 4
    np.testing.assert_allclose(image.boxes[0, :2], boxes[0, 0, :2] - 0.05, rtol=1e-6)
