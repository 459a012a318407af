"""Reads and writes the files of calibration tables in every format, and tells formats by ending and content.

A format of another tool that holds nothing but ranges is a
:class:`~calibrators.tables.formats.common.RangesFormat` in the list here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from calibrators import records
from calibrators.checks import FilePath, check_choice, check_path, refuse_ending_alone
from calibrators.errors import TableError
from calibrators.files import write_atomically
from calibrators.histograms.histogram import Histogram
from calibrators.tables.cache_origin import CacheOrigin, read_origin, write_with_origin
from calibrators.tables.choice import QMAX, scale_of
from calibrators.tables.formats import json as json_format
from calibrators.tables.formats import onnxruntime, plain, tensorrt_cache
from calibrators.tables.formats.common import RangesFormat, refuse_engine, refuse_too_many
from calibrators.tables.formats.json import TableRecord

#: Method of a table to the algorithm that the header of a cache names for it; for every other method that is
#: EntropyCalibration2, which most programs that read a cache ask for.
_ALGORITHM = {"minmax": "MinMaxCalibration"}
#: The algorithm in the header of a cache to the method of the table; entropy for every other algorithm.
_METHOD = {"MinMaxCalibration": "minmax", "LegacyCalibration": "percentile"}


def method_in_cache(method: str) -> str:
    """The method of a table once it was written to a calibration cache and read from it.

    A cache names an algorithm of TensorRT. Only some methods have one.

    Args:
        method: The method of the table.
    """
    return _method_of(_algorithm_of(method))


def record_of_cache(cache: tensorrt_cache.TensorrtCache) -> TableRecord:
    """What a TensorRT calibration cache holds; ``amax / 127`` in float32 is exactly the cache's scale.

    Args:
        cache: The contents of the cache.
    """
    amax = {name: scale * QMAX for name, scale in cache.scales.items()}
    versions = {} if cache.version is None else {"tensorrt": cache.version}
    return TableRecord(amax=amax, method=_method_of(cache.algorithm), versions=versions)


def read_table(path: FilePath) -> TableRecord:
    """Reads the file of a table in any format; see :meth:`calibrators.tables.table.CalibrationTable.load`.

    Args:
        path: The file.

    Raises:
        TableError: The file cannot be read or is malformed, or is a cache with the sidecar of another; or
            what is given is no path.
    """
    check_path("the table", path, TableError)
    with records.reading(f"the table '{path}'", TableError, "give a calibration table"):
        data = records.read_bytes(path)
    source = os.fspath(path)
    refuse_engine(data, path)
    if tensorrt_cache.looks_like_cache(data):
        record, origin = record_of_cache(tensorrt_cache.parse(data, source)), read_origin(path, data)
        if origin is None:
            return record
        return replace(
            record,
            model=origin.model,
            data=origin.data,
            samples=origin.samples,
            versions={"tensorrt": origin.tensorrt},
        )
    other = SUFFIXES.get(Path(path).suffix.lower()) or _recognize_json(data)
    if other is not None:
        return TableRecord(amax=other.parse(data, source))
    if Path(path).suffix.lower() == ".cache":
        return TableRecord(amax=onnxruntime.parse_lines(data, source))
    return json_format.parse(data, source)


def write_table(
    path: FilePath,
    record: TableRecord,
    histograms: Mapping[str, Histogram],
    *,
    format_name: str | None,
    tensorrt_version: str,
) -> Path:
    """Writes the file of a table atomically; see :meth:`calibrators.tables.table.CalibrationTable.save`.

    Args:
        path: The file.
        record: What the table holds beside its histograms.
        histograms: Tensor name to histogram.
        format_name: The name of the format; the file's ending decides where None.
        tensorrt_version: The version that the header of a cache names.

    Returns:
        ``path``.

    Raises:
        TableError: There is no such format, the ending names none or another, the format cannot hold the
            name of a tensor, a cache would hold ranges of 0 alone, there is no range, which only trtint8's
            own format holds, or there are more tensors than would be read again.
        OutputError: The file cannot be written.
    """
    if format_name is not None:
        check_format_name(path, format_name)
    other = FORMATS[format_name] if format_name is not None else None
    suffix = Path(path).suffix.lower() if other else check_table_name(path).suffix.lower()
    other = other or SUFFIXES.get(suffix)
    refuse_too_many(len(record.amax), os.fspath(path))
    if other is None and suffix == ".json":
        return write_atomically(path, json_format.render(record, histograms, os.fspath(path)))
    if not record.amax:
        raise TableError(
            f"cannot write '{path}': the table has no ranges, and only trtint8's own format (.json) holds "
            "such a table; calibrate a model, or set ranges by hand"
        )
    if other is not None:
        return write_atomically(path, _readable(other.render(record.amax), os.fspath(path)))
    algorithm = _algorithm_of(record.method)
    scales = {name: float(scale_of(amax)) for name, amax in record.amax.items()}
    data = tensorrt_cache.render(tensorrt_cache.TensorrtCache(tensorrt_version, algorithm, scales))
    _readable(data, os.fspath(path))
    origin = CacheOrigin(
        calibrator=algorithm,
        tensorrt=tensorrt_version,
        model=record.model,
        data=record.data,
        samples=record.samples,
        batch_size=None,
        # Histograms are of the model as it was given, not of TensorRT's fused layers.
        before_fusion=True if histograms else None,
    )
    return write_with_origin(path, data, origin)


def _readable(data: bytes, source: str) -> bytes:
    """The content of a file, unless it is larger than what is read again."""
    if not records.is_readable(data):
        raise TableError(
            f"cannot write '{source}': with its {len(data):,} bytes it would be larger than what is read "
            "again; leave tensors out"
        )
    return data


def _algorithm_of(method: str) -> str:
    return _ALGORITHM.get(method, "EntropyCalibration2")


def _method_of(algorithm: str) -> str:
    return _METHOD.get(algorithm, "entropy")


_FORMATS = (plain.TEXT, plain.CSV, plain.PPQ, onnxruntime.JSON, onnxruntime.FLATBUFFERS)

#: Name on the command line to format.
FORMATS: Mapping[str, RangesFormat] = {found.name: found for found in _FORMATS}

#: Ending to format, for the endings that belong to one format alone.
SUFFIXES: Mapping[str, RangesFormat] = {found.suffix: found for found in _FORMATS if found.suffix != ".json"}


def _recognize_json(data: bytes) -> RangesFormat | None:
    """Returns the format that a JSON file has; None where it has none of these or is not JSON."""
    try:
        document = records.parse(data)
    except records.RecordError:
        return None
    return next((one for one in _FORMATS if one.recognizes and one.recognizes(document)), None)


#: Endings of the files that hold tables.
TABLE_SUFFIXES = (".json", ".cache", *SUFFIXES)


def is_table_name(path: FilePath) -> bool:
    """Whether a file's ending names a table format."""
    return Path(path).suffix.lower() in TABLE_SUFFIXES


