"""Boxes: how much two overlap, and non-maximum suppression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: The most boxes of an image that are kept, those of the highest scores: ultralytics' limit.
MOST_BOXES = 300


def box_overlaps(boxes: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """The intersection over union of every pair of boxes.

    Args:
        boxes: Corners x1, y1, x2, y2, shape (n, 4).
        others: Corners, shape (m, 4).

    Returns:
        float64 of shape (n, m), in [0, 1]; 0 where both boxes are empty.
    """
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(axis=2)
    own, other = (np.clip(side[:, 2:] - side[:, :2], 0, None).prod(axis=1) for side in (boxes, others))
    union = own[:, None] + other[None, :] - common
    return np.where(union > 0, common / np.where(union > 0, union, 1.0), 0.0)


def suppress(
    boxes: NDArray[np.float64], scores: NDArray[np.float64], classes: NDArray[np.intp], iou: float
) -> NDArray[np.intp]:
    """Non-maximum suppression within each class.

    Args:
        boxes: Corners x1, y1, x2, y2, shape (n, 4).
        scores: Confidences, shape (n,).
        classes: Class indices, shape (n,).
        iou: A box is left out whose intersection over union with a better one of its class is above this.

    Returns:
        Indices of the boxes that stay, the best first; at most :data:`MOST_BOXES`.
    """
    waiting = np.argsort(-scores, kind="stable")
    kept: list[np.intp] = []
    while len(waiting) and len(kept) < MOST_BOXES:
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        (overlaps,) = box_overlaps(boxes[[best]], boxes[waiting])
        waiting = waiting[(overlaps <= iou) | (classes[waiting] != classes[best])]
    return np.array(kept, np.intp)
