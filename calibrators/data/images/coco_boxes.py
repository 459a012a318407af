"""True boxes of images, in COCO's format: one JSON file of instances for a folder of images."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.images.true_boxes import placed_boxes, sizes_of
from calibrators.display.counts import counted
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
    instances = _read(path)
    entries = _entries(instances, {image.name for image in images}, path)
    if missing := [image.name for image in images if image.name not in entries]:
        number = counted(len(instances.images), "image")
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


#: The largest file, in bytes, and the most images and annotations: COCO's training set has 470 MB, and one
#: million of these.
_MOST_BYTES, _MOST_OBJECTS = 512 << 20, 2_000_000

#: The largest side of an image and the farthest coordinate of a box, in pixels: beyond, numbers overflow.
_FARTHEST = 1e9

#: What images and categories are known by.
_Id = int | float | str

_Side = Annotated[float, msgspec.Meta(ge=1, le=_FARTHEST)]
_Box = tuple[int | float, int | float, int | float, int | float]


@dataclass(frozen=True, slots=True)
class _Image:
    """An image as the file has it."""

    id: _Id
    file_name: str
    width: _Side
    height: _Side


@dataclass(frozen=True, slots=True)
class _Category:
    """A category as the file has it."""

    id: _Id


@dataclass(frozen=True, slots=True)
class _Annotation:
    """An annotation as the file has it; those of crowds may lack what they are not asked for."""

    image_id: _Id | None = None
    category_id: _Id | None = None
    bbox: _Box | None = None
    id: _Id | None = None
    iscrowd: bool | int | float | None = 0


@dataclass(frozen=True)
class _Instances:
    """The parts of the file that are used. Polygons take no memory."""

    images: tuple[_Image, ...]
    annotations: tuple[_Annotation, ...]
    categories: tuple[_Category, ...]


def _read(path: Path) -> _Instances:
    try:
        data = records.read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise CalibrationDataError(
            f"cannot read the labels file '{path}': {error.strerror or error}; check the path"
        ) from error
    except records.RecordError as error:
        raise CalibrationDataError(
            f"cannot read the labels file '{path}': {error}; check the path"
        ) from error
    if data.count(b"{") > _MOST_OBJECTS:
        raise CalibrationDataError(
            f"labels file '{path}' has more than {_MOST_OBJECTS:,} images and annotations; give a part of it"
        )
    try:
        return records.read_parts(data, _Instances)
    except records.RecordError as error:
        raise CalibrationDataError(
            f"labels file '{path}' does not hold COCO's instances, with images, annotations and categories: "
            f"{error}; correct it, or give a .npy or .npz file"
        ) from error


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
            f"the image '{image}' has {height} x {width} pixels, and labels file '{path}' is for {rows:g} "
            f"x {columns:g}; give the image that was labelled, or correct the file's height and width"
        )


def _entries(instances: _Instances, wanted: Set[str], path: Path) -> dict[str, list[_Entry]]:
    """File name without folders to the images that have it, for the names that are wanted."""
    categories = sorted(_ids("categories", instances.categories, path), key=_in_order)
    classes = {category: index for index, category in enumerate(categories)}
    found: dict[_Id, list[list[float]]] = {image: [] for image in _ids("images", instances.images, path)}
    for place, annotation in enumerate(instances.annotations, 1):
        if not annotation.iscrowd:
            known = f"number {place}" if annotation.id is None else annotation.id
            where = f"labels file '{path}': annotation {known}"
            image = _known(where, "image_id", annotation.image_id, found)
            category = _known(where, "category_id", annotation.category_id, classes)
            found[image].append([*_corners(where, annotation.bbox), classes[category]])
    entries: defaultdict[str, list[_Entry]] = defaultdict(list)
    for listed in instances.images:
        name = PurePosixPath(listed.file_name)
        if name.name in wanted:
            boxes = _as_shares(found[listed.id], listed.width, listed.height)
            entries[name.name].append(_Entry(name, (listed.height, listed.width), boxes))
    return entries


def _ids(kind: str, entries: Sequence[_Image | _Category], path: Path) -> list[_Id]:
    """The ids of images or categories, each of which has one of its own."""
    ids = [entry.id for entry in entries]
    if repeated := [one for one, count in Counter(ids).items() if count > 1]:
        raise CalibrationDataError(
            f"labels file '{path}' has several {kind} with the id {repeated[0]!r}; list each once"
        )
    return ids


def _in_order(category: _Id) -> tuple[bool, _Id]:
    """Numbers come in their order, and texts behind them in theirs."""
    return isinstance(category, str), category


def _known(where: str, key: str, value: _Id | None, known: Collection[_Id]) -> _Id:
    """The id of an image, or of a category, which has to be listed."""
    if value is None or value not in known:
        owner = key.removesuffix("_id")
        raise CalibrationDataError(
            f"{where} has the {key} {value!r}, which is the id of no {owner}; correct it, or list the {owner}"
        )
    return value


def _corners(where: str, bbox: _Box | None) -> list[float]:
    """The corners of an annotation's box, which may be without width or height, as some of COCO's are."""
    left, top, width, height = bbox or (math.nan,) * 4
    corners = [left, top, left + width, top + height]
    if not (all(abs(corner) <= _FARTHEST for corner in corners) and width >= 0 and height >= 0):
        raise CalibrationDataError(
            f"{where} has the bbox {bbox and [*bbox]!r}; give finite x, y, width and height in pixels, of "
            "which the last two are not negative"
        )
    return corners


def _as_shares(boxes: list[list[float]], width: float, height: float) -> NDArray[np.float64]:
    return np.array(boxes, np.float64).reshape(-1, 5) * (1 / width, 1 / height, 1 / width, 1 / height, 1)
