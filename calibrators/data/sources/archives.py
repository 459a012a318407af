"""Archives of arrays, .npz: read as far as they are needed, and not before their sizes are known."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

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
        data = _read(member, math.prod(shape) * header.dtype.itemsize)
    return np.frombuffer(data, header.dtype).reshape(shape)


def _read(member: IO[bytes], size: int) -> bytes:
    data = member.read(size)
    if len(data) != size:
        raise ValueError("it is truncated")
    return data
