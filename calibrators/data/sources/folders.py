"""Folders as data: image files, with one sub-folder per class or without, and array files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.checks import FilePath, warn_user
from calibrators.data.batches import AtPath, IndexedSource
from calibrators.data.feeds import (
    LABELS,
    Array,
    Binding,
    FedAndLabels,
    FeedDict,
    Float32s,
    Indices,
    NameOf,
    batch_rows,
    is_float,
    join_samples,
)
from calibrators.data.images.files import IMAGE_SUFFIXES, UNREAD_SUFFIXES, read_image
from calibrators.data.images.preprocessing import RESIZING, Preprocessing
from calibrators.data.images.true_boxes import (
    IMAGES,
    label_folder,
    read_coco_boxes,
    read_dataset,
    read_true_boxes,
)
from calibrators.data.images.true_boxes import LABELS as BOXES
from calibrators.data.inputs import DataOptions, InputSpec, shape_text
from calibrators.data.samples import file_name
from calibrators.data.sources.arrays import ARRAY_SUFFIXES, as_labels, outlined_arrays, read_arrays
from calibrators.errors import (
    Argument,
    CalibrationDataError,
    DamagedFileError,
    advice,
    counted,
    in_words,
)
from calibrators.files import exists

#: The key of the labels beside what is fed, which no input has as its name.
_OWN_LABELS = "its labels"


@dataclass(frozen=True, eq=False)
class Files(IndexedSource):
    """Samples in files.

    Attributes:
        join: Sample indices, shape (n,), to the feed dict of these samples.
        paths: The file of each sample.
        of_images: Whether each of the files is an image.
        upright: Whether these are turned as their orientation tag says.
        bad_at: Whether a sample, by its number, cannot be read.
    """

    join: Callable[[Indices], FeedDict] = field(repr=False)
    paths: Sequence[Path] = field(repr=False)
    of_images: bool = False
    upright: bool = False
    bad_at: Callable[[int], bool] = field(default=lambda _: False, repr=False)

    @classmethod
    def of(
        cls, read_one: Callable[[int], FeedDict], paths: Sequence[Path], binding: Binding, **known: Any
    ) -> Files:
        """Makes a source of what reads one sample, with a batch axis of 1, by its number."""
        names = partial(file_name, paths)
        return cls(_reader(read_one, names, binding), paths, count=len(paths), name_of=names, **known)

    def read(self, batch: Indices) -> FedAndLabels:
        """What the model is fed, and the labels where they have different shapes."""
        feed = self.join(batch)
        return feed, feed.pop(_OWN_LABELS, None)

    def is_bad(self, sample: int) -> bool:
        """Whether a sample cannot be read."""
        return self.bad_at(sample)

    def boxes(self, labels: Any, order: Indices, preprocessing: Preprocessing | None) -> Float32s:
        """The boxes of the images in a file of COCO's instances."""
        if not self.of_images:
            super().boxes(labels, order, preprocessing)
        files = [self.paths[index] for index in order.tolist()]
        return read_coco_boxes(Path(labels), files, preprocessing, upright=self.upright)


class Folder:
    """A folder of files."""

    @staticmethod
    def open(data: FilePath, binding: Binding, options: DataOptions) -> AtPath:
        """Opens a folder for a model: see :func:`_from_folder`."""
        opens = partial(
            _from_folder,
            binding=binding,
            first=_first_taken(options),
            skip_bad=options.skip_bad,
            labelled=options.labels is None,
        )
        return AtPath.of(data, opens)


class DatasetFile:
    """A dataset file of ultralytics, which names folders of images and their classes."""

    @staticmethod
    def open(data: FilePath, binding: Binding, options: DataOptions) -> AtPath:
        """Opens the images of one split for a model, with their true boxes where there are any."""
        first, bad = _first_taken(options), options.skip_bad
        opens = partial(_from_dataset, split=options.split, binding=binding, first=first, skip_bad=bad)
        return AtPath.of(data, opens)


def _first_taken(options: DataOptions) -> int | None:
    """How many samples from the first on may be taken; None for all."""
    return None if options.shuffle or options.skip_bad else options.limit


def _from_dataset(path: Path, split: str, binding: Binding, first: int | None, skip_bad: bool) -> Files:
    dataset = read_dataset(path)
    images = dataset.images(split, IMAGE_SUFFIXES)
    return _with_true_boxes(images, binding, first, skip_bad, dataset.class_names)


def _with_true_boxes(
    images: Sequence[Path],
    binding: Binding,
    first: int | None,
    skip_bad: bool,
    names: Sequence[str] | None = None,
) -> Files:
    """A source over images, with the true boxes that lie in folders beside theirs."""
    boxes_of, taken = lru_cache(maxsize=None)(label_folder), images[:first]
    folders = [boxes_of(image.parent) for image in taken]
    labels = read_true_boxes(taken, folders, binding.preprocessing, len(images), names, skip_bad=skip_bad)
    return _from_image_files(images, binding, labels, upright=True)


