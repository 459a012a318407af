"""True boxes of images, in the layout of ultralytics: one text file per image, in a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.data.images.files import image_size
from calibrators.data.images.placing import Placing
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError
from calibrators.files import is_folder
from calibrators.user_warnings import warn_user

#: The names of the two folders.
IMAGES, LABELS = "images", "labels"

#: The class of a row that holds no box: images have different numbers of them.
NO_BOX = -1.0

#: The largest file of one image's boxes, in bytes: room for 50,000 boxes, or a thousand polygons.
_MOST_BYTES = 4 << 20

#: The most bytes of the boxes of all images, which take as much for each as for the one with the most.
_MOST_BYTES_TOGETHER = 1 << 30

#: How far beyond its image a box may go by rounding, as a share of the image.
_ROUNDING = 0.01


def label_folder(images: Path) -> Path | None:
    """The folder with the boxes of a folder of images: ``labels`` in place of the last ``images`` of a path.

    Args:
        images: A folder of images, such as ``coco8/images/val``.

    Returns:
        The folder, such as ``coco8/labels/val``; None where there is none.
    """
    parts = list(images.absolute().parts)
    if IMAGES not in parts:
        return None
    last = len(parts) - 1 - parts[::-1].index(IMAGES)
    folder = Path(*parts[:last], LABELS, *parts[last + 1 :])
    return folder if is_folder(folder) else None


def read_true_boxes(
    images: Sequence[Path], folder: Path, preprocessing: Preprocessing | None, count: int
) -> NDArray[np.float32] | None:
    """The boxes of images, where these lie after the preprocessing.

    Args:
        images: The image files. They are labelled, and read by ultralytics, turned as their orientation tag
            says.
        folder: Has a file ``<name>.txt`` for each image with objects. Each of its lines has a class index and
            a box (centre x, centre y, width, height), or a class index and the corners of a polygon, whose
            box is taken; as shares of the image's width and height.
        preprocessing: What the images go through; None leaves them as they are.
        count: How many images there are in the data; only the first of them may be given.

    Returns:
        x1, y1, x2, y2 in pixels of the prepared image, and the class: float32, shape (count, most boxes, 5),
        filled up with rows of :data:`NO_BOX`. None where no image has a file, or the files have other lines
        alone.

    Raises:
        CalibrationDataError: The folder or a file cannot be read, or a file has other lines where others have
            boxes.

    Warns:
        UserWarning: The files have other lines alone, such as captions or key points.
    """
    names = [f"{image.stem}.txt" for image in images]
    present = _names(folder)
    if present.isdisjoint(names):
        return None
    boxes: list[NDArray[np.float64]] = []
    wrong: _NoBoxError | None = None
    for name in names:
        try:
            boxes.append(_read(folder / name) if name in present else np.empty((0, 5)))
        except _NoBoxError as error:
            boxes.append(np.empty((0, 5)))
            wrong = wrong or error
    if wrong and any(map(len, boxes)):
        raise CalibrationDataError(
            f"{wrong} is no box; write 'class x y width height', with the box's centre and size as shares of "
            "the image from 0 to 1"
        )
    if wrong:
        warn_user(
            f"{wrong} is no box ('class x y width height', with the box's centre and size as shares of the "
            f"image from 0 to 1), and no file in '{folder}' has any: they are left out, and the images have "
            "no labels of their own"
        )
        return None
    return placed_boxes(boxes, sizes_of(images, boxes, upright=True), preprocessing, count)


def sizes_of(
    images: Sequence[Path], boxes: Sequence[NDArray[np.float64]], *, upright: bool
) -> list[tuple[int, int] | None]:
    """The sizes of the images that have boxes.

    Args:
        images: The image files.
        boxes: The boxes of each image, shape (n, 5).
        upright: Whether images are turned as their orientation tag says.

    Returns:
        Height and width of each image; None of those without boxes, which are not opened.

    Raises:
        CalibrationDataError: The size of an image cannot be read.
    """
    return [
        image_size(image, upright=upright) if len(own) else None
        for image, own in zip(images, boxes, strict=True)
    ]


def placed_boxes(
    boxes: Sequence[NDArray[np.float64]],
    sizes: Sequence[tuple[int, int] | None],
    preprocessing: Preprocessing | None,
    count: int,
) -> NDArray[np.float32]:
    """Boxes where these lie after the preprocessing.

    Args:
        boxes: The boxes of each image: x1, y1, x2, y2 as shares of its width and height, and the class; shape
            (n, 5).
        sizes: From :func:`sizes_of`.
        preprocessing: What the images go through; None leaves them as they are.
        count: How many images there are in the data; only the first of them may be given.

    Returns:
        x1, y1, x2, y2 in pixels of the prepared image, and the class: float32, shape (count, most boxes, 5),
        filled up with rows of :data:`NO_BOX`. Boxes that are cropped away are left out.

    Raises:
        CalibrationDataError: An image is too small for the preprocessing, or one has so many boxes that those
            of all images would fill memory.
    """
    placed = [_placed(own, size, preprocessing) for own, size in zip(boxes, sizes, strict=True)]
    most = max(map(len, placed))
    if most * count * 5 * np.dtype(np.float32).itemsize > _MOST_BYTES_TOGETHER:
        raise CalibrationDataError(
            f"image number {[*map(len, placed)].index(most)} has {most:,} boxes, and as much room for each "
            f"of {count:,} images takes more than {_MOST_BYTES_TOGETHER:,} bytes; leave boxes or images out"
        )
    table = np.full((count, most, 5), NO_BOX, np.float32)
    for row, own in zip(table, placed, strict=False):
        row[: len(own)] = own
    return table


def _placed(
    boxes: NDArray[np.float64], size: tuple[int, int] | None, preprocessing: Preprocessing | None
) -> NDArray[np.float64]:
    if size is None:
        return boxes
    placing = Placing(size, (0, 0), size) if preprocessing is None else preprocessing.placing(*size)
    corners = placing.place_boxes(boxes[:, :4])
    seen = (corners[:, 2:] > corners[:, :2]).all(axis=1)
    return np.concatenate([corners, boxes[:, 4:]], axis=1)[seen]


def _names(folder: Path) -> set[str]:
    """The names of what a folder holds."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except OSError as error:
        raise CalibrationDataError(
            f"cannot read the folder '{folder}' with the boxes: {error.strerror or error}; make it readable"
        ) from error


