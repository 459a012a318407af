"""Arrays in files, .npz and .npy, and labels: one per sample, in such a file or not.

Of an archive no more is read than is needed, and nothing before the sizes of its arrays are known.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.data.feeds import LABELS
from calibrators.data.inputs import shape_text
from calibrators.errors import CalibrationDataError
from calibrators.files import exists, is_file
from calibrators.words import counted, in_words

_SUFFIX = ".npy"

#: The version of a .npy file to how its header is read. Others are rare, and read whole.
_HEADERS: dict[tuple[int, int], Callable[..., tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True, eq=False)
class Archive:
    """What was read of an archive.

    Attributes:
        arrays: Name to array.
        rows: How many rows along axis 0 the file has, where arrays hold only the first of them; else None.
    """

    arrays: dict[str, NDArray[Any]]
    rows: int | None = None


@dataclass(frozen=True)
class _Header:
    """What a member says about its array, whose values lie row after row.

    Attributes:
        shape: Its shape.
        dtype: Its element type.
        size: The bytes before its values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int


def read_archive(stream: IO[bytes], first: int | None = None) -> Archive:
    """Reads the arrays of an archive.

    Args:
        stream: The file, open for reading.
        first: How many rows along axis 0 are needed; None for all. Where the arrays do not share axis 0 they
            are read whole.

    Raises:
        Exception: The file is no archive of arrays, is damaged, or an array has more or fewer bytes than its
            shape needs. Each part of such a file has errors of its own.
    """
    with zipfile.ZipFile(stream) as archive:
        headers = {info: _header(archive, info) for info in archive.infolist()}
        lengths = {header.shape[0] if header and header.shape else None for header in headers.values()}
        rows = lengths.pop() if len(lengths) == 1 else None
        if first is not None and rows is not None and first < rows:
            return Archive(
                {
                    _name(info): _rows(archive, info, header, first)
                    for info, header in headers.items()
                    if header
                },
                rows,
            )
    # Not numpy.load: it takes any kind of file.
    stream.seek(0)
    with np.lib.npyio.NpzFile(stream, allow_pickle=False) as whole:
        return Archive(dict(whole))


def _name(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(_SUFFIX)


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Header | None:
    """The header of a member, compared with the size that the archive states; None where it has no rows."""
    if not info.filename.endswith(_SUFFIX):
        return None
    with archive.open(info) as member:
        read = _HEADERS.get(np.lib.format.read_magic(member))
        if read is None:
            return None
        shape, fortran, dtype = read(member)
        size = member.tell()
    if dtype.hasobject:  # NumPy refuses it, with a reason
        return None
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or info.file_size - size != needed:
        name, stored = _name(info), info.file_size - size
        raise ValueError(f"its array '{name}' has {stored} bytes, but the shape {shape} needs {needed}")
    return None if fortran else _Header(shape, dtype, size)


def _rows(archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: _Header, first: int) -> NDArray[Any]:
    """The first rows of a member."""
    shape = (first, *header.shape[1:])
    with archive.open(info) as member:
        member.seek(header.size)
        data = _read_bytes(member, math.prod(shape) * header.dtype.itemsize)
    return np.frombuffer(data, header.dtype).reshape(shape)


def _read_bytes(member: IO[bytes], size: int) -> bytes:
    data = member.read(size)
    if len(data) != size:
        raise ValueError("it is truncated")
    return data


_Result = TypeVar("_Result")

#: File name endings that are taken as arrays, in lower case.
ARRAY_SUFFIXES = frozenset({".npy", ".npz"})


def load_labels(labels: Any, count: int | None) -> NDArray[Any]:
    """Labels that were given apart from the data.

    Args:
        labels: One label per sample, or the path of a .npy or of a .npz with ``labels`` or one array only.
        count: How many there must be; None where that is not known.

    Returns:
        One label per sample; see :func:`as_labels`.

    Raises:
        CalibrationDataError: The file is unusable, or the labels are no such array.
    """
    if not isinstance(labels, str | os.PathLike):
        return as_labels(labels, count, "labels")
    path = Path(labels)
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        raise CalibrationDataError(f"labels file '{path}' must be a .npy or .npz file; convert it")
    loaded = load_arrays(path)
    if isinstance(loaded, dict):
        if LABELS not in loaded and len(loaded) != 1:
            raise CalibrationDataError(
                f"labels file '{path}' has no array named '{LABELS}' among {', '.join(sorted(loaded))}; "
                f"rename the one that holds them"
            )
        loaded = loaded[LABELS] if LABELS in loaded else next(iter(loaded.values()))
    return as_labels(loaded, count, f"labels file '{path}'")


def labels_array(labels: Any, what: str, advice: str) -> NDArray[Any]:
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


def as_labels(labels: Any, count: int | None, what: str) -> NDArray[Any]:
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


def _as_int64(indices: NDArray[np.integer[Any]], what: str) -> NDArray[np.int64]:
    # Larger ones would become negative, and messages would name what the data does not hold.
    if (beyond := indices[indices > np.iinfo(np.int64).max]).size:
        raise CalibrationDataError(
            f"{what} has the class index {beyond[0]}, which no model has; check the labels"
        )
    return indices.astype(np.int64)


def is_class_indices(labels: NDArray[Any] | None) -> TypeGuard[NDArray[np.int64]]:
    """Whether labels are one class index per sample, and not arrays or numbers of another kind."""
    return labels is not None and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)


def first_labels(labels: NDArray[Any] | None, count: int, before: int) -> NDArray[Any] | None:
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


# Without types in some versions of NumPy.
_open_memmap: Callable[..., NDArray[Any]] = np.lib.format.open_memmap


def load_arrays(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """All arrays of a .npz, or the array of a .npy, mapped."""
    if path.suffix.lower() == ".npy":
        # NumPy maps a file by its name, which was opened as a file before.
        return read_array_file(path, lambda _stream: _open_memmap(path, mode="r"))
    return read_array_file(path, lambda stream: read_archive(stream).arrays)


def read_array_file(path: Path, read: Callable[[IO[bytes]], _Result]) -> _Result:
    """Reads a file, with one error for all that may be wrong with it."""
    try:
        stream = records.open_file(path)
    except (OSError, records.RecordError) as error:
        reason = "it is no file" if exists(path) else "there is no such file"
        if is_file(path):
            reason = in_words(error)
        raise CalibrationDataError(f"cannot read '{path}': {reason}; give a .npz or .npy file") from error
    try:
        with stream:
            return read(stream)
    except Exception as error:  # each part of a damaged file has errors of its own, tokenizers' included
        raise CalibrationDataError(
            f"cannot read '{path}': {in_words(error)}; save it again with numpy.save or numpy.savez"
        ) from error