def _from_folder(
    folder: Path,
    binding: Binding,
    first: int | None = None,
    skip_bad: bool = False,
    labelled: bool = True,
) -> Files:
    """A source over the files of a folder, in the order of their names. Hidden and other files are ignored.

    Warnings name images of formats that are not read, links that lead nowhere, classes without images, and
    sub-folders of classes, which are not read.

    Args:
        folder: Has either array files, or images, or sub-folders with images: one per class; or one
            ``images`` and one ``labels`` with the true boxes (see :func:`read_true_boxes`). A folder of
            images may be such a folder ``images`` itself, or in it: its images are then turned as their
            orientation tag says. Others are taken as stored.
        binding: Says what feeds the model.
        first: How many samples from the first on are taken, whose boxes are read; None for all.
        skip_bad: Whether there may be files that cannot be read, which are not taken then.
        labelled: Whether labels in array files are taken.

    Raises:
        CalibrationDataError: There are no such files, or several of these kinds; or boxes cannot be read.
    """
    entries = _visible(folder)
    classes = [folder / entry.name for entry in entries if _is(entry.is_dir)]
    if {folder / IMAGES, folder / BOXES} <= set(classes):
        return _from_detection_folder(folder / IMAGES, binding, first, skip_bad)
    arrays = _files(folder, entries, ARRAY_SUFFIXES)
    images = _files(folder, entries, IMAGE_SUFFIXES)
    in_classes = [_visible(path) for path in classes]
    by_class = [
        _files(path, inside, IMAGE_SUFFIXES) for path, inside in zip(classes, in_classes, strict=True)
    ]
    if sum(map(bool, (arrays, images, any(by_class)))) > 1:
        raise CalibrationDataError(
            f"the folder '{folder}' mixes arrays, images and sub-folders of images; keep one kind in a folder"
        )
    _warn_of_left_out(folder, chain(entries, *(in_classes if any(by_class) else ())))
    if arrays:
        return _from_array_files(arrays, binding, skip_bad, labelled)
    if images:
        return _from_flat_folder(folder, images, binding, first, skip_bad)
    if any(by_class):
        _warn_of_classes(
            folder,
            [path for path, paths in zip(classes, by_class, strict=True) if not paths],
            [entry for entry in chain(*in_classes) if _is(entry.is_dir)],
        )
        labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in by_class])
        paths = [path for paths in by_class for path in paths]
        return _from_image_files(paths, binding, labels, tuple(path.name for path in classes))
    if nested := [entry for entry in chain(*in_classes) if _is(entry.is_dir)]:
        raise CalibrationDataError(
            f"the folder '{folder}' has only folders of folders, such as '{nested[0].path}'; give the folder "
            f"of one split, such as '{Path(nested[0].path).parent}'"
        )
    raise CalibrationDataError(
        f"the folder '{folder}' has no samples; put images ({_endings(IMAGE_SUFFIXES)}) or arrays "
        f"({_endings(ARRAY_SUFFIXES)}) into it, or images into one sub-folder per class"
    )


def _from_detection_folder(folder: Path, binding: Binding, first: int | None, skip_bad: bool) -> Files:
    """A source over a folder ``images`` that has a folder ``labels`` beside it."""
    entries = _visible(folder)
    images = _files(folder, entries, IMAGE_SUFFIXES)
    if not images:
        raise CalibrationDataError(
            f"the folder '{folder}' has no images ({_endings(IMAGE_SUFFIXES)}); give the folder with those "
            f"of one split, such as '{folder / 'val'}'"
        )
    _warn_of_left_out(folder, entries)
    return _from_flat_folder(folder, images, binding, first, skip_bad)


def _from_flat_folder(
    folder: Path, images: Sequence[Path], binding: Binding, first: int | None, skip_bad: bool
) -> Files:
    """A source over the images in a folder, with the true boxes where there are any beside it."""
    if label_folder(folder) is None:
        return _from_image_files(images, binding, None)
    return _with_true_boxes(images, binding, first, skip_bad)


def array_files(folder: Path) -> list[Path]:
    """The array files in a folder, in the order of their names."""
    return _files(folder, _visible(folder), ARRAY_SUFFIXES)


