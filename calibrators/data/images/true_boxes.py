"""True boxes of images: one text file per image, as of ultralytics, or one JSON file, as of COCO.

And the dataset files of ultralytics, which name the images and their classes.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeGuard

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath, refuse_empty_path, warn_user
from calibrators.data.images.files import Placing, image_size
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import (
    Argument,
    CalibrationDataError,
    DamagedFileError,
    UnsupportedError,
    counted,
    in_one_line,
)
from calibrators.files import exists, is_file, is_folder
from calibrators.imports import install_command

#: The names of the two folders.
IMAGES, LABELS = "images", "labels"

#: The most classes that a number of them may say.
_MOST_CLASSES = 100_000

#: The class of a row that holds no box: images have different numbers of them.
NO_BOX = -1.0

#: The largest file of one image's boxes, in bytes: room for 50,000 boxes, or a thousand polygons.
_MOST_BYTES = 4 << 20

#: The most bytes of the boxes of all images, which take as much for each as for the one with the most.
_MOST_BYTES_TOGETHER = 1 << 30

#: How far beyond its image a box may go by rounding, as a share of the image.
_ROUNDING = 0.01


def class_names(names: object, source: str) -> tuple[str, ...]:
    """Reads the names of classes as ultralytics writes them: a list, or a dict from index to name.

    Args:
        names: What stands there.
        source: Where it stands, for messages.

    Returns:
        The name of every class, in the order of the indices.

    Raises:
        CalibrationDataError: They are of another form, an index is missing, or a name is no text of one line.
    """
    if isinstance(names, Mapping):
        indices = list(names)
        if set(indices) != set(range(len(indices))) or any(isinstance(index, bool) for index in indices):
            raise CalibrationDataError(
                f"{source} names the classes {str(indices)[:60]}; number them from 0 on, without gaps"
            )
        names = [names[index] for index in range(len(indices))]
    if not isinstance(names, Sequence) or isinstance(names, str | bytes) or not names:
        raise CalibrationDataError(
            f"{source} has {str(names)[:60]!r} for the names of the classes; give a list, or 'index: name' "
            "for each"
        )
    for number, name in enumerate(names):
        if not isinstance(name, str | int | float) or not str(name).strip() or not str(name).isprintable():
            raise CalibrationDataError(
                f"{source} calls class {number} {str(name)[:60]!r}; give a text of one line"
            )
    return tuple(str(name).strip() for name in names)


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
    images: Sequence[Path],
    folders: Sequence[Path | None],
    preprocessing: Preprocessing | None,
    count: int,
    names: Sequence[str] | None = None,
    *,
    skip_bad: bool = False,
) -> NDArray[np.float32] | None:
    """The boxes of images, where these lie after the preprocessing.

    Args:
        images: The image files. They are labelled, and read by ultralytics, turned as their orientation tag
            says.
        folders: For each image the folder with a file ``<name>.txt`` for each image with objects; None where
            there is none. Each line of a file has a class index and a box (centre x, centre y, width,
            height), or a class index and the corners of a polygon, whose box is taken; as shares of the
            image's width and height.
        preprocessing: What the images go through; None leaves them as they are.
        count: How many images there are in the data; only the first of them may be given.
        names: The names of the classes, where they are known.
        skip_bad: Whether images that cannot be read are left out later, so that theirs may be any boxes.

    Returns:
        x1, y1, x2, y2 in pixels of the prepared image, and the class: float32, shape (count, most boxes, 5),
        filled up with rows of :data:`NO_BOX`. None where no image has a file, or the files have other lines
        alone.

    Raises:
        CalibrationDataError: The folder or a file cannot be read, a file has other lines where others have
            boxes, or a box is of a class that has no name.

    Warns:
        UserWarning: The files have other lines alone, such as captions or key points.
    """
    present = {folder: _names(folder) for folder in dict.fromkeys(folders) if folder is not None}
    files = [
        folder / f"{image.stem}.txt" if folder and f"{image.stem}.txt" in present[folder] else None
        for image, folder in zip(images, folders, strict=True)
    ]
    if not any(files):
        return None
    boxes: list[NDArray[np.float64]] = []
    wrong: _NoBoxError | None = None
    for file in files:
        try:
            boxes.append(_read(file) if file else np.empty((0, 5)))
        except _NoBoxError as error:
            boxes.append(np.empty((0, 5)))
            wrong = wrong or error
        if file and names is not None and (largest := int(boxes[-1][:, 4].max(initial=-1))) >= len(names):
            raise CalibrationDataError(
                f"'{file}' has a box of class {largest}, and the dataset names {len(names)} classes, "
                "counted from 0; correct one of them"
            )
    if wrong and any(map(len, boxes)):
        raise CalibrationDataError(
            f"{wrong} is no box; write 'class x y width height', with the box's centre and size as shares of "
            "the image from 0 to 1"
        )
    if wrong:
        warn_user(
            f"{wrong} is no box ('class x y width height', with the box's centre and size as shares of the "
            f"image from 0 to 1), and no file in '{wrong.file.parent}' has any: they are left out, and the "
            "images have no labels of their own"
        )
        return None
    return placed_boxes(
        boxes, _sizes_of(images, boxes, upright=True, skip_bad=skip_bad), preprocessing, count
    )


def _sizes_of(
    images: Sequence[Path], boxes: Sequence[NDArray[np.float64]], *, upright: bool, skip_bad: bool = False
) -> list[tuple[int, int] | None]:
    """The sizes of the images that have boxes.

    Args:
        images: The image files.
        boxes: The boxes of each image, shape (n, 5).
        upright: Whether images are turned as their orientation tag says.
        skip_bad: Whether those that cannot be read count as without boxes.

    Returns:
        Height and width of each image; None of those without boxes, which are not opened.

    Raises:
        CalibrationDataError: The size of an image cannot be read.
    """
    sizes: list[tuple[int, int] | None] = []
    for image, own in zip(images, boxes, strict=True):
        try:
            sizes.append(image_size(image, upright=upright) if len(own) else None)
        except DamagedFileError:
            if not skip_bad:
                raise
            sizes.append(None)
    return sizes


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
        sizes: From :func:`_sizes_of`.
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


#: The largest file of a dataset or of a list of images, in bytes: a million images.
_MOST_BYTES_OF_LIST = 64 << 20

#: The largest YAML file of a dataset, in bytes: that of a thousand classes has 40 kB, and PyYAML takes up to
#: 1.7 s for this much.
_MOST_BYTES_OF_DATASET = 96 << 10

#: The largest text file with the names of classes, in bytes.
_MOST_BYTES_OF_NAMES = 1 << 20

#: How deep a dataset's lists and dicts may stand in each other; three are enough.
_DEEPEST_YAML = 20

#: What YAML reads as no value.
_NO_VALUE = (None, "", "~", "null")

#: The most files in the folders of a dataset; COCO has 330,000.
_MOST_FILES = 3_000_000

#: How the names of a dataset's files end.
DATASET_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Dataset:
    """A dataset file of ultralytics (docs.ultralytics.com/datasets/detect).

    Attributes:
        path: The YAML file.
        root: The folder that the paths in it begin at.
        splits: The name of each split to the folders of images, and lists of them, that it has.
        class_names: The names of the classes.
    """

    path: Path
    root: Path
    splits: Mapping[str, tuple[str, ...]]
    class_names: tuple[str, ...]

    def images(self, split: str, suffixes: Collection[str]) -> list[Path]:
        """The image files of a split: all in its folders and in those below, and what lists name.

        Args:
            split: ``train``, ``val`` or ``test``.
            suffixes: How the names of images end.

        Raises:
            CalibrationDataError: There is no such split, it has no images, or a path leads nowhere or out of
                the dataset's folder.
        """
        if split not in self.splits:
            raise CalibrationDataError(
                f"the dataset '{self.path}' has no '{split}', and images are read from it here; add it, or "
                "give a folder of images"
            )
        found: list[Path] = []
        for entry in self.splits[split]:
            place = self._place(entry, self.root)
            if is_folder(place):
                found += self._inside(place, suffixes)
            elif place.suffix == ".txt" and is_file(place):
                found += self._listed(place)
            else:
                raise CalibrationDataError(
                    f"the dataset '{self.path}' has '{entry[:80]}' for '{split}', and there is no such "
                    f"folder or list of images in '{self.root}'; correct 'path' or '{split}'"
                )
        if not found:
            raise CalibrationDataError(
                f"'{split}' of the dataset '{self.path}' has no images ({' '.join(sorted(suffixes))}); put "
                "some there, or give another folder"
            )
        return found

    def _inside(self, folder: Path, suffixes: Collection[str]) -> list[Path]:
        """The images in a folder and in those below, in the order of their paths."""
        found, seen = [], 0
        for parent, _, names in os.walk(folder):
            seen += len(names)
            if seen > _MOST_FILES:
                raise CalibrationDataError(
                    f"the dataset '{self.path}' names '{folder}', which has more than {_MOST_FILES:,} files; "
                    "name the folders of its images"
                )
            found += [Path(parent, name) for name in names if Path(name).suffix.lower() in suffixes]
        return sorted(file for file in found if is_file(file))

    def _listed(self, file: Path) -> list[Path]:
        """The images that a text file names, from its own folder or from the dataset's."""
        lines = [line.strip() for line in _text_of(file, _MOST_BYTES_OF_LIST).splitlines()]
        found = []
        for line in filter(None, lines):
            beside = self._place(line, file.parent)
            image = beside if is_file(beside) else self._place(line, self.root)
            if not is_file(image):
                raise CalibrationDataError(
                    f"'{file}' names the image '{line[:80]}', and there is none; correct it"
                )
            found.append(image)
        return found

    def _place(self, entry: str, start: Path) -> Path:
        """Where a path leads; some begin with a ``../`` that is not meant, which ultralytics knows."""
        place = start / entry
        if not exists(place) and entry.startswith("../"):
            place = start / entry[3:]
        inside = Path(os.path.normpath(place.absolute()))
        if not inside.is_relative_to(os.path.normpath(self.root.absolute())):
            raise CalibrationDataError(
                f"the dataset '{self.path}' names '{entry[:80]}', which is outside of its folder "
                f"'{self.root}'; set 'path' to a folder that all of it is in"
            )
        return place


