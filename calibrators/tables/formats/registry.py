"""The formats of other tools that hold nothing but ranges, by name, ending and content."""

from __future__ import annotations

from collections.abc import Mapping

from calibrators import records
from calibrators.tables.formats import onnxruntime, plain, ppq
from calibrators.tables.formats.ranges_format import RangesFormat

_FORMATS = (plain.TEXT, plain.CSV, ppq.PPQ, onnxruntime.JSON, onnxruntime.FLATBUFFERS)

#: Name on the command line to format.
FORMATS: Mapping[str, RangesFormat] = {found.name: found for found in _FORMATS}

#: Ending to format, for the endings that belong to one format alone.
SUFFIXES: Mapping[str, RangesFormat] = {found.suffix: found for found in _FORMATS if found.suffix != ".json"}


def recognize_json(data: bytes) -> RangesFormat | None:
    """Which of the formats a JSON file has; None where it has none of them or is not JSON."""
    try:
        document = records.parse(data)
    except records.RecordError:
        return None
    if ppq.looks_like_ppq(document):
        return ppq.PPQ
    return onnxruntime.JSON if onnxruntime.looks_like_tensors_data(document) else None
