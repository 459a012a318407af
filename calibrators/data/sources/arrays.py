"""Arrays, in memory and in .npz and .npy files: samples that can be read in any order, and labels.

Of an archive no more is read than is needed, and nothing before the sizes of its arrays are known.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath, as_integer, positive_integer, refuse_empty_path
from calibrators.data.batches import AtPath, IndexedSource, first_samples
from calibrators.data.feeds import (
    LABELS,
    Array,
    BatchAxes,
    Binding,
    FeedDict,
    Indices,
    Ints,
    OneSample,
    as_array,
    batch_rows,
    count_rows,
    count_samples,
    listed,
    needs_single_feeds,
    one_sample,
)
from calibrators.data.inputs import DataOptions, Shape, shape_text
from calibrators.errors import Argument, CalibrationDataError, DamagedFileError, counted, in_words, such_as
from calibrators.files import exists, is_file, kind_by_ending

# Sources -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Arrays(IndexedSource):
    """Samples in arrays, which stay where they are; a worker is sent those of its batches.

    Attributes:
        arrays: Input name to array, checked and not prepared. The samples lie along axis 0, or along the
            binding's batch axes; of an input that is one number, it may be that number.
        binding: Says which array feeds which input.
        kept: The samples that the arrays hold, ascending, where these are not all that are counted.
        stored: The rows of the only array where these are in a file; the array has their shape then.
    """

    arrays: FeedDict = field(repr=False)
    binding: Binding
    kept: Indices | None = field(default=None, repr=False, kw_only=True)
    stored: _StoredRows | None = field(default=None, repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "arrays": {}, "stored": None}

    @classmethod
    def open(cls, data: Any, binding: Binding, options: DataOptions) -> Arrays:  # noqa: ARG003  # as every kind
        """Opens arrays for a model.

        Args:
            data: An array, a tensor, or a dict of these.
            binding: Says which array feeds which input.
            options: Not needed.

        Raises:
            CalibrationDataError: Names, element types or lengths do not fit, or there are no samples.
        """
        if not isinstance(data, Mapping):
            data = {binding.only_input("an array").name: data}
        return _from_arrays(data, binding)

    def batch(self, indices: Indices) -> FeedDict:
        """Some samples, not prepared; a single one as it is fed."""
        if self.stored is not None:
            return dict.fromkeys(self.arrays, self.stored.rows(indices))
        if self.kept is not None:
            indices = np.searchsorted(self.kept, indices)
        if self.is_single:
            sample = one_sample(self.arrays, self.binding.batch_axes, int(indices[0]))
            return OneSample(self.binding.prepare(sample))
        return {name: array[indices] for name, array in self.arrays.items()}

    def samples(self, batch: FeedDict) -> int:
        """How many samples a batch has."""
        return batch_rows(batch) or 1

    def read(self, batch: FeedDict) -> tuple[FeedDict, None]:
        """What the model is fed."""
        return batch if self.is_single else self.binding.prepare(batch), None


def _from_arrays(arrays: Mapping[str, Any], binding: Binding) -> Arrays:
    """A source over arrays that hold all samples along axis 0, or along the binding's batch axes.

    Args:
        arrays: Input name to array, and ``labels`` where there are any. Of an input that is one number, the
            array may be that number, which is fed with every sample.
        binding: Says which array feeds which input.

    Raises:
        CalibrationDataError: Names, element types or lengths do not fit, or there are no samples.
    """
    fed, labels = binding.split({name: as_array(array) for name, array in arrays.items()})
    binding.check(fed)
    single = needs_single_feeds(fed, binding.batch_axes)
    count = count_samples(fed, binding.batch_axes) if single else count_rows(fed)
    if not count:
        raise CalibrationDataError("the data has no samples: its arrays have length 0; pass some")
    own_labels = None if labels is None else as_labels(labels, count, f"'{LABELS}'")
    return Arrays(fed, binding, count=count, labels=own_labels, is_single=single)


#: What to do about a file that is no data, by what it holds.
_INSTEAD = {
    "model": "it is a model, so give the model first and the data after it",
    "engine": "it is an engine, so give samples in its place",
    "PyTorch": "save its tensors as arrays with numpy.savez",
    "archive": "unpack it, and give the folder",
}


class ArrayFile:
    """One .npz or .npy file; a .npy file stays on disk."""

    @staticmethod
    def open(data: FilePath, binding: Binding, options: DataOptions) -> AtPath:
        """Opens a file for a model.

        Args:
            data: Its path.
            binding: Says what feeds the model.
            options: Which samples are taken.

        Raises:
            CalibrationDataError: There is no such file, it cannot be read, or it does not fit the model.
        """
        path = Path(data)
        if path.suffix.lower() not in ARRAY_SUFFIXES:
            advice = "pass a .npz, a .npy, or a folder of these or of images"
            raise CalibrationDataError(
                f"cannot take data from the file '{path}'; {_INSTEAD.get(kind_by_ending(path), advice)}"
            )
        # No others are read than the limit takes.
        limit = None if options.shuffle else options.limit
        return AtPath.of(path, partial(_from_array_file, binding=binding, limit=limit))


class ArraysAlongAxes:
    """Arrays of which some inputs have their samples along another axis than the first."""

    @staticmethod
    def open(data: BatchAxes, binding: Binding, options: DataOptions) -> Arrays | AtPath:
        """Opens a .npz or a dict of arrays for a model.

        Raises:
            CalibrationDataError: It is neither, an axis does not fit, or see :class:`Arrays`.
        """
        _check_axes(data, binding)
        binding = replace(binding, batch_axes=dict(data.axes))
        if isinstance(data.data, Mapping):
            return Arrays.open(data.data, binding, options)
        return ArrayFile.open(data.data, binding, options)


def _check_axes(data: BatchAxes, binding: Binding) -> None:
    """Refuses axes of inputs that the model lacks, what is no axis, and data that has none.

    Raises:
        CalibrationDataError: Says which.
    """
    is_path = isinstance(data.data, PATH_TYPES)
    if not isinstance(data.data, Mapping) and not (is_path and Path(data.data).suffix.lower() == ".npz"):
        what = f"'{data.data}'" if is_path else f"a {type(data.data).__name__}"
        raise CalibrationDataError(
            f"batch axes are for a .npz or a dict of arrays, and the data is {what}; leave them out"
        )
    names = {spec.name for spec in binding.inputs}
    for name, axis in data.axes.items():
        if name not in names:
            raise CalibrationDataError(
                f"a batch axis is given for '{name}', which is no input of the model; it has "
                f"{listed(binding.inputs)}: name one of these"
            )
        number = as_integer(axis)
        if number is None or number < 0:
            raise CalibrationDataError(
                f"the batch axis of '{name}' is {axis!r}; give an integer of 0 or more"
            )


def _from_array_file(path: Path, binding: Binding, limit: int | None = None) -> Arrays:
    """A source over one .npz or .npy file; a .npy file stays on disk.

    Args:
        path: The file.
        binding: Says what feeds the model.
        limit: Only the samples that this limit takes are read; None for all.

    Returns:
        The source, which counts all samples of the file.
    """
    if rows := _StoredRows.open(path):
        return replace(_from_arrays(_named(path, binding, rows.outline()), binding), stored=rows)
    if path.suffix.lower() == _SUFFIX or limit is None or binding.batch_axes:
        return _from_arrays(read_arrays(path, binding), binding)
    archive = read_array_file(path, lambda stream: read_archive(stream, limit))
    source = _from_arrays(archive.arrays, binding)
    if archive.rows is None:
        return source
    labels = source.labels
    if archive.classes is not None:
        labels = as_labels(archive.classes, archive.rows, f"'{LABELS}'")
    return replace(source, count=archive.rows, labels=labels, kept=archive.kept)


def read_arrays(path: Path, binding: Binding) -> dict[str, Array]:
    """Reads a .npz, or a .npy, which feeds the model's only input.

    Raises:
        CalibrationDataError: The file cannot be read or holds Python objects, or it is a .npy and the
            model has several inputs.
    """
    return _named(path, binding, load_arrays(path))


def outlined_arrays(path: Path, binding: Binding) -> dict[str, Array]:
    """Arrays of the shapes and element types that a file has; the values of a .npy are not read.

    Raises:
        CalibrationDataError: As for :func:`read_arrays`.
    """
    rows = _StoredRows.open(path)
    return _named(path, binding, rows.outline() if rows else load_arrays(path))


def _named(path: Path, binding: Binding, loaded: Array | dict[str, Array]) -> dict[str, Array]:
    if isinstance(loaded, dict):
        return loaded
    return {binding.only_input(f"the file '{path}'").name: loaded}


# Files -------------------------------------------------------------------------------------------------

_SUFFIX = ".npy"

#: The version of a .npy file to how its header is read. Others are rare, and read whole.
_HEADERS: dict[tuple[int, int], Callable[..., tuple[Shape, bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True, eq=False)
class Archive:
    """What was read of an archive.

    Attributes:
        arrays: Name to array.
        rows: How many rows along axis 0 the file has, where arrays hold only some of them; else None.
        kept: The rows that arrays hold then, ascending.
        classes: The class index of each row of the file, where it has such labels.
    """

    arrays: dict[str, Array]
    rows: int | None = None
    kept: Indices | None = None
    classes: NDArray[np.integer[Any]] | None = None


@dataclass(frozen=True)
class _Header:
    """What a member says about its array, whose values lie row after row.

    Attributes:
        shape: Its shape.
        dtype: Its element type.
        size: The bytes before its values.
    """

    shape: Shape
    dtype: np.dtype[Any]
    size: int


def read_archive(stream: IO[bytes], limit: int | None = None) -> Archive:
    """Reads the arrays of an archive.

    Args:
        stream: The file, open for reading.
        limit: Only the rows along axis 0 that this limit takes are read; None for all. Where the arrays do
            not share axis 0 they are read whole.

    Raises:
        Exception: The file is no archive of arrays, is damaged, or an array has more or fewer bytes than its
            shape needs. Each part of such a file has errors of its own.
    """
    with zipfile.ZipFile(stream) as archive:
        headers = {info: _header(archive, info) for info in archive.infolist()}
        lengths = {header.shape[0] if header and header.shape else None for header in headers.values()}
        rows = lengths.pop() if len(lengths) == 1 else None
        if limit is not None and rows is not None and limit < rows:
            members = {_name(info): (info, header) for info, header in headers.items() if header}
            classes = None
            if LABELS in members and len(members[LABELS][1].shape) == 1:
                labels = _rows(archive, *members[LABELS], np.arange(rows))
                classes = labels if is_class_indices(labels) else None
            kept = np.sort(first_samples(limit, sorted_classes(classes)))
            arrays = {name: _rows(archive, *member, kept) for name, member in members.items()}
            return Archive(arrays, rows, kept, classes)
    # Not numpy.load: it takes any kind of file.
    stream.seek(0)
    with np.lib.npyio.NpzFile(stream, allow_pickle=False) as whole:
        arrays = dict(whole)
    if others := [name for name, member in arrays.items() if not isinstance(member, np.ndarray)]:
        raise ValueError(f"'{others[0]}' in it is no array")
    return Archive(arrays)


def _name(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(_SUFFIX)


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Header | None:
    """The header of a member, compared with the size that the archive states; None where it has no rows."""
    if not info.filename.endswith(_SUFFIX):
        return None
    with archive.open(info) as member:
        return _header_of(member, info.file_size, f"its array '{_name(info)}'", whole=True)


def _header_of(stream: IO[bytes], size: int, what: str, *, whole: bool = False) -> _Header | None:
    """The header of an array, compared with the size of what it stands in; None where it has no rows.

    Args:
        stream: The array as NumPy stores it.
        size: How many bytes there are.
        what: What to call it in messages.
        whole: Whether nothing may stand behind it.

    Raises:
        ValueError: It is no array, or has fewer or more bytes than its shape needs.
    """
    read = _HEADERS.get(np.lib.format.read_magic(stream))
    if read is None:
        return None
    shape, fortran, dtype = read(stream)
    before = stream.tell()
    if dtype.hasobject:  # NumPy refuses it, with a reason
        return None
    stored, needed = size - before, math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or stored < needed or (whole and stored != needed):
        raise ValueError(f"{what} has {stored} bytes, but the shape {shape} needs {needed}")
    return None if fortran or not shape else _Header(shape, dtype, before)


def _rows(archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: _Header, rows: Indices) -> Array:
    """Some rows of a member, which ascend."""
    with archive.open(info) as member:
        return _read_rows(member, header, rows)


def _read_rows(stream: IO[bytes], header: _Header, rows: Indices) -> Array:
    """Some rows of an array; of rows that follow each other, all are read at once."""
    row_bytes = math.prod(header.shape[1:]) * header.dtype.itemsize
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    parts = []
    for run in runs if rows.size else []:
        stream.seek(header.size + int(run[0]) * row_bytes)
        parts.append(stream.read(len(run) * row_bytes))
        if len(parts[-1]) != len(run) * row_bytes:
            raise ValueError("it is truncated")
    return np.frombuffer(b"".join(parts), header.dtype).reshape(len(rows), *header.shape[1:])


_Result = TypeVar("_Result")

#: What NumPy says of files with Python objects in place of numbers.
_OF_OBJECTS = ("Object arrays", "Python objects")

#: File name endings that are taken as arrays, in lower case.
ARRAY_SUFFIXES = frozenset({".npy", ".npz"})


@dataclass(frozen=True, eq=False)
class _StoredRows:
    """The rows of a .npy file, which are read when they are taken.

    They are not mapped: who shortens a mapped file ends the process that uses it.

    Attributes:
        path: The file.
        header: What it says about its array.
        version: The file's number, its size, and when it was written.
    """

    path: Path
    header: _Header
    version: tuple[int, int, int]

    @classmethod
    def open(cls, path: Path) -> _StoredRows | None:
        """Opens a file; None where it is no .npy, or its array does not lie row after row."""
        return read_array_file(path, partial(cls._of, path)) if path.suffix.lower() == _SUFFIX else None

    @classmethod
    def _of(cls, path: Path, stream: IO[bytes]) -> _StoredRows | None:
        version = _version(stream)
        header = _header_of(stream, version[1], "it")
        return None if header is None else cls(path, header, version)

    def outline(self) -> Array:
        """An array of the same shape and element type, which takes no memory."""
        return np.broadcast_to(np.zeros((), self.header.dtype), self.header.shape)

    def rows(self, rows: Indices) -> Array:
        """Reads some rows."""
        return read_array_file(self.path, partial(self._rows, rows=rows))

    def _rows(self, stream: IO[bytes], rows: Indices) -> Array:
        if _version(stream) != self.version:
            raise ValueError("another process has changed it since it was opened")
        return _read_rows(stream, self.header, rows)


def _version(stream: IO[bytes]) -> tuple[int, int, int]:
    status = os.fstat(stream.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns


def load_arrays(path: Path) -> Array | dict[str, Array]:
    """All arrays of a .npz, or the array of a .npy."""
    if path.suffix.lower() == _SUFFIX:
        return read_array_file(path, lambda stream: np.lib.format.read_array(stream, allow_pickle=False))
    return read_array_file(path, lambda stream: read_archive(stream).arrays)


def read_array_file(path: Path, read: Callable[[IO[bytes]], _Result]) -> _Result:
    """Reads a file, with one error for all that may be wrong with it."""
    try:
        stream = records.open_file(path)
    except (OSError, records.RecordError) as error:
        reason = "it is no file" if exists(path) else "there is no such file"
        if is_file(path):
            reason = in_words(error)
        raise DamagedFileError(f"cannot read '{path}': {reason}; give a .npz or .npy file") from error
    try:
        with stream:
            return read(stream)
    except Exception as error:  # each part of a damaged file has errors of its own, tokenizers' included
        if any(words in str(error) for words in _OF_OBJECTS):
            raise CalibrationDataError(
                f"cannot read '{path}': {in_words(error)}; arrays of Python objects, such as lists of "
                "different lengths, are not read: pad the samples to one length and save them as numbers, as "
                "array.astype(numpy.float32) makes them, or write each into an .npz of its own in a folder "
                f"and set {Argument('batch_size', '1')}"
            ) from error
        raise DamagedFileError(
            f"cannot read '{path}': {in_words(error)}; save it again with numpy.save or numpy.savez"
        ) from error


# Labels ------------------------------------------------------------------------------------------------


def load_labels(labels: Any, count: int | None) -> Array:
    """Labels that were given apart from the data.

    Args:
        labels: One label per sample, or the path of a .npy or of a .npz with ``labels`` or one array only.
        count: How many there must be; None where that is not known.

    Returns:
        One label per sample; see :func:`as_labels`.

    Raises:
        CalibrationDataError: The file is unusable, or the labels are no such array.
    """
    if not isinstance(labels, PATH_TYPES):
        return as_labels(labels, count, "labels")
    return as_labels(_labels_of_file(Path(labels), LABELS), count, f"labels file '{labels}'")


def _labels_of_file(path: Path, name: str) -> Array:
    """The array of a .npy, or the one of a .npz that has a name or is the only one."""
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        raise CalibrationDataError(f"{name} file '{path}' must be a .npy or .npz file; convert it")
    loaded = load_arrays(path)
    if not isinstance(loaded, dict):
        return loaded
    if name not in loaded and len(loaded) != 1:
        raise CalibrationDataError(
            f"{name} file '{path}' has no array named '{name}' among {such_as(sorted(loaded))}; rename the "
            "one that holds them"
        )
    return loaded[name] if name in loaded else next(iter(loaded.values()))


def load_groups(groups: Any, count: int) -> Indices:
    """Which samples belong together.

    Args:
        groups: One label per sample, of any type that can be sorted, or the path of a .npy or of a .npz with
            ``groups`` or one array only; or how many samples in a row make a group.
        count: How many samples there are.

    Returns:
        The number of each sample's group, shape (count,).

    Raises:
        CalibrationDataError: The file is unusable, or there is not one label per sample.
    """
    if not isinstance(groups, (*PATH_TYPES, np.ndarray, Sequence)):
        return np.arange(count) // positive_integer("groups", groups)
    what = f"{Argument('groups')}"
    if isinstance(groups, PATH_TYPES):
        refuse_empty_path("the groups", groups, CalibrationDataError)
        groups, what = _labels_of_file(Path(groups), "groups"), f"groups file '{groups}'"
    labels = labels_array(groups, what, "give one label per sample")
    if labels.ndim != 1 or len(labels) != count or labels.dtype.kind not in "biufUS":
        raise CalibrationDataError(
            f"{what} is {labels.dtype} of shape {shape_text(labels.shape)} and the data has "
            f"{counted(count, 'sample')}; give one number or text per sample, or how many samples in a row "
            "belong together"
        )
    return np.unique(labels, return_inverse=True)[1]


def labels_array(labels: Any, what: str, advice: str) -> Array:
    """Labels as an array.

    Args:
        labels: An array, or nested sequences.
        what: How messages call the labels.
        advice: What to give instead, in messages.

    Raises:
        CalibrationDataError: They are of unequal lengths.
    """
    try:
        return np.asarray(labels)
    except ValueError as error:
        raise CalibrationDataError(f"{what} cannot become an array: {error}; {advice}") from error


def as_labels(labels: Any, count: int | None, what: str) -> Array:
    """Checks that labels are one class index, or one array, per sample.

    Args:
        labels: An array of numbers whose axis 0 is the samples, or a sequence of ints: class indices, or what
            a model's output should be, such as images or maps of classes.
        count: How many samples there are; None where that is not known.
        what: How messages call the labels.

    Returns:
        int64 of shape (count,) for class indices; other labels as they are, shape (count, ...).

    Raises:
        CalibrationDataError: Type, rank or length is wrong, or a class index is beyond int64.
    """
    array = labels_array(labels, what, "pass one int, or one array, per sample")
    if not array.ndim or array.dtype.kind not in "biuf":
        raise CalibrationDataError(
            f"{what} must be one class index or one array of numbers per sample, not {array.dtype} of shape "
            f"{shape_text(array.shape)}; pass an array of numbers whose axis 0 is the samples"
        )
    if count is not None and len(array) != count:
        raise CalibrationDataError(
            f"{what} has {len(array)} entries but the data has {counted(count, 'sample')}; give one per "
            "sample"
        )
    return _as_int64(array, what) if is_class_indices(array) else array


def _as_int64(indices: NDArray[np.integer[Any]], what: str) -> Ints:
    # Larger ones would become negative, and messages would name what the data does not hold.
    if (beyond := indices[indices > np.iinfo(np.int64).max]).size:
        raise CalibrationDataError(
            f"{what} has the class index {beyond[0]}, which no model has; check the labels"
        )
    return indices.astype(np.int64)


def is_class_indices(labels: Array | None) -> TypeGuard[Ints]:
    """Whether labels are one class index per sample, and not arrays or numbers of another kind."""
    return labels is not None and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)


def sorted_classes(labels: Array | None) -> Ints | None:
    """Labels where samples lie sorted by class, so that the first of them would be of few classes; else None.

    Args:
        labels: The labels of all samples; None where they have none.
    """
    if not is_class_indices(labels) or (labels[1:] < labels[:-1]).any():
        return None
    # Where hardly any label is there twice, they are numbers of the samples.
    return labels if 2 * len(np.unique(labels)) <= len(labels) else None


def first_labels(labels: Array | None, count: int, before: int) -> Array | None:
    """The labels of a batch.

    Args:
        labels: Labels from the batch's first sample on; None where the data has none.
        count: How many samples the batch has.
        before: How many samples come before it, for the message.

    Raises:
        CalibrationDataError: There are fewer labels than samples.
    """
    if labels is not None and len(labels) < count:
        raise CalibrationDataError(
            f"there are {before + len(labels)} labels but more samples; give one per sample"
        )
    return None if labels is None else labels[:count]