def _from_image_files(
    paths: Sequence[Path],
    binding: Binding,
    labels: Array | None,
    class_names: tuple[str, ...] | None = None,
    *,
    upright: bool = False,
) -> Files:
    spec = binding.only_input("a folder of images")
    grey = _channels(spec, binding) == 1
    # What every image will be, judged before the first is decoded.
    binding.check({spec.name: np.empty((1, 1, 1, 3), np.uint8)})

    def decoded(index: int) -> NDArray[np.uint8]:
        path = paths[index]
        check_size = partial(_check_size, path, spec, binding)
        return read_image(path, grey=grey, upright=upright, check_size=check_size)

    def read_one(index: int) -> FeedDict:
        return binding.prepare({spec.name: decoded(index)[None]})

    def bad_at(index: int) -> bool:
        try:
            decoded(index)
        except DamagedFileError:
            return True
        return False

    return Files.of(
        read_one,
        paths,
        binding,
        labels=labels,
        class_names=class_names,
        of_images=True,
        upright=upright,
        bad_at=bad_at,
    )


def _check_size(path: Path, spec: InputSpec, binding: Binding, height: int, width: int) -> None:
    """Refuses an image of a size that the input does not take, before it is decoded and takes memory."""
    channels = _channels(spec, binding)
    if spec.shape is None or len(spec.shape) != 4 or (isinstance(channels, int) and channels not in (1, 3)):
        return  # the rank or the layout is not the input's: the check of the whole batch says so
    layout, prepared = "NHWC", (height, width)
    if binding.preprocessing is not None:
        layout, prepared = binding.preprocessing.layout, binding.preprocessing.prepared_size(height, width)
    for axis, size in zip("HW", prepared, strict=True):
        wanted = spec.shape[layout.index(axis)]
        if isinstance(wanted, int) and size != wanted:
            ways = f"bring it to that size by preprocessing: {RESIZING}"
            if not is_float(spec.dtype):  # which preprocessing does not make
                ways = "give files of the size that it takes"
            raise CalibrationDataError(
                f"the image '{path}' comes out as {prepared[0]}x{prepared[1]} (height x width), which "
                f"input {spec} does not take; {ways}"
            )


def _from_array_files(paths: Sequence[Path], binding: Binding, skip_bad: bool, labelled: bool) -> Files:
    rows: list[int | None] = []  # None of a file that cannot be read
    labels: list[Array] = []
    for path in paths:
        try:
            feed, some = _read_block(path, binding, outlined_arrays)
        except DamagedFileError:
            if not skip_bad:
                raise
            rows.append(None)
            continue
        rows.append(batch_rows(feed) or 0)
        if some is not None:
            labels.append(some)
    sound = [number for number in rows if number is not None]
    if labels and len(labels) != len(sound):
        raise CalibrationDataError(
            f"only {len(labels)} of the {len(sound)} files in '{paths[0].parent}' have '{LABELS}'; "
            "give labels in all of them or in none"
        )
    if sound and not sum(sound):
        raise CalibrationDataError(f"the files in '{paths[0].parent}' have no samples: all arrays are empty")
    # Labels that are given apart have some for the samples of bad files, too.
    of_bad = sound[0] if len(set(sound)) == 1 else 1
    counts = [of_bad if number is None else number for number in rows]
    file_of = np.repeat(np.arange(len(paths)), counts)
    row_of = np.concatenate([np.arange(number) for number in counts])
    # Samples are read in the order of their files, and only one file has to be in memory.
    block = lru_cache(maxsize=1)(lambda file: _read_block(paths[file], binding))
    # As maps of classes have for images of many sizes.
    with_samples = labelled and len({some.shape[1:] for some in labels}) > 1

    def read_one(index: int) -> FeedDict:
        row, (arrays, own) = row_of[index], block(int(file_of[index]))
        # Copied, because a part of an array keeps all of it in memory.
        sample = binding.prepare({name: array[row : row + 1].copy() for name, array in arrays.items()})
        if with_samples and own is not None:
            sample[_OWN_LABELS] = own[row : row + 1].copy()
        return sample

    path_of = [paths[file] for file in file_of.tolist()]
    own_labels = None
    if labels and labelled and not with_samples:
        of_sound = iter(labels)
        unknown = np.zeros((of_bad, *labels[0].shape[1:]), labels[0].dtype)
        own_labels = np.concatenate([unknown if number is None else next(of_sound) for number in rows])
    return Files.of(
        read_one, path_of, binding, labels=own_labels, bad_at=lambda index: rows[file_of[index]] is None
    )


def _read_block(
    path: Path,
    binding: Binding,
    read: Callable[[Path, Binding], FeedDict] = read_arrays,
) -> FedAndLabels:
    """One file as arrays with a batch axis, checked, and its labels."""
    try:
        feed, labels = binding.split(read(path, binding))
        stored, feed = feed, _with_batch_axis(feed, binding.inputs)
        binding.check(feed)
        if (rows := batch_rows(feed)) is None:
            raise CalibrationDataError("its arrays do not share a number of samples; store one sample a file")
        if labels is not None:
            labels = np.atleast_1d(labels)
            if labels.shape != (1,) and any(feed[name] is not array for name, array in stored.items()):
                labels = labels[None]  # the label of the file's only sample, stored without a batch axis too
            return feed, as_labels(labels, rows, f"'{LABELS}'")
    except DamagedFileError as error:
        skip = f"give {Argument('skip_bad', 'True')} to leave out what cannot be read"
        again = "save it again with numpy.save or numpy.savez, or remove it"
        raise DamagedFileError(
            f"cannot read '{path}': {in_words(error.__cause__ or error)}; {advice(skip, again)}"
        ) from error
    except CalibrationDataError as error:
        raise CalibrationDataError(f"file '{path.name}': {error.template}") from error
    return feed, None