def read_dataset(path: Path) -> Dataset:
    """Reads a dataset file of ultralytics: ``path``, ``train``, ``val``, ``test``, and ``names`` or ``nc``.

    Raises:
        CalibrationDataError: It cannot be read, is no YAML, has aliases or tags of programs, lacks what it
            needs, or has it in another form.
        UnsupportedError: PyYAML is not installed.
    """
    document = _yaml_of(path)
    if not isinstance(document, dict):
        raise CalibrationDataError(
            f"'{path}' is no dataset of ultralytics: it has {type(document).__name__} in place of "
            "'path', 'train', 'val' and 'names'"
        )
    root = document.get("path")
    root = "." if root in _NO_VALUE else root
    if not isinstance(root, str):
        raise CalibrationDataError(f"the dataset '{path}' has {root!r:.60} for 'path'; give a folder")
    splits = {}
    for split in ("train", "val", "test"):
        value = document.get(split)
        entries = value if isinstance(value, list) else [value]
        if value in _NO_VALUE:
            continue
        if (
            not all(isinstance(entry, str) and entry and "\0" not in entry for entry in entries)
            or not entries
        ):
            raise CalibrationDataError(
                f"the dataset '{path}' has {value!r:.60} for '{split}'; give a folder of images, a text file "
                "that lists images, or several of these"
            )
        splits[split] = tuple(entries)
    if not splits:
        raise CalibrationDataError(f"the dataset '{path}' has none of 'train', 'val' and 'test'; add one")
    # As ultralytics has it: from the working folder, or from that of the file.
    first = next((place for place in (path.parent / root, Path(root)) if is_folder(place)), None)
    if first is None and Path(root).is_absolute():
        raise CalibrationDataError(
            f"the dataset '{path}' has the folder '{root[:80]}' for 'path', which does not exist; correct it"
        )
    # A dataset is often kept in the folder that 'path' names, with its file in it.
    return Dataset(path, first or path.parent, splits, _names_in(document, path))