def _read(path: Path) -> NDArray[np.float64]:
    """Corners as shares of the image, and the class of each box; shape (n, 5)."""
    try:
        lines = records.decode_text(records.read_bytes(path, _MOST_BYTES)).splitlines()
    except (OSError, UnicodeDecodeError, records.RecordError) as error:
        raise CalibrationDataError(f"cannot read the boxes '{path}': {error}; replace the file") from error
    boxes = [_box(line, f"'{path}', line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    return np.array(boxes, np.float64).reshape(-1, 5)


class _NoBoxError(Exception):
    """A line of a file is no box; the message names it."""


def _box(line: str, where: str) -> list[float]:
    try:
        kind, *values = map(float, line.split())
    except ValueError:
        kind, values = NO_BOX, []
    points = np.array(values)
    is_box = len(points) == 4
    is_polygon = len(points) >= 6 and len(points) % 2 == 0 and not _has_key_points(points)
    if not (is_box or is_polygon) or not _inside(points) or kind < 0 or not kind.is_integer():
        raise _NoBoxError(f"{where}: '{line.strip()[:60]}'")
    if is_box:
        centre, half = points[:2], points[2:] / 2
        return [*(centre - half), *(centre + half), kind]
    corners = points.reshape(-1, 2)
    return [*corners.min(axis=0), *corners.max(axis=0), kind]


def _inside(shares: NDArray[np.float64]) -> bool:
    """Whether shares of the image lie in it."""
    return bool(((shares >= -_ROUNDING) & (shares <= 1 + _ROUNDING)).all())


def _has_key_points(values: NDArray[np.float64]) -> bool:
    """Whether the values of a line are a box and key points, each with its place and whether it is visible.

    An even number of key points has as many values as a polygon, and its values for visibility, 0 and 1, may
    be coordinates. So the box has to lie in the image, and the points about the box: less than its size from
    its centre, or at 0 where they have no place.
    """
    if len(values) < 7 or (len(values) - 4) % 3:
        return False
    edges = np.concatenate([values[:2] - values[2:4] / 2, values[:2] + values[2:4] / 2])
    if not _inside(edges):
        return False
    points = values[4:].reshape(-1, 3)
    near = (np.abs(points[:, :2] - values[:2]) <= values[2:4]).all(axis=1)
    return bool(np.isin(points[:, 2], (0, 1)).all() and (near | ~points[:, :2].any(axis=1)).all())