def _with_batch_axis(feed: FeedDict, inputs: Sequence[InputSpec]) -> FeedDict:
    """Adds the axis where a file holds one sample: its rank is one less than its input's."""
    missing = set()
    for spec in inputs:
        array = feed[spec.name]
        if spec.shape is None:
            raise CalibrationDataError(
                f"the rank of input '{spec.name}' is unknown, so a sample cannot be told from a batch; "
                "put all samples into one .npz"
            )
        if array.ndim not in (len(spec.shape) - 1, len(spec.shape)):
            raise CalibrationDataError(
                f"the array of shape {shape_text(array.shape)} is neither a sample nor a batch for input "
                f"{spec}; give it the rank {len(spec.shape) - 1} or {len(spec.shape)}"
            )
        missing.add(array.ndim < len(spec.shape))
    if len(missing) > 1:
        raise CalibrationDataError(
            "some of its arrays have a batch axis and some do not; give all of them one"
        )
    return {name: array[None] for name, array in feed.items()} if missing.pop() else feed


def _reader(
    read_one: Callable[[int], FeedDict], name_of: NameOf, binding: Binding
) -> Callable[[Indices], FeedDict]:
    """Joins samples, each with a batch axis of 1, along that axis; ``name_of`` gives their files."""

    def read(indices: Indices) -> FeedDict:
        # In the order of the data, so that a file with several of them is read once.
        found = {index: read_one(index) for index in sorted(indices.tolist())}
        samples = [found[index] for index in indices.tolist()]
        return join_samples(samples, lambda place: name_of(int(indices[place])), binding)

    return read


def _channels(spec: InputSpec, binding: Binding) -> int | str | None:
    """The input's channel dimension: an int where it is fixed. Raw images are always fed NHWC."""
    layout = binding.preprocessing.layout if binding.preprocessing else "NHWC"
    return spec.shape[layout.index("C")] if spec.shape is not None and len(spec.shape) == 4 else None


def _files(folder: Path, entries: Iterable[os.DirEntry[str]], suffixes: frozenset[str]) -> list[Path]:
    endings = tuple(suffixes)
    return [
        folder / entry.name
        for entry in entries
        if entry.name.lower().endswith(endings) and _is(entry.is_file)
    ]


def _is(kind: Callable[[], bool]) -> bool:
    """Whether an entry of a folder is of a kind; one that cannot be looked at, such as a loop, is of none."""
    try:
        return kind()
    except OSError:
        return False


def _warn_of_left_out(folder: Path, entries: Iterable[os.DirEntry[str]]) -> None:
    """Warns once of images that are not read and of links that lead nowhere; other files mean nothing."""
    unread = tuple(UNREAD_SUFFIXES)
    names = [
        os.path.relpath(entry.path, folder)
        for entry in entries
        if entry.name.lower().endswith(unread) or (entry.is_symlink() and not exists(entry.path))
    ]
    if names:
        number, verb = ("1 file", "is") if len(names) == 1 else (f"{len(names)} files", "are")
        warn_user(
            f"{number} of '{folder}' cannot be read and {verb} left out, such as '{names[0]}': a link leads "
            f"nowhere, or the format is none of {_endings(IMAGE_SUFFIXES)}"
        )


def _warn_of_classes(folder: Path, empty: Sequence[Path], nested: Sequence[os.DirEntry[str]]) -> None:
    """Warns of classes without images, and of folders inside those of classes."""
    if empty:
        warn_user(
            f"'{folder}' has {counted(len(empty), 'sub-folder')} without images, such as '{empty[0].name}': "
            "each keeps an index among the classes; move away what is no class"
        )
    if nested:
        warn_user(
            f"the sub-folders of '{folder}' have {counted(len(nested), 'sub-folder')} of their own, such as "
            f"'{os.path.relpath(nested[0].path, folder)}', whose images are not read; move them one level up"
        )


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, by name. Entries know their kind, which spares a look at each of many files.

    Raises:
        CalibrationDataError: The folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted((one for one in entries if not one.name.startswith(".")), key=lambda one: one.name)
    except OSError as error:
        raise CalibrationDataError(
            f"cannot read the folder '{folder}': {error.strerror or error}; make it readable, or give another"
        ) from error


def _endings(suffixes: frozenset[str]) -> str:
    return " ".join(sorted(suffixes))
