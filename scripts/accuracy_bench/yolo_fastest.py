"""The detections that Yolo-FastestV2's outputs stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtint8.validation.detection.boxes import Detections, box_overlaps

#: Name of each output to the pixels per cell, and the widths and heights of its three anchors in pixels.
_SCALES = {
    "p2": (16, ((12.64, 19.39), (37.88, 51.48), (55.71, 138.31))),
    "p3": (32, ((126.91, 78.23), (131.57, 214.55), (279.92, 258.87))),
}

#: Boxes of a lower score are dropped before overlapping boxes are removed.
_LEAST_SCORE = 0.01

#: Of two boxes of one class that overlap more than this, the one with the lower score is removed.
_LARGEST_OVERLAP = 0.4


def decode(outputs: Mapping[str, NDArray[Any]]) -> list[Detections]:
    """Finds the boxes of every image.

    Args:
        outputs: ``p2`` and ``p3``, float32 of shape (N, rows, columns, 95): for each of three anchors x, y,
            width and height; then three scores for an object; then the scores of 80 classes. All in [0, 1].

    Returns:
        One entry per image; boxes are in pixels.
    """
    images = zip(*(_boxes(outputs[name], *scale) for name, scale in _SCALES.items()), strict=True)
    return [_without_overlaps(np.concatenate(tables)) for tables in images]


def _boxes(
    cells: NDArray[Any], pixels: int, anchors: tuple[tuple[float, float], ...]
) -> Iterator[NDArray[np.float64]]:
    """One table per image: x1, y1, x2, y2, score and class; shape (boxes, 6)."""
    values = cells.astype(np.float64)
    images, rows, columns, _ = values.shape
    shape = values[..., :12].reshape(images, rows, columns, 3, 4)
    grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1)[:, :, None]
    centers = (2 * shape[..., :2] - 0.5 + grid) * pixels
    halves = (2 * shape[..., 2:]) ** 2 * np.array(anchors) / 2
    classes = values[..., 15:]
    scores = values[..., 12:15] * classes.max(axis=-1)[..., None]
    best = np.broadcast_to(classes.argmax(axis=-1)[..., None], scores.shape)
    tables = np.concatenate(
        [centers - halves, centers + halves, scores[..., None], best[..., None]], axis=-1
    ).reshape(images, -1, 6)
    for table in tables:
        yield table[table[:, 4] > _LEAST_SCORE]


def _without_overlaps(table: NDArray[np.float64]) -> Detections:
    table = table[np.argsort(-table[:, 4], kind="stable")]
    overlaps = box_overlaps(table[:, :4], table[:, :4])
    overlaps[table[:, None, 5] != table[None, :, 5]] = 0.0
    kept: list[int] = []
    for row in range(len(table)):
        if not (overlaps[row, kept] > _LARGEST_OVERLAP).any():
            kept.append(row)
    table = table[kept]
    return Detections(table[:, :4], table[:, 4], table[:, 5])
