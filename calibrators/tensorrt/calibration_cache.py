"""The file that a TensorRT calibrator keeps its result in, and the sidecar that says what it was made from.

TensorRT uses any cache that it is given. By the sidecar, ``<cache>.json``, a stale one is recognized.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from calibrators import records
from calibrators.errors import TableError
from calibrators.files import write_atomically
from calibrators.records import Count, PositiveCount
from calibrators.tables.formats.tensorrt_cache import TensorrtCache, parse

#: Algorithms that TensorRT runs on the network before it fuses layers, whatever the GPU.
_BEFORE_FUSION = ("EntropyCalibration2", "MinMaxCalibration")


@dataclass(frozen=True)
class CacheOrigin:
    """What a calibration cache was made from.

    Attributes:
        calibrator: The algorithm, as in the cache's header.
        tensorrt: TensorRT's version.
        model: Fingerprint of the model; None where it was not known.
        data: Fingerprint of the samples; None where there were none, as in reading alone.
        samples: How many samples were fed; None where there were none.
        batch_size: Samples per batch, on which TensorRT's histograms depend; None where there were none.
        before_fusion: Whether the ranges were found before layers were fused.
    """

    calibrator: str
    tensorrt: str
    model: str | None
    data: str | None
    samples: Count | None
    batch_size: PositiveCount | None
    before_fusion: bool

    def differences(self, wanted: CacheOrigin) -> list[str]:
        """In which respects this is not ``wanted``, in words; what is None in one is not compared."""
        pairs = ((f.name, getattr(self, f.name), getattr(wanted, f.name)) for f in fields(self))
        return [
            f"{name.replace('_', ' ')} {_short(mine)} instead of {_short(theirs)}"
            for name, mine, theirs in pairs
            if None not in (mine, theirs) and mine != theirs
        ]


def runs_before_fusion(algorithm: str, *, forced: bool = False) -> bool:
    """Whether an algorithm calibrates before layers are fused.

    Args:
        algorithm: The algorithm's name in a cache's header.
        forced: Whether ``QuantizationFlag.CALIBRATE_BEFORE_FUSION`` is set, which the others obey.
    """
    return forced or algorithm in _BEFORE_FUSION


def portability(algorithm: str, before_fusion: bool | None) -> str:
    """Where a cache may be used again, in words.

    Args:
        algorithm: The algorithm's name in the cache's header.
        before_fusion: Whether the ranges were found before layers were fused, from the cache's sidecar; None
            where the sidecar is missing.
    """
    if before_fusion or runs_before_fusion(algorithm):
        return "portable: ranges from before layer fusion, good for any GPU"
    if before_fusion is None:
        return (
            "not portable unless it was made with CALIBRATE_BEFORE_FUSION, which only its sidecar would tell"
        )
    return "not portable: ranges from after layer fusion, which differs from GPU to GPU"


def origin_path(cache: str | os.PathLike[str]) -> Path:
    """Where the sidecar of a cache stands: ``X.cache.json`` beside ``X.cache``."""
    return Path(f"{os.fspath(cache)}.json")


def read_origin(cache: str | os.PathLike[str]) -> CacheOrigin | None:
    """Reads a cache's sidecar.

    Returns:
        What it says; None where there is none.

    Raises:
        TableError: It is malformed.
    """
    path = origin_path(cache)
    try:
        return records.to_record(records.read(path), CacheOrigin, exact=True)
    except FileNotFoundError:
        return None
    except (OSError, records.RecordError) as error:
        raise TableError(
            f"the sidecar '{path}' is malformed ({error}); remove it and calibrate again"
        ) from error


def read_cache(cache: str | os.PathLike[str], wanted: CacheOrigin) -> bytes | None:
    """Reads a cache that was made from the same things.

    Args:
        cache: The file.
        wanted: What a new calibration would be made from.

    Returns:
        The file's bytes; None where there is no file.

    Raises:
        TableError: It is malformed, of another algorithm, of unknown origin, or stale.
    """
    path = Path(cache)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TableError(f"cannot read the cache '{path}': {error.strerror or error}") from error
    content = parse(data, str(path), allow_zero=True)
    if content.algorithm != wanted.calibrator:
        raise TableError(
            f"the cache '{path}' is of {content.algorithm}, and TensorRT would ignore it for "
            f"{wanted.calibrator}; use that calibrator or another file"
        )
    origin = read_origin(path)
    if origin is None:
        raise TableError(
            f"the cache '{path}' has no sidecar '{origin_path(path).name}' that says what it was made from; "
            "calibrate again, or give the cache itself as the calibration to take its ranges as they are"
        )
    different = origin.differences(wanted)
    if different:
        raise TableError(f"the cache '{path}' is stale: {'; '.join(different)}; calibrate again")
    return data


def write_cache(cache: str | os.PathLike[str], data: bytes, origin: CacheOrigin) -> TensorrtCache:
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
    content = parse(data, "the cache that TensorRT wrote", allow_zero=True)
    # The sidecar goes first: after a crash between the two, a cache without its own sidecar is refused.
    write_atomically(origin_path(cache), records.render(origin))
    write_atomically(cache, data)
    return content


def _short(value: object) -> str:
    text = str(value)
    return text[:12] + "…" if len(text) > 24 else text
