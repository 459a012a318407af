"""Detections from a detector's raw outputs: rows of one output, grids as YOLO's, and class scores.

Scores may have a background class, or be logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from calibrators.data.feeds import Array, Floats, NamedArrays, is_float
from trtint8.validation.detection.boxes import Detections, suppress


@dataclass(frozen=True)
class RowOrder:
    """Which columns hold what.

    Attributes:
        box: Four columns.
        score: The column of the score.
        kind: The column of the class.
        image: The column of the image's number in the batch, which is negative for rows without a detection;
            None where rows do not say it.
    """

    box: slice
    score: int
    kind: int
    image: int | None = None

    def split(self, rows: Array, images: int, counts: Array | None = None) -> list[Array]:
        """The rows of each image.

        Args:
            rows: An output in this order.
            images: How many images the batch has, where rows say of which image they are.
            counts: How many rows each image has, where they stand one after another; else None.

        Returns:
            One array of shape (n, columns) per image.
        """
        flat = rows.reshape(-1, rows.shape[-1])
        if self.image is not None:
            numbers = np.rint(flat[:, self.image])
            return [flat[numbers == number] for number in range(images)]
        if counts is not None and rows.ndim == 2:
            return np.split(flat, np.cumsum(counts.ravel())[:-1])
        whole = rows if rows.ndim == 3 else flat[None]
        kept = [len(image) for image in whole] if counts is None else counts.ravel().tolist()
        return [image[:count] for image, count in zip(whole, kept, strict=True)]


#: As detectors of ultralytics have it that need no suppression: x1, y1, x2, y2, score, class.
BOX_FIRST = RowOrder(slice(0, 4), 4, 5)

#: As PaddleDetection has it: class, score, x1, y1, x2, y2.
CLASS_FIRST = RowOrder(slice(2, 6), 1, 0)

#: As Caffe's DetectionOutput has it: image, class, score, x1, y1, x2, y2.
IMAGE_CLASS_FIRST = RowOrder(slice(3, 7), 2, 1, 0)

#: As YOLOv7 has it: image, x1, y1, x2, y2, class, score.
IMAGE_BOX_FIRST = RowOrder(slice(1, 5), 6, 5, 0)

#: The number of columns to the orders, the first that fits the values.
_ORDERS = {6: (BOX_FIRST, CLASS_FIRST), 7: (IMAGE_CLASS_FIRST, IMAGE_BOX_FIRST)}

#: Suppression leaves no more rows of an image than this.
MOST_LEFT = 1000

#: The share of rows whose box has its second corner behind the first one, where boxes are corners.
_ORDERED = 0.95


def row_order(array: Array, masks: int = 0) -> RowOrder | None:
    """In which order the rows of an output hold detections, by their values.

    Args:
        array: An output of the float network.
        masks: How many coefficients of masks follow box, score and class. Where 0, keypoints may follow.

    Returns:
        The order; None where its classes would be no whole numbers, or its scores not between 0 and 1.
    """
    if not is_float(array.dtype) or not 2 <= array.ndim <= 4:
        return None
    width = array.shape[-1]
    if width in _ORDERS:
        rows = filled_rows(array, width)
        return next((order for order in _ORDERS[width] if _fits(rows, order)), None)
    further = width - 6
    may_follow = further == masks if masks else _may_be_keypoints(further)
    if array.ndim != 3 or array.shape[1] > MOST_LEFT or not may_follow:
        return None
    rows = filled_rows(array, 6)
    return BOX_FIRST if len(rows) and are_corners(rows) and _fits(rows, BOX_FIRST) else None


def are_corners(rows: Floats) -> bool:
    """Whether boxes are corners by their values: nearly all have the second one behind the first.

    Args:
        rows: Rows that begin with boxes, one or more.
    """
    return bool((rows[:, 2:4] >= rows[:, :2]).all(axis=1).mean() >= _ORDERED)


def _may_be_keypoints(columns: int) -> bool:
    """Whether so many columns can be keypoints, each of which has a place and may say how sure that is."""
    return columns > 0 and (columns % 2 == 0 or columns % 3 == 0)


def may_hold_rows(array: Array) -> bool:
    """Whether an output may hold detections by its type and shape.

    Args:
        array: An output of the float network.
    """
    return is_float(array.dtype) and (
        array.ndim in (2, 3) or (array.ndim == 4 and array.shape[-1] in _ORDERS)
    )


def holds_rows(array: Array) -> bool:
    """Whether the values of an output may show how it holds detections: not all of its rows fill up.

    Args:
        array: An output of the float network.
    """
    return may_hold_rows(array) and bool((array != array[..., :1]).any())


def filled_rows(array: Array, columns: int) -> Floats:
    """The first columns of all rows, except those that fill up, such as with -1.

    Args:
        array: Rows along the last axis.
        columns: How many columns.

    Returns:
        Shape (rows, columns).
    """
    rows = array.reshape(-1, array.shape[-1])[:, :columns].astype(np.float64)
    filled: Floats = rows[(rows != rows[:, :1]).any(axis=1)]
    return filled


def _fits(rows: Floats, order: RowOrder) -> bool:
    whole = rows[:, [order.kind] if order.image is None else [order.kind, order.image]]
    return bool((np.abs(whole - np.rint(whole)) <= _ROUNDING).all()) and _are_shares(rows[:, order.score])


#: A score up to which boxes are left out, and the overlap above which one is suppressed.
_LEAST_SCORE, _MOST_OVERLAP = 0.001, 0.7

#: Boxes in pixels have a side longer than this; shares of an image have none.
LONGEST_SHARE = 2.0

#: Where most boxes have a class whose score is above this, scores hold only if there is an object: most boxes
#: of a grid show none.
_CONDITIONAL = 0.05

#: About so many rows of an image tell what they hold.
_LOOKED_AT = 2000


@dataclass(frozen=True)
class Grid:
    """How an output of three axes holds the boxes of a grid.

    Attributes:
        scores: How many scores follow the centre and the size of a box, the one of there being an object
            included. Coefficients of masks and keypoints, which may come after them, are left aside.
        objectness: Whether the first of them is that of there being an object.
        boxes_last: Whether boxes lie along the last axis; else along the one before.
        in_pixels: Whether sizes are larger than those of shares, as hardly any other output has them.
    """

    scores: int
    objectness: bool = False
    boxes_last: bool = False
    in_pixels: bool = field(default=True, compare=False)

    @property
    def classes(self) -> int:
        """How many classes boxes may have."""
        return self.scores - self.objectness

    def detections(self, image: Array) -> Detections:
        """What non-maximum suppression leaves of an image's boxes, each with the class of its largest score.

        Args:
            image: The output for one image, of two axes.
        """
        values = (image.T if self.boxes_last else image).astype(np.float64)
        scores = values[:, 4 : 4 + self.scores]
        if self.objectness:
            scores = scores[:, 1:] * scores[:, :1]
        corners = corners_of_centres(values[:, :4])
        best, classes = scores.max(axis=1), scores.argmax(axis=1)
        above = np.flatnonzero(best > _LEAST_SCORE)
        kept = above[suppress(corners[above], best[above], classes[above], _MOST_OVERLAP)]
        return Detections(corners[kept], best[kept], classes[kept])


def grid_of_classes(shape: Sequence[int | str | None], classes: int) -> Grid | None:
    """How an output holds the boxes of a grid, by its shape and the number of classes alone.

    Args:
        shape: The dimensions of the output, of which some may be open.
        classes: How many classes there are.

    Returns:
        How it holds them; None where its shape is not that of such an output.
    """
    if len(shape) != 3:
        return None
    _, first, second = shape
    # No network has objectness with boxes along the last axis: one column more than scores is an angle.
    for columns, boxes, grid in (
        (first, second, Grid(classes, boxes_last=True)),
        (second, first, Grid(classes)),
        (second, first, Grid(classes + 1, objectness=True)),
    ):
        if columns == 4 + grid.scores and (not isinstance(boxes, int) or boxes > columns):
            return grid
    return None


def mask_count(outputs: NamedArrays) -> int:
    """How many masks a network mixes, if one of its outputs holds these: (N, masks, height, width).

    Args:
        outputs: The outputs, by name.

    Returns:
        Their number; 0 where none or several of the outputs have four axes.
    """
    maps = [array for array in outputs.values() if array.ndim == 4 and is_float(array.dtype)]
    return maps[0].shape[1] if len(maps) == 1 else 0


def grid_of(array: Array, masks: int = 0) -> Grid | None:
    """Whether an output holds the boxes of a grid, by its shape and its values.

    Args:
        array: An output of the float network.
        masks: How many coefficients of masks follow the scores; see :func:`mask_count`.

    Returns:
        How it holds them. None where it is of neither shape, (N, columns, n) or (N, n, columns), n being
        larger; where scores between 0 and 1 do not follow centre and size; where an angle follows the scores,
        for boxes that are turned; or where rows do not begin with centre, width and height in pixels.
    """
    if not is_float(array.dtype) or array.ndim != 3 or not len(array):
        return None
    fewer = min(array.shape[1:])
    if fewer <= 4 or array.shape[1] == array.shape[2]:
        return None
    boxes_last = array.shape[1] == fewer
    if not boxes_last and array.shape[1] <= MOST_LEFT and row_order(array, masks):
        return None
    rows = array.swapaxes(1, 2) if boxes_last else array
    rows = rows[:, :: max(1, rows.shape[1] // _LOOKED_AT)]
    centres, sizes = rows[..., :2], rows[..., 2:4]
    if not sizes.min() >= 0:
        return None
    count = _count_scores(rows[..., 4:], masks)
    scores = rows[..., 4 : 4 + count]
    if not count:
        return None
    in_pixels = bool(sizes.max() > LONGEST_SHARE)
    if boxes_last:
        return None if _ends_with_angle(scores) else Grid(count, boxes_last=True, in_pixels=in_pixels)
    # Of boxes by their corners, the second corner is rarely the smaller one.
    if not (in_pixels and (sizes < centres).any(axis=-1).mean() > 0.5):
        return None
    if count == 1:
        return Grid(count)
    always = (np.abs(scores[..., 0] - 1) <= _ROUNDING).all()
    conditional = np.median(scores[..., 1:].max(axis=-1)) > _CONDITIONAL
    return Grid(count, objectness=bool(always or conditional))


def _count_scores(columns: Array, masks: int) -> int:
    """How many of the columns behind boxes are scores; 0 where the others are neither masks nor keypoints."""
    least, most = columns.min(axis=(0, 1)), columns.max(axis=(0, 1))
    if 0 < masks < columns.shape[2]:
        count = columns.shape[2] - masks
        return count if _are_shares(least[:count]) and _are_shares(most[:count]) else 0
    are_scores = [_are_shares(np.array(pair)) for pair in zip(least, most, strict=True)]
    count = are_scores.index(False) if False in are_scores else len(are_scores)
    return count if _may_be_keypoints(columns.shape[2] - count) or count == len(are_scores) else 0


def _ends_with_angle(scores: Array) -> bool:
    """Whether the last of the columns that look like scores is large where no class is likely."""
    if scores.shape[2] < 2:
        return False
    others = np.median(scores[..., :-1].max(axis=-1))
    return bool(np.median(scores[..., -1]) > _CONDITIONAL > others)


def corners_of_centres(boxes: Array) -> Array:
    """The corners of boxes.

    Args:
        boxes: Centre x, centre y, width and height, shape (..., 4).

    Returns:
        x1, y1, x2, y2, of the same shape.
    """
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=-1)


#: How far scores of the float network may be from what they should be, such as beyond 0 and 1.
_ROUNDING = 1e-3

#: How far the sum of shares may be from 1. The reference may be a model in INT8 too, which rounds them.
_ROUNDED_SUM = 0.02


class Activation(Enum):
    """What turns an output into scores of classes, which are numbered from 0 without the background.

    The values are the end of a layout's name, and what the output holds, in words.
    """

    NONE = ("", "scores")
    WITHOUT_FIRST = ("-background", "scores of classes, of which the first is the background")
    SIGMOID = ("-sigmoid", "logits of classes, for a sigmoid")
    SOFTMAX_WITHOUT_FIRST = (
        "-softmax-background",
        "logits of classes, for a softmax, of which the first is the background",
    )
    SOFTMAX_WITHOUT_LAST = ("-softmax", "logits of classes, for a softmax, of which the last is no object")

    def apply(self, scores: Array) -> Array:
        """The scores of each class.

        Args:
            scores: The output, classes along the last axis, of which one may be left out.
        """
        if self is Activation.NONE:
            return scores
        if self is Activation.WITHOUT_FIRST:
            return scores[..., 1:]
        values = scores.astype(np.float64)
        if self is Activation.SIGMOID:
            return np.asarray(0.5 * (1 + np.tanh(values / 2)))
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        shares = np.asarray(powers / powers.sum(axis=-1, keepdims=True))
        return shares[..., :-1] if self is Activation.SOFTMAX_WITHOUT_LAST else shares[..., 1:]

    def class_count(self, columns: int) -> int:
        """How many classes an output has, the background left out.

        Args:
            columns: The length of the output's last axis.
        """
        has_background = self not in (Activation.NONE, Activation.SIGMOID)
        return columns - has_background


def _are_shares(scores: Array) -> bool:
    """Whether scores of the float network lie between 0 and 1.

    Args:
        scores: Floating-point numbers, of any shape.
    """
    return bool(not scores.size or (scores.min() >= -_ROUNDING and scores.max() <= 1 + _ROUNDING))


def activation_of(array: Array) -> Activation:
    """What is missing behind an output that holds one number for each box and class.

    Where scores between 0 and 1 add up to 1 for most boxes, the first class is the background, as in SSD.

    Numbers beyond 0 and 1 are logits. Most boxes of a detector show nothing. Where classes are independent,
    as in Deformable DETR and RT-DETR, all numbers of such a box are below zero. Else one class stands for
    none, and is the largest: the first as in SSD, or the last as in DETR.

    Args:
        array: An output of the float network, classes along the last axis.
    """
    if not is_float(array.dtype) or array.ndim not in (2, 3) or not array.size:
        return Activation.NONE
    if _are_shares(array):
        return Activation.WITHOUT_FIRST if _add_up(array) else Activation.NONE
    largest, kinds = array.max(axis=-1), array.argmax(axis=-1)
    if array.shape[-1] > 1 and np.median(largest) > 0:
        if (kinds == array.shape[-1] - 1).mean() > 0.5:
            return Activation.SOFTMAX_WITHOUT_LAST
        if (kinds == 0).mean() > 0.5:
            return Activation.SOFTMAX_WITHOUT_FIRST
    return Activation.SIGMOID


def _add_up(scores: Array) -> bool:
    """Whether there are two classes or more, and the scores of most boxes add up to 1."""
    sums = scores.sum(axis=-1, dtype=np.float64)
    return bool(scores.shape[-1] > 1 and np.median(np.abs(sums - 1)) < _ROUNDED_SUM)
