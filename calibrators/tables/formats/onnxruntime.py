"""The calibration tables of ONNX Runtime's TensorRT execution provider.

ONNX Runtime's ``write_calibration_table`` writes one calibration three times: as JSON with the least and the
largest value of every tensor; as a FlatBuffer (``table TrtTable { dict: [KeyValue]; }``,
``table KeyValue { key: string; value: string; }``) and as plain lines ``tensor amax``, both of them with one
number. That number is the larger of the two values, not of their magnitudes, so a tensor that reaches further
below zero than above is too narrow in those two. Only the JSON can be mended, and is.
"""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Mapping
from typing import Any

import flatbuffers
from flatbuffers import number_types
from flatbuffers.table import Table

from calibrators.errors import TableError
from calibrators.tables.formats.values import add_range, decoded, number

# Fields of a FlatBuffers table are found by their place in its vtable, two bytes each from 4 on.
_FIRST_FIELD, _SECOND_FIELD = 4, 6
_OFFSET_SIZE = 4


def looks_like_json(document: Any) -> bool:
    """Whether a JSON document is one of these."""
    return isinstance(document, dict) and document.get("CLS") == "TensorsData"


def parse_json(data: bytes, source: str) -> dict[str, float]:
    """Reads the JSON form, with the larger magnitude of each tensor's two ends.

    Args:
        data: The file's content.
        source: What to call it in messages.

    Returns:
        Tensor name to amax.

    Raises:
        TableError: It is malformed, or a tensor has no finite ends.
    """
    try:
        tensors = json.loads(data)["data"].items()
        ends = {name: (_values(entry["lowest"]), _values(entry["highest"])) for name, entry in tensors}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TableError(
            f"'{source}' is not a calibration table of ONNX Runtime ({type(error).__name__}: {error})"
        ) from error
    ranges: dict[str, float] = {}
    for name, (low, high) in ends.items():
        add_range(ranges, name, max(map(abs, (*low, *high))), source)
    return ranges


def render_json(ranges: Mapping[str, float]) -> bytes:
    """Writes the JSON form, with symmetric ends."""
    tensors = {name: {"lowest": -amax, "highest": amax, "CLS": "TensorData"} for name, amax in ranges.items()}
    method = {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}
    return json.dumps({"CLS": "TensorsData", "data": tensors, "calibration_method": method}).encode()


def parse_flatbuffers(data: bytes, source: str) -> dict[str, float]:
    """Reads the FlatBuffers form.

    Args:
        data: The file's content.
        source: What to call it in messages.

    Returns:
        Tensor name to amax.

    Raises:
        TableError: It is malformed, or a value is not a number of 0 or more.

    Warns:
        UserWarning: The values may be too narrow, see above.
    """
    try:
        pairs = list(_pairs(data))
    except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
        raise TableError(f"'{source}' is not a FlatBuffers calibration table: {error}") from error
    ranges: dict[str, float] = {}
    for line, (name, text) in enumerate(pairs, start=1):
        add_range(ranges, name, number(text, source, line), source)
    _warn_of_lost_ends(source)
    return ranges


def render_flatbuffers(ranges: Mapping[str, float]) -> bytes:
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


def parse_lines(data: bytes, source: str) -> dict[str, float]:
    """Reads the plain form, ``tensor amax`` a line; names may hold spaces.

    Args:
        data: The file's content.
        source: What to call it in messages.

    Returns:
        Tensor name to amax.

    Raises:
        TableError: A line is malformed, or a value is not a number of 0 or more.

    Warns:
        UserWarning: The values may be too narrow, see above.
    """
    ranges: dict[str, float] = {}
    for place, line in enumerate(decoded(data, source).splitlines(), start=1):
        name, space, text = line.rstrip().rpartition(" ")
        if not line.strip():
            continue
        if not (space and name):
            raise TableError(f"'{source}' line {place} is not 'tensor amax': '{line[:80]}'")
        add_range(ranges, name, number(text, source, place), source, place)
    _warn_of_lost_ends(source)
    return ranges


def _values(end: Any) -> list[float]:
    """One end of a tensor: a number, or an array of NumPy as ONNX Runtime spells it."""
    data = end["data"] if isinstance(end, dict) else end
    return [float(value) for value in (data if isinstance(data, list) else [data])]


def _pairs(data: bytes) -> list[tuple[str, str]]:
    root = Table(data, int.from_bytes(data[:_OFFSET_SIZE], "little"))
    field = root.Offset(_FIRST_FIELD)
    if not field:
        return []
    first = root.Vector(field)
    pairs = []
    for index in range(root.VectorLen(field)):
        entry = Table(data, root.Indirect(first + number_types.UOffsetTFlags.py_type(index) * _OFFSET_SIZE))
        pairs.append((_string(entry, _FIRST_FIELD), _string(entry, _SECOND_FIELD)))
    return pairs


def _string(table: Table, place: int) -> str:
    position = table.Indirect(table.Pos + table.Offset(place))
    start = position + _OFFSET_SIZE
    length = int.from_bytes(table.Bytes[position:start], "little")
    text: bytes = table.Bytes[start : start + length]
    if len(text) != length:  # slices do not complain
        raise ValueError("it is truncated")
    return text.decode()


def _warn_of_lost_ends(source: str) -> None:
    warnings.warn(
        f"'{source}' has one number a tensor, which ONNX Runtime takes from the larger end alone; ranges "
        "that reach further below zero are too narrow in it, so prefer the calibration.json beside it",
        UserWarning,
        stacklevel=3,
    )
