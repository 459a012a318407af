"""The sidecar of a TensorRT calibration cache, ``<cache>.json``: what the cache was made from."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path

from calibrators import records
from calibrators.checks import FilePath
from calibrators.errors import OutputError, TableError
from calibrators.files import check_writable, exists, write_atomically, written_together
from calibrators.records import Count, Line, PositiveCount, Sha256

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
        before_fusion: Whether the ranges were found before layers were fused; None where a table, which the
            cache was written from, does not tell.
        settings: The quantile and the cutoff of the legacy calibrator, in words; None for the others.
        sha256: SHA-256 of the cache's bytes; None where it was not known, as in sidecars of earlier versions.
    """

    calibrator: Line
    tensorrt: Line
    model: Line | None
    data: Line | None
    samples: Count | None
    batch_size: PositiveCount | None
    before_fusion: bool | None
    settings: Line | None = None
    sha256: Sha256 | None = None

    def differences(self, wanted: CacheOrigin) -> list[str]:
        """In which respects this is not ``wanted``, in words; what is None in one is not compared.

        But where the model is known that a cache is wanted for, the cache must be of a known model, too.
        """
        pairs = ((f.name, getattr(self, f.name), getattr(wanted, f.name)) for f in fields(self))
        lacks_model = self.model is None and wanted.model is not None
        unknown = [f"of an unknown model instead of {_short(wanted.model)}"] if lacks_model else []
        return unknown + [
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


def origin_path(cache: FilePath) -> Path:
    """Where the sidecar of a cache stands: ``X.cache.json`` beside ``X.cache``."""
    return Path(f"{os.fspath(cache)}.json")


def read_origin(cache: FilePath, data: bytes) -> CacheOrigin | None:
    """Reads a cache's sidecar, and makes sure that it belongs to the cache.

    Args:
        cache: The cache.
        data: The cache's bytes.

    Returns:
        What it says; None where there is none.

    Raises:
        TableError: It is malformed, or describes another cache.
    """
    path = origin_path(cache)
    try:
        origin = records.to_record(records.read(path), CacheOrigin, exact=True)
    except FileNotFoundError:
        return None
    except (OSError, records.RecordError) as error:
        raise TableError(
            f"the sidecar '{path}' is malformed ({error}); remove it and calibrate again"
        ) from error
    if origin.sha256 not in (None, hashlib.sha256(data).hexdigest()):
        raise TableError(
            f"the cache '{os.fspath(cache)}' is not the one that its sidecar '{path.name}' describes: it was "
            "changed or replaced; calibrate again, or remove the sidecar to take the ranges as they are"
        )
    return origin


def refuse_foreign_sidecar(cache: FilePath) -> None:
    """Refuses to write a cache beside a file that has its sidecar's name and is something else.

    Args:
        cache: The cache that will be written.

    Raises:
        OutputError: There is such a file, which would be lost, or a symbolic link.
    """
    path = origin_path(cache)
    if not exists(path):
        return
    check_writable(path, named=False)
    with contextlib.suppress(OSError, records.RecordError):
        document = records.read(path)
        if isinstance(document, dict) and {"calibrator", "tensorrt"} <= document.keys():
            return
    raise OutputError(
        f"cannot write '{path}', the sidecar of the cache '{os.fspath(cache)}': the file is something else, "
        "which would be lost; move it away, or give the cache another name"
    )


def write_with_origin(cache: FilePath, data: bytes, origin: CacheOrigin) -> Path:
    """Writes a cache and its sidecar.

    Args:
        cache: The file.
        data: The cache's bytes.
        origin: What it was made from; the hash of the bytes is filled in.

    Returns:
        ``cache`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: A file cannot be written, or something else has the sidecar's name.
    """
    refuse_foreign_sidecar(cache)
    sidecar = origin_path(cache)
    hashed = replace(origin, sha256=hashlib.sha256(data).hexdigest())
    with written_together(cache) as staged:
        write_atomically(staged(sidecar), records.render(hashed))
        write_atomically(staged(Path(cache)), data)
    return Path(cache)


def _short(value: object) -> str:
    text = str(value)
    return text[:12] + "…" if len(text) > 24 else text