def check_table_name(path: FilePath) -> Path:
    """Refuses a file name whose ending names no table format, before any work is done for it.

    Raises:
        TableError: The ending is none of :data:`TABLE_SUFFIXES`, or the whole name.
    """
    refuse_ending_alone(path, TABLE_SUFFIXES, TableError)
    if not is_table_name(path):
        raise TableError(
            f"cannot tell the table format of '{path}': end it in {', '.join(TABLE_SUFFIXES[:-1])} or "
            f"{TABLE_SUFFIXES[-1]}"
        )
    return Path(path)


def check_format_name(path: FilePath, format_name: str) -> None:
    """Refuses a file name under which a format would not be read back.

    Args:
        path: The file; its ending may be one that names no format where the format is JSON, which is
            recognized by its content.
        format_name: A key of :data:`calibrators.tables.files.FORMATS`.

    Raises:
        TableError: There is no such format, the ending names another or is the whole name, or it names none
            and the format is recognized by its ending alone.
    """
    check_choice("format_name", format_name, tuple(FORMATS), TableError)
    refuse_ending_alone(path, TABLE_SUFFIXES, TableError)
    own = FORMATS[format_name].suffix
    if Path(path).suffix.lower() == own:
        return
    if is_table_name(path):
        raise TableError(
            f"the format {format_name!r} does not fit the name '{path}', which ends as that of another and "
            f"would be read as that; end it in {own}"
        )
    if own in SUFFIXES:
        raise TableError(
            f"the format {format_name!r} is recognized by its ending alone, which the name '{path}' lacks; "
            f"end it in {own}"
        )
