"""Boxes of all positions of a grid, before non-maximum suppression, as YOLO networks give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import is_float
from trtint8.validation.detection.box_scores import ROUNDING, are_shares
from trtint8.validation.detection.boxes import suppress
from trtint8.validation.detection.rows import MOST_LEFT, may_be_keypoints, row_order
from trtint8.validation.detection.tables import Detections

#: A score up to which boxes are left out, and the overlap above which one is suppressed.
_LEAST_SCORE, _MOST_OVERLAP = 0.001, 0.7

#: Boxes in pixels have a side longer than this; shares of an image have none.
_LONGEST_SHARE = 2.0

#: Where most boxes have a class whose score is above this, scores hold only if there is an object: most boxes
#: of a grid show none.
_CONDITIONAL = 0.05

#: About so many rows of an image tell what they hold.
_LOOKED_AT = 2000


class GridRows(Enum):
    """What follows centre and size in the rows of a grid."""

    SCORES = "scores"
    OBJECTNESS_AND_SCORES = "objectness and scores"


@dataclass(frozen=True)
class Grid:
    """How an output of three axes holds the boxes of a grid.

    Attributes:
        rows: What follows the centre and the size of a box.
        scores: How many scores that is, the one of there being an object included. Coefficients of masks and
            keypoints, which may come after them, are left aside.
        boxes_last: Whether boxes lie along the last axis; else along the one before.
    """

    rows: GridRows
    scores: int
    boxes_last: bool = False

    @property
    def classes(self) -> int:
        """How many classes boxes may have."""
        return self.scores - (self.rows is GridRows.OBJECTNESS_AND_SCORES)

    def detections(self, image: NDArray[Any]) -> Detections:
        """What non-maximum suppression leaves of an image's boxes, each with the class of its largest score.

        Args:
            image: The output for one image, of two axes.
        """
        values = (image.T if self.boxes_last else image).astype(np.float64)
        scores = values[:, 4 : 4 + self.scores]
        if self.rows is GridRows.OBJECTNESS_AND_SCORES:
            scores = scores[:, 1:] * scores[:, :1]
        corners = corners_of_centres(values[:, :4])
        best, classes = scores.max(axis=1), scores.argmax(axis=1)
        above = np.flatnonzero(best > _LEAST_SCORE)
        kept = above[suppress(corners[above], best[above], classes[above], _MOST_OVERLAP)]
        return Detections(corners[kept], best[kept], classes[kept])


def mask_count(outputs: Mapping[str, NDArray[Any]]) -> int:
    """How many masks a network mixes, if one of its outputs holds these: (N, masks, height, width).

    Args:
        outputs: The outputs, by name.

    Returns:
        Their number; 0 where none or several of the outputs have four axes.
    """
    maps = [array for array in outputs.values() if array.ndim == 4 and is_float(array.dtype)]
    return maps[0].shape[1] if len(maps) == 1 else 0


def grid_of(array: NDArray[Any], masks: int = 0) -> Grid | None:
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
    if boxes_last:
        return None if _ends_with_angle(scores) else Grid(GridRows.SCORES, count, boxes_last)
    # Of boxes by their corners, the second corner is rarely the smaller one.
    if not (sizes.max() > _LONGEST_SHARE and (sizes < centres).any(axis=-1).mean() > 0.5):
        return None
    if count == 1:
        return Grid(GridRows.SCORES, count)
    always = (np.abs(scores[..., 0] - 1) <= ROUNDING).all()
    conditional = np.median(scores[..., 1:].max(axis=-1)) > _CONDITIONAL
    return Grid(GridRows.OBJECTNESS_AND_SCORES if always or conditional else GridRows.SCORES, count)


def _count_scores(columns: NDArray[Any], masks: int) -> int:
    """How many of the columns behind boxes are scores; 0 where the others are neither masks nor keypoints."""
    least, most = columns.min(axis=(0, 1)), columns.max(axis=(0, 1))
    if 0 < masks < columns.shape[2]:
        count = columns.shape[2] - masks
        return count if are_shares(least[:count]) and are_shares(most[:count]) else 0
    are_scores = [are_shares(np.array(pair)) for pair in zip(least, most, strict=True)]
    count = are_scores.index(False) if False in are_scores else len(are_scores)
    return count if may_be_keypoints(columns.shape[2] - count) or count == len(are_scores) else 0


def _ends_with_angle(scores: NDArray[Any]) -> bool:
    """Whether the last of the columns that look like scores is large where no class is likely."""
    if scores.shape[2] < 2:
        return False
    others = np.median(scores[..., :-1].max(axis=-1))
    return bool(np.median(scores[..., -1]) > _CONDITIONAL > others)


def corners_of_centres(boxes: NDArray[Any]) -> NDArray[Any]:
    """The corners of boxes.

    Args:
        boxes: Centre x, centre y, width and height, shape (..., 4).

    Returns:
        x1, y1, x2, y2, of the same shape.
    """
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=-1)
