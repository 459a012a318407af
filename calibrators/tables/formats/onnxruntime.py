"""The calibration tables of ONNX Runtime's TensorRT execution provider.

ONNX Runtime's ``write_calibration_table`` writes one calibration three times: as JSON with the least and the
largest value of every tensor; as a FlatBuffer (``table TrtTable { dict: [KeyValue]; }``,
``table KeyValue { key: string; value: string; }``); and as plain lines ``tensor amax``. The FlatBuffer and
the lines have one number per tensor, the larger of the two values and not of their magnitudes, so the range
of a tensor that reaches further below zero than above is too narrow in them. Only from the JSON can the right
range be computed; the readers of the two others warn with a UserWarning.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import flatbuffers
from flatbuffers import number_types
from flatbuffers.table import Table

from calibrators.checks import warn_user
from calibrators.errors import TableError
from calibrators.tables.formats.common import (
    MOST_TENSORS,
    RangeEntry,
    RangesFormat,
    collect_ranges,
    filled_lines,
    largest_magnitude,
    number,
    read_json,
)

# Fields of a FlatBuffers table are found by their place in its vtable, two bytes each from 4 on.
_FIRST_FIELD, _SECOND_FIELD = 4, 6
_OFFSET_SIZE = 4


def parse_lines(data: bytes, source: str) -> dict[str, float]:
    """Reads the plain form, lines ``tensor amax``; names may hold spaces.

    Args:
        data: The file's content.
        source: What to call the file in messages.

    Returns:
        Tensor name to amax, in the file's order.

    Raises:
        TableError: A line is malformed, a tensor stands twice, or a range is not a finite number of 0 or
            more.

    Warns:
        UserWarning: Always: the ranges may be too narrow, as the module's description says.
    """
    return collect_ranges(_read_lines(data, source), source)


def _read_lines(data: bytes, source: str) -> Iterator[RangeEntry]:
    lines = list(filled_lines(data, source))
    for line, text in lines:
        name, space, amax = text.rstrip().rpartition(" ")
        if not (space and name):
            raise TableError(f"'{source}' line {line} is not 'tensor amax': '{text[:80]}'")
        yield RangeEntry(name, number(amax, source, line), line)
    if lines:
        _warn_of_lost_ends(source)


def _json_entries(document: Any) -> list[RangeEntry]:
    return [
        RangeEntry(name, largest_magnitude((*_values(ends["lowest"]), *_values(ends["highest"]))))
        for name, ends in document["data"].items()
    ]


def _values(end: Any) -> list[float]:
    """One end of a tensor's values: a number, or a NumPy array as ONNX Runtime writes it in JSON."""
    data = end["data"] if isinstance(end, dict) else end
    return [float(value) for value in (data if isinstance(data, list) else [data])]


def _render_json(ranges: Mapping[str, float]) -> bytes:
    """Writes the JSON form, with symmetric ends."""
    tensors = {name: {"lowest": -amax, "highest": amax, "CLS": "TensorData"} for name, amax in ranges.items()}
    method = {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}
    return json.dumps({"CLS": "TensorsData", "data": tensors, "calibration_method": method}).encode()


def _read_flatbuffers(data: bytes, source: str) -> Iterator[RangeEntry]:
    try:
        pairs = _pairs(data)
    except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
        raise TableError(f"'{source}' is not a FlatBuffers calibration table: {error}") from error
    for place, (name, amax) in enumerate(pairs, start=1):
        yield RangeEntry(name, number(amax, source, place))
    if pairs:
        _warn_of_lost_ends(source)


def _pairs(data: bytes) -> list[tuple[str, str]]:
    """The keys and values of a ``TrtTable``."""
    root = Table(data, int.from_bytes(data[:_OFFSET_SIZE], "little"))
    field = root.Offset(_FIRST_FIELD)
    if not field:
        return []
    first, count = root.Vector(field), root.VectorLen(field)
    pairs, letters = [], 0
    if count > MOST_TENSORS:
        raise ValueError(f"it has {count:,} entries")
    for index in range(count):
        entry = Table(data, root.Indirect(first + number_types.UOffsetTFlags.py_type(index) * _OFFSET_SIZE))
        pairs.append((_string(entry, _FIRST_FIELD), _string(entry, _SECOND_FIELD)))
        letters += sum(map(len, pairs[-1]))
        if letters > len(data):  # a small file could fill memory with one text
            raise ValueError("its texts overlap")
    return pairs


def _string(table: Table, place: int) -> str:
    position = table.Indirect(table.Pos + table.Offset(place))
    start = position + _OFFSET_SIZE
    length = int.from_bytes(table.Bytes[position:start], "little")
    text: bytes = table.Bytes[start : start + length]
    if len(text) != length:  # slices do not complain
        raise ValueError("it is truncated")
    return text.decode()


def _render_flatbuffers(ranges: Mapping[str, float]) -> bytes:
    """Writes the FlatBuffers form, sorted by name as ONNX Runtime does."""
    builder = flatbuffers.Builder(1024)
    entries = []
    for name, amax in sorted(ranges.items()):
        key, value = builder.CreateString(name), builder.CreateString(repr(amax))
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, key, 0)
        builder.PrependUOffsetTRelativeSlot(1, value, 0)
        entries.append(builder.EndObject())
    builder.StartVector(_OFFSET_SIZE, len(entries), _OFFSET_SIZE)
    # A vector is written from its end.
    for entry in reversed(entries):
        builder.PrependUOffsetTRelative(entry)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _warn_of_lost_ends(source: str) -> None:
    warn_user(
        f"'{source}' has one number per tensor, which ONNX Runtime takes from the larger end alone; ranges "
        "that reach further below zero are too narrow in it, so prefer the calibration.json beside it"
    )


JSON = RangesFormat(
    "onnxruntime-json",
    ".json",
    lambda data, source: read_json(data, source, "a calibration table of ONNX Runtime", _json_entries),
    _render_json,
    lambda document: isinstance(document, dict) and document.get("CLS") == "TensorsData",
)
FLATBUFFERS = RangesFormat("onnxruntime", ".flatbuffers", _read_flatbuffers, _render_flatbuffers)
