"""True boxes of images, in COCO's format: one JSON file of instances for a folder of images."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.images.true_boxes import placed_boxes, sizes_of
from calibrators.display.counts import counted
from calibrators.error_text import in_words
from calibrators.errors import CalibrationDataError


def read_coco_boxes(
    path: Path, images: Sequence[Path], preprocessing: Preprocessing | None, *, upright: bool = False
) -> NDArray[np.float32]:
    """The boxes of images, where these lie after the preprocessing.

    Args:
        path: The file. Images are found by their file names without folders, and by their folders where
            several have one name. Classes are the categories in the order of their ids, counted from 0;
            annotations of crowds are left out.
        images: The image files.
        preprocessing: What the images go through; None leaves them as they are.
        upright: Whether images are turned as their orientation tag says.

    Returns:
        See :func:`calibrators.data.images.true_boxes.placed_boxes`.

    Raises:
        CalibrationDataError: The file cannot be read, is not of COCO's format, lacks an image, has several
            that may be it, or has it in other proportions or turned by 90 degrees; has an id of an image or a
            category twice; or has an annotation of an image or a category that it does not list, or whose
            box is not finite or has a negative size.
    """
    try:
        entries = _entries(json.loads(path.read_bytes()), path)
    except OSError as error:
        raise CalibrationDataError(
            f"cannot read the labels file '{path}': {error.strerror or error}; check the path"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CalibrationDataError(
            f"labels file '{path}' does not hold COCO's instances, with images, annotations and categories: "
            f"{type(error).__name__} {in_words(error)}; correct it, or give a .npy or .npz file"
        ) from error
    if missing := [image.name for image in images if image.name not in entries]:
        number = counted(sum(map(len, entries.values())), "image")
        raise CalibrationDataError(
            f"labels file '{path}' has {number}, and '{missing[0]}' is not "
            "among them; give the file of this folder of images"
        )
    found = [_entry_of(image, entries[image.name], path) for image in images]
    boxes = [entry.boxes for entry in found]
    sizes = sizes_of(images, boxes, upright=upright)
    for image, size, entry in zip(images, sizes, found, strict=True):
        if size is not None:
            _check_not_turned(image, size, entry, path)
            _check_proportions(image, size, entry, path)
    return placed_boxes(boxes, sizes, preprocessing, len(images))


@dataclass(frozen=True)
class _Entry:
    """An image of the file.

    Attributes:
        name: Its file name, perhaps with folders.
        size: Its height and width.
        boxes: Corners as shares of the image, and the class; shape (n, 5).
    """

    name: PurePosixPath
    size: tuple[float, float]
    boxes: NDArray[np.float64]


def _entry_of(image: Path, entries: Sequence[_Entry], path: Path) -> _Entry:
    """The entry of an image: of several with its name, the one with most of its folders."""
    if len(entries) == 1:
        return entries[0]
    parts = image.absolute().parts
    fitting = [entry for entry in entries if parts[-len(entry.name.parts) :] == entry.name.parts]
    most = max((len(entry.name.parts) for entry in fitting), default=0)
    best = [entry for entry in fitting if len(entry.name.parts) == most]
    if len(best) != 1:
        raise CalibrationDataError(
            f"labels file '{path}' has {len(entries)} images of the name '{image.name}', such as "
            f"'{entries[0].name}', and not exactly one of them is '{image}'; write its folders into its "
            "file_name, and each image once"
        )
    return best[0]


def _check_not_turned(image: Path, size: tuple[int, int], entry: _Entry, path: Path) -> None:
    """Refuses an image that was labelled as its orientation tag shows it, and that is read as stored."""
    height, width = size
    if height != width and entry.size == (width, height):
        raise CalibrationDataError(
            f"the image '{image}' is read with {width} x {height} pixels, and labels file '{path}' is for "
            f"{height} x {width}: it is turned by 90 degrees; store it upright, without an orientation tag"
        )


def _check_proportions(image: Path, size: tuple[int, int], entry: _Entry, path: Path) -> None:
    """Refuses an image that is neither the labelled one nor that one made smaller or larger."""
    (height, width), (rows, columns) = size, entry.size
    # Resizing rounds each side to whole pixels.
    if abs(height * columns - width * rows) > max(rows, columns):
        raise CalibrationDataError(
            f"the image '{image}' has {height} x {width} pixels, and labels file '{path}' is for {rows} x "
            f"{columns}; give the image that was labelled, or correct the file's height and width"
        )


def _entries(document: Any, path: Path) -> dict[str, list[_Entry]]:
    """File name without folders to the images that have it."""
    categories = sorted(_ids(document, "categories", path))
    classes = {category: index for index, category in enumerate(categories)}
    found: dict[Any, list[list[float]]] = {image: [] for image in _ids(document, "images", path)}
    for place, entry in enumerate(document["annotations"], 1):
        if not entry.get("iscrowd"):
            where = f"labels file '{path}': annotation {entry.get('id', f'number {place}')}"
            _check_known(where, "image_id", entry, found)
            _check_known(where, "category_id", entry, classes)
            found[entry["image_id"]].append([*_corners(where, entry), classes[entry["category_id"]]])
    entries: defaultdict[str, list[_Entry]] = defaultdict(list)
    for image in document["images"]:
        name = PurePosixPath(image["file_name"])
        width, height = image["width"], image["height"]
        boxes = _as_shares(found[image["id"]], width, height)
        entries[name.name].append(_Entry(name, (height, width), boxes))
    return entries


def _ids(document: Any, kind: str, path: Path) -> list[Any]:
    """The ids of images or categories, each of which has one of its own."""
    ids = [entry["id"] for entry in document[kind]]
    if repeated := [one for one, count in Counter(ids).items() if count > 1]:
        raise CalibrationDataError(
            f"labels file '{path}' has several {kind} with the id {repeated[0]!r}; list each once"
        )
    return ids


def _check_known(where: str, key: str, entry: Any, known: Collection[Any]) -> None:
    """Refuses an annotation of an image, or of a category, that is not listed."""
    if entry[key] not in known:
        owner = key.removesuffix("_id")
        raise CalibrationDataError(
            f"{where} has the {key} {entry[key]!r}, which is the id of no {owner}; correct it, or list the "
            f"{owner}"
        )


def _corners(where: str, entry: Any) -> list[float]:
    """The corners of an annotation's box, which may be without width or height, as some of COCO's are."""
    left, top, width, height = map(float, entry["bbox"])
    corners = [left, top, left + width, top + height]
    if not (all(map(math.isfinite, corners)) and width >= 0 and height >= 0):
        raise CalibrationDataError(
            f"{where} has the bbox {entry['bbox']!r}; give finite x, y, width and height, of which the last "
            "two are not negative"
        )
    return corners


def _as_shares(boxes: list[list[float]], width: int, height: int) -> NDArray[np.float64]:
    return np.array(boxes, np.float64).reshape(-1, 5) * (1 / width, 1 / height, 1 / width, 1 / height, 1)
