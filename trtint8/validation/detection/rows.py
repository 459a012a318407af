"""Detections as rows of one output: box, score and class, and perhaps the number of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import is_float
from trtint8.validation.detection.box_scores import ROUNDING, are_shares


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

    def split(
        self, rows: NDArray[Any], images: int, counts: NDArray[Any] | None = None
    ) -> list[NDArray[Any]]:
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


def row_order(array: NDArray[Any], masks: int = 0) -> RowOrder | None:
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
    may_follow = further == masks if masks else may_be_keypoints(further)
    if array.ndim != 3 or array.shape[1] > MOST_LEFT or not may_follow:
        return None
    rows = filled_rows(array, 6)
    return BOX_FIRST if len(rows) and are_corners(rows) and _fits(rows, BOX_FIRST) else None


def are_corners(rows: NDArray[np.float64]) -> bool:
    """Whether boxes are corners by their values: nearly all have the second one behind the first.

    Args:
        rows: Rows that begin with boxes, one or more.
    """
    return bool((rows[:, 2:4] >= rows[:, :2]).all(axis=1).mean() >= _ORDERED)


def may_be_keypoints(columns: int) -> bool:
    """Whether so many columns can be keypoints, each of which has a place and may say how sure that is."""
    return columns > 0 and (columns % 2 == 0 or columns % 3 == 0)


def may_hold_rows(array: NDArray[Any]) -> bool:
    """Whether an output may hold detections by its type and shape.

    Args:
        array: An output of the float network.
    """
    return is_float(array.dtype) and (
        array.ndim in (2, 3) or (array.ndim == 4 and array.shape[-1] in _ORDERS)
    )


def holds_rows(array: NDArray[Any]) -> bool:
    """Whether the values of an output may show how it holds detections: not all of its rows fill up.

    Args:
        array: An output of the float network.
    """
    return may_hold_rows(array) and bool((array != array[..., :1]).any())


def filled_rows(array: NDArray[Any], columns: int) -> NDArray[np.float64]:
    """The first columns of all rows, except those that fill up, such as with -1.

    Args:
        array: Rows along the last axis.
        columns: How many columns.

    Returns:
        Shape (rows, columns).
    """
    rows = array.reshape(-1, array.shape[-1])[:, :columns].astype(np.float64)
    filled: NDArray[np.float64] = rows[(rows != rows[:, :1]).any(axis=1)]
    return filled


def _fits(rows: NDArray[np.float64], order: RowOrder) -> bool:
    whole = rows[:, [order.kind] if order.image is None else [order.kind, order.image]]
    return bool((np.abs(whole - np.rint(whole)) <= ROUNDING).all()) and are_shares(rows[:, order.score])
