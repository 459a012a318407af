"""The file that a TensorRT calibrator keeps its result in, which its sidecar says when to use again.

TensorRT uses any cache that it is given. By the sidecar, a stale one is recognized; see
:mod:`calibrators.tables.cache_origin`.
"""

from __future__ import annotations

from pathlib import Path

from calibrators import records
from calibrators.checks import FilePath
from calibrators.errors import TableError
from calibrators.tables.cache_origin import (
    CacheOrigin,
    origin_path,
    read_origin,
    refuse_foreign_sidecar,
    runs_before_fusion,
    write_with_origin,
)
from calibrators.tables.formats.tensorrt_cache import TensorrtCache, parse

#: Whether ranges are from before layer fusion, None where that is not known, to what follows from it.
_PORTABILITY = {
    True: "portable: ranges from before layer fusion, good for any GPU",
    False: "not portable: ranges from after layer fusion, which differs from GPU to GPU",
    None: "not known: the table that it was written from does not say how its ranges were found",
}


def portability(algorithm: str, origin: CacheOrigin | None) -> str:
    """Where a cache may be used again, in words.

    Args:
        algorithm: The algorithm's name in the cache's header.
        origin: What the cache's sidecar says; None where it is missing.
    """
    if origin is not None:
        return _PORTABILITY[origin.before_fusion]
    if runs_before_fusion(algorithm):
        return _PORTABILITY[True]
    return "not portable unless it was made with CALIBRATE_BEFORE_FUSION, which only its sidecar would tell"


def read_cache(cache: FilePath, wanted: CacheOrigin) -> bytes | None:
    """Reads a cache that was made from the same things.

    Args:
        cache: The file.
        wanted: What a new calibration would be made from.

    Returns:
        The file's bytes; None where there is no file.

    Raises:
        TableError: It is malformed, of another algorithm, of unknown origin, or stale.
        OutputError: There is none, and something else has its sidecar's name.
    """
    path = Path(cache)
    with records.reading(f"the cache '{path}'", TableError):
        try:
            data = records.read_bytes(path)
        except FileNotFoundError:
            refuse_foreign_sidecar(path)  # before anything is calibrated
            return None
    content = parse(data, str(path))
    if content.algorithm != wanted.calibrator:
        raise TableError(
            f"the cache '{path}' is of {content.algorithm}, and TensorRT would ignore it for "
            f"{wanted.calibrator}; use that calibrator or another file"
        )
    origin = read_origin(path, data)
    if origin is None:
        raise TableError(
            f"the cache '{path}' has no sidecar '{origin_path(path).name}' that says what it was made from; "
            "calibrate again, or give the cache itself as the calibration to take its ranges as they are"
        )
    different = origin.differences(wanted)
    if different:
        raise TableError(f"the cache '{path}' is stale: {'; '.join(different)}; calibrate again")
    return data


def write_cache(cache: FilePath, data: bytes, origin: CacheOrigin) -> TensorrtCache:
    """Writes the bytes of a cache as TensorRT made them, and the cache's sidecar.

    Args:
        cache: The file.
        data: The cache's bytes.
        origin: What it was made from.

    Returns:
        The cache's contents.

    Raises:
        TableError: The bytes are no calibration cache.
        OutputError: A file cannot be written.
    """
    content = parse(data, "the cache that TensorRT wrote")
    write_with_origin(cache, data, origin)
    return content
