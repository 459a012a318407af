"""Where an image lies in what it becomes, by sizes alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Placing:
    """Where an image lies in what it becomes: it is resized first, then cropped or padded.

    Attributes:
        resized: (height, width) of the image after resizing.
        offset: (top, left) of the resized image in the result; negative where it is cropped.
        size: (height, width) of the result.
    """

    resized: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]

    def place_boxes(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where boxes of the image are in the result.

        Args:
            boxes: Corners x1, y1, x2, y2 as shares of the image's width and height, shape (n, 4).

        Returns:
            The corners in pixels of the result, cut off at its edges, shape (n, 4).
        """
        (height, width), (top, left) = self.resized, self.offset
        placed = boxes * (width, height, width, height) + (left, top, left, top)
        rows, columns = self.size
        return placed.clip(0, (columns, rows, columns, rows))


def letterbox(height: int, width: int, size: tuple[int, int]) -> Placing:
    """The largest image of the same aspect ratio within a size, in its middle.

    Sizes and offsets are rounded as in ultralytics' LetterBox.

    Args:
        height: Rows of the image.
        width: Columns of the image.
        size: (height, width) of the result.
    """
    rows, columns = size
    factor = min(rows / height, columns / width)
    resized = max(round(height * factor), 1), max(round(width * factor), 1)
    top, left = (round((whole - part) / 2 - 0.1) for whole, part in zip(size, resized, strict=True))
    return Placing(resized, (top, left), size)
