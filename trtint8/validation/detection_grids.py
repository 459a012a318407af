"""Boxes of all positions of a grid, before non-maximum suppression, as YOLO networks give them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import is_float
from trtint8.validation.box_scores import ROUNDING, are_shares
from trtint8.validation.boxes import suppress
from trtint8.validation.detection import Detections
from trtint8.validation.detection_rows import row_order

#: A score up to which boxes are left out, and the overlap above which one is suppressed.
_LEAST_SCORE, _MOST_OVERLAP = 0.001, 0.7

#: Boxes in pixels have a side longer than this; shares of an image have none.
_LONGEST_SHARE = 2.0

#: Where most boxes have a class whose score is above this, scores hold only if there is an object: most boxes
#: of a grid show none.
_CONDITIONAL = 0.05

#: Suppression leaves no more boxes than this, and a grid has more.
_MOST_LEFT = 1000

#: About so many rows of an image tell what they hold.
_LOOKED_AT = 2000


class GridRows(Enum):
    """What follows centre and size in the rows of a grid."""

    SCORES = "scores"
    OBJECTNESS_AND_SCORES = "objectness and scores"


def grid_rows(array: NDArray[Any]) -> GridRows | None:
    """Whether an output holds a grid of boxes as rows, by its values.

    Args:
        array: An output of the float network.

    Returns:
        What follows the boxes; None where an output is not of shape (N, n, columns), n being larger, or its
        rows do not begin with centre, width and height in pixels that scores between 0 and 1 follow.
    """
    if (
        not is_float(array.dtype)
        or array.ndim != 3
        or not 4 < array.shape[2] < array.shape[1]
        or not len(array)
    ):
        return None
    if array.shape[1] <= _MOST_LEFT and row_order(array):
        return None
    array = array[:, :: max(1, array.shape[1] // _LOOKED_AT)]
    scores = array[..., 4:]
    if not are_shares(scores):
        return None
    boxes = array[..., :4].astype(np.float64)
    centres, sizes = boxes[..., :2], boxes[..., 2:]
    # Of boxes by their corners, the second corner is rarely the smaller one.
    if not (
        sizes.min() >= 0 and sizes.max() > _LONGEST_SHARE and (sizes < centres).any(axis=-1).mean() > 0.5
    ):
        return None
    if scores.shape[2] == 1:
        return GridRows.SCORES
    always = (np.abs(scores[..., 0] - 1) <= ROUNDING).all()
    conditional = np.median(scores[..., 1:].max(axis=-1)) > _CONDITIONAL
    return GridRows.OBJECTNESS_AND_SCORES if always or conditional else GridRows.SCORES


def corners_of_centres(boxes: NDArray[Any]) -> NDArray[Any]:
    """The corners of boxes.

    Args:
        boxes: Centre x, centre y, width and height, shape (..., 4).

    Returns:
        x1, y1, x2, y2, of the same shape.
    """
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=-1)


def detections_of_rows(image: NDArray[Any], rows: GridRows) -> Detections:
    """What non-maximum suppression leaves of an image's boxes, each with the class of its largest score.

    Args:
        image: Shape (n, columns).
        rows: What follows the boxes.
    """
    values = image.astype(np.float64)
    scores = values[:, 5:] * values[:, 4:5] if rows is GridRows.OBJECTNESS_AND_SCORES else values[:, 4:]
    corners = corners_of_centres(values[:, :4])
    best, classes = scores.max(axis=1), scores.argmax(axis=1)
    above = np.flatnonzero(best > _LEAST_SCORE)
    kept = above[suppress(corners[above], best[above], classes[above], _MOST_OVERLAP)]
    return Detections(corners[kept], best[kept], classes[kept])
