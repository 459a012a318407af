"""Boxes of all positions of a grid, before suppression."""

import numpy as np
import pytest

from trtint8.validation.batch import BatchForm
from trtint8.validation.detection.grids import Grid, GridRows, grid_of
from trtint8.validation.detection.layouts import layout_reader

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


def read(outputs):
    (image,) = layout_reader(BatchForm.of(outputs, None, 1))(outputs)
    kept = image.scores > 0.3
    return (
        image.boxes[kept].round(3).tolist(),
        image.scores[kept].round(3).tolist(),
        image.classes[kept].tolist(),
    )


@pytest.mark.parametrize("count", [200, 6300])
@pytest.mark.parametrize(("first", "rows"), [(None, GridRows.SCORES), (1e-4, GridRows.OBJECTNESS_AND_SCORES)])
@pytest.mark.parametrize("classes", [3, 80])
def test_the_rows_of_yolo_networks(count, first, rows, classes):
    output = grid(count, classes, first)
    assert grid_of(output).rows is rows
    assert read({"output0": output}) == (CORNERS, [0.9, 0.7], [2, 0])


def test_an_object_everywhere():
    """YOLOv6 has a score of 1 for there being an object, and classes that say whether there is one."""
    plain = grid(6300, 3)
    output = np.concatenate([plain[..., :4], np.ones_like(plain[..., :1]), plain[..., 4:]], axis=-1)
    assert grid_of(output).rows is GridRows.OBJECTNESS_AND_SCORES
    assert read({"outputs": output}) == (CORNERS, [0.9, 0.7], [2, 0])


@pytest.mark.parametrize("certain", [1.0, 0.97])
def test_one_class_with_objectness(certain):
    plain = grid(6300, 1)
    output = np.concatenate([plain, np.full_like(plain[..., :1], certain)], axis=-1)
    assert grid_of(output).rows is GridRows.OBJECTNESS_AND_SCORES
    found, scores, classes = read({"output": output})
    assert found == CORNERS and classes == [0, 0]
    assert scores == pytest.approx([0.9 * certain, 0.7 * certain], abs=1e-3)


def test_one_class_without_objectness():
    output = grid(2100, 1)
    assert grid_of(output).rows is GridRows.SCORES
    assert read({"output": output}) == (CORNERS, [0.9, 0.7], [0, 0])


def test_further_outputs_of_the_levels_are_left_aside():
    levels = {f"level{size}": np.zeros((1, 3, size, size, 8), np.float32) for size in (40, 20)}
    assert read({"output": grid(6300, 3, 1e-4), **levels}) == (CORNERS, [0.9, 0.7], [2, 0])


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
def test_coefficients_of_masks_are_no_scores(first):
    """As YOLOv8's and YOLOv5's networks for segmentation have it."""
    output = with_columns(grid(6300, 3, first), COEFFICIENTS)
    scores = 3 if first is None else 4
    assert grid_of(output, masks=32).scores == scores
    assert read({"output0": output, **MASKS}) == (CORNERS, [0.9, 0.7], [2, 0])
    if first is None:
        assert grid_of(columns_of(output), masks=32) == Grid(GridRows.SCORES, 3, boxes_last=True)
        assert read({"output0": columns_of(output), **MASKS}) == (CORNERS, [0.9, 0.7], [2, 0])


@pytest.mark.parametrize("first", [None, 1e-4])
def test_keypoints_are_no_scores(first):
    """As YOLOv8's and YOLOv7's networks for poses have it."""
    output = with_columns(grid(6300, 1, first), KEYPOINTS)
    assert grid_of(output).scores == (1 if first is None else 2)
    assert read({"output0": output}) == (CORNERS, [0.9, 0.7], [0, 0])
    if first is None:
        assert read({"output0": columns_of(output)}) == (CORNERS, [0.9, 0.7], [0, 0])


def test_a_grid_with_boxes_along_the_last_axis():
    output = columns_of(grid(6300, 3))
    assert grid_of(output) == Grid(GridRows.SCORES, 3, boxes_last=True)
    levels = {f"level{size}": np.zeros((1, 144, size, size), np.float32) for size in (40, 20)}
    assert read({"output0": output, **levels}) == (CORNERS, [0.9, 0.7], [2, 0])


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
        grid(6300, 3) + np.float32([0, 0, 0, 0, 2, 0, 0]),  # no scores
        grid(6300, 3) / np.float32([320, 320, 320, 320, 1, 1, 1]),  # shares of the image, as of tokens
        grid(6300, 3) * np.float32([1, 1, -1, 1, 1, 1, 1]),  # no sizes
        grid(6300, 3)[..., :4],
        grid(6300, 3)[0],
        with_angles(grid(6300, 3)),
        grid(6300, 3).astype(np.int64),
    ],
)
def test_what_is_no_grid_of_rows(output):
    assert grid_of(output) is None