def _names_in(document: Mapping[Any, Any], path: Path) -> tuple[str, ...]:
    names, number = document.get("names"), document.get("nc")
    count = int(number) if _is_index(number) else None
    if names in _NO_VALUE:
        if count is None or not 0 < count <= _MOST_CLASSES:
            raise CalibrationDataError(
                f"the dataset '{path}' has neither 'names' of its classes nor their number, 'nc'; add 'names'"
            )
        return tuple(f"class_{index}" for index in range(count))
    if isinstance(names, dict):
        names = {int(key) if _is_index(key) else key: name for key, name in names.items()}
    found = class_names(names, f"the dataset '{path}'")
    if number not in _NO_VALUE and count != len(found):
        raise CalibrationDataError(
            f"the dataset '{path}' names {len(found)} classes, and its 'nc' is {number!r:.20}; "
            "correct one of them"
        )
    return found


def _is_index(text: object) -> TypeGuard[str]:
    """True if a text of YAML is that of an index or a number of classes."""
    return isinstance(text, str) and bool(re.fullmatch("[0-9]{1,9}", text))


def _yaml_of(path: Path) -> object:
    """Reads a YAML file, as texts, lists and dicts of texts: numbers stay as they are written."""
    try:
        import yaml
    except ImportError as error:
        raise UnsupportedError(
            f"'{path}' is a YAML file, and PyYAML is not installed: {install_command('images')}"
        ) from error

    class Loader(yaml.BaseLoader):  # type: ignore[misc]  # which has no types
        """Refuses what costs more than its length, before PyYAML looks further ahead."""

        def fetch_more_tokens(self) -> None:
            if self.flow_level + len(self.indents) > _DEEPEST_YAML:
                self.refuse(f"it is nested more than {_DEEPEST_YAML} deep")
            super().fetch_more_tokens()

        def fetch_alias(self) -> None:  # a few aliases of aliases make billions of values
            self.refuse("it has an alias ('*name'), which is not read; write out what it is")

        def refuse(self, problem: str) -> None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())

    text = _text_of(path, _MOST_BYTES_OF_DATASET)
    try:
        return yaml.load(text, Loader)  # which makes no objects
    except (yaml.YAMLError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        reason = getattr(error, "problem", None) or in_one_line(error)
        raise CalibrationDataError(
            f"cannot read the dataset '{path}': {where}{reason}; correct the YAML file"
        ) from error


def _text_of(path: Path, most: int) -> str:
    with records.reading(f"'{path}'", CalibrationDataError):
        data = records.read_bytes(path, most)
    try:
        return records.decode_text(data)
    except UnicodeDecodeError as error:
        raise CalibrationDataError(f"cannot read '{path}': {error}; save it as UTF-8") from error


def as_class_names(names: FilePath | Sequence[str]) -> tuple[str, ...]:
    """Reads the names of classes, in the order of their indices.

    Args:
        names: The names; or a text file with a line for each, a dataset file of ultralytics, or a ``.json``
            file of COCO's instances.

    Raises:
        CalibrationDataError: The file cannot be read, or a name is no text of one line.
        UnsupportedError: It is a YAML file, and PyYAML is not installed.
    """
    if not isinstance(names, PATH_TYPES):
        return class_names(names, f"{Argument('class_names')}")
    refuse_empty_path("the class names", names, CalibrationDataError)
    file = Path(names)
    if file.suffix.lower() in DATASET_SUFFIXES:
        document = _yaml_of(file)
        return _names_in(document if isinstance(document, dict) else {}, file)
    if file.suffix.lower() == ".json":
        instances = _read_instances(file, "give a text file with a name per line")
        return class_names([category.name for category in _categories(instances, file)], f"'{file}'")
    lines = [line.strip() for line in _text_of(file, _MOST_BYTES_OF_NAMES).splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return class_names(lines, f"'{file}'")


def _read(path: Path) -> NDArray[np.float64]:
    """Corners as shares of the image, and the class of each box; shape (n, 5)."""
    lines = enumerate(_text_of(path, _MOST_BYTES).splitlines(), 1)
    boxes = [_box(line, path, number) for number, line in lines if line.strip()]
    return np.array(boxes, np.float64).reshape(-1, 5)


class _NoBoxError(Exception):
    """A line of a file is no box; the message names it."""

    def __init__(self, file: Path, number: int, line: str) -> None:
        super().__init__(f"'{file}', line {number}: '{line.strip()[:60]}'")
        self.file = file


def _box(line: str, file: Path, number: int) -> list[float]:
    try:
        kind, *values = map(float, line.split())
    except ValueError:
        kind, values = NO_BOX, []
    points = np.array(values)
    is_box = len(points) == 4
    is_polygon = len(points) >= 6 and len(points) % 2 == 0 and not _has_key_points(points)
    is_class = 0 <= kind < _MOST_CLASSES and kind.is_integer()
    if not (is_class and (is_box or is_polygon) and _inside(points)):
        raise _NoBoxError(file, number, line)
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
    instances = _read_instances(path)
    entries = _entries(instances, {image.name for image in images}, path)
    if missing := [image.name for image in images if image.name not in entries]:
        number = counted(len(instances.images), "image")
        raise CalibrationDataError(
            f"labels file '{path}' has {number}, and '{missing[0]}' is not "
            "among them; give the file of this folder of images"
        )
    found = [_entry_of(image, entries[image.name], path) for image in images]
    boxes = [entry.boxes for entry in found]
    sizes = _sizes_of(images, boxes, upright=upright)
    for image, size, entry in zip(images, sizes, found, strict=True):
        if size is not None:
            _check_size(image, size, entry, path)
    return placed_boxes(boxes, sizes, preprocessing, len(images))


#: The largest file, in bytes, and the most images and annotations: COCO's training set has 470 MB, and one
#: million of these.
_MOST_COCO_BYTES, _MOST_OBJECTS = 512 << 20, 2_000_000

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
    name: Any = None  # which only the names of classes need


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


def _read_instances(path: Path, instead: str = "give a .npy or .npz file") -> _Instances:
    with records.reading(f"the labels file '{path}'", CalibrationDataError):
        data = records.read_bytes(path, _MOST_COCO_BYTES)
    if data.count(b"{") > _MOST_OBJECTS:
        raise CalibrationDataError(
            f"labels file '{path}' has more than {_MOST_OBJECTS:,} images and annotations; give a part of it"
        )
    wrong = f"labels file '{path}' does not hold COCO's instances, with images, annotations and categories"
    with records.decoding(wrong, CalibrationDataError, f"correct it, or {instead}"):
        return records.read_parts(data, _Instances)


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
            f"'{entries[0].name}', and does not tell which of them is '{image}'; list each image once, with "
            "its folders in its file_name"
        )
    return best[0]


def _check_size(image: Path, size: tuple[int, int], entry: _Entry, path: Path) -> None:
    """Refuses an image that is neither the labelled one nor that one made smaller or larger."""
    (height, width), (rows, columns) = size, entry.size
    if height != width and entry.size == (width, height):  # it is read as stored, without its tag
        raise CalibrationDataError(
            f"the image '{image}' is read with {width} x {height} pixels, and labels file '{path}' is for "
            f"{height} x {width}: it is turned by 90 degrees; store it upright, without an orientation tag"
        )
    # Resizing rounds each side to whole pixels.
    if abs(height * columns - width * rows) > max(rows, columns):
        raise CalibrationDataError(
            f"the image '{image}' has {height} x {width} pixels, and labels file '{path}' is for {rows:g} "
            f"x {columns:g}; give the image that was labelled, or correct the file's height and width"
        )


def _entries(instances: _Instances, wanted: Set[str], path: Path) -> dict[str, list[_Entry]]:
    """File name without folders to the images that have it, for the names that are wanted."""
    classes = {category.id: index for index, category in enumerate(_categories(instances, path))}
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
            boxes = np.array(found[listed.id], np.float64).reshape(-1, 5)
            height, width = listed.height, listed.width
            shares = boxes * (1 / width, 1 / height, 1 / width, 1 / height, 1)
            entries[name.name].append(_Entry(name, (height, width), shares))
    return entries


def _categories(instances: _Instances, path: Path) -> list[_Category]:
    """The categories in the order of their ids: numbers in their order, and texts behind them in theirs."""
    _ids("categories", instances.categories, path)
    return sorted(instances.categories, key=lambda category: (isinstance(category.id, str), category.id))


def _ids(kind: str, entries: Sequence[_Image | _Category], path: Path) -> list[_Id]:
    """The ids of images or categories, each of which has one of its own."""
    ids = [entry.id for entry in entries]
    if repeated := [one for one, count in Counter(ids).items() if count > 1]:
        raise CalibrationDataError(
            f"labels file '{path}' has several {kind} with the id {repeated[0]!r}; list each once"
        )
    return ids


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
