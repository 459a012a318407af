"""Tables of plain ranges: text, CSV, and the JSON that PPQ (OpenPPL) exports for TensorRT.

Text has lines ``tensor: amax``. CSV has lines ``tensor,amax`` below a header. PPQ's JSON is
``{"act_quant_info": {tensor: amax}}``; its own script gives each magnitude to TensorRT as a symmetric range.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from calibrators.errors import TableError
from calibrators.tables.formats.common import (
    RangeEntry,
    RangesFormat,
    check_line_names,
    decoded,
    filled_lines,
    largest_magnitude,
    number,
    read_json,
    split_lines,
    warn_widened,
)

_HEADER = ["tensor", "amax"]


def _read_text(data: bytes, source: str) -> Iterator[RangeEntry]:
    """Reads lines ``tensor: amax`` or ``tensor: min, max``, as TensorRT's INT8 sample has them.

    Empty lines and those that begin with ``#`` are skipped. A (min, max) becomes the larger of |min| and
    |max|, with a warning where it got wider.
    """
    ends: dict[str, tuple[float, float]] = {}
    empty = True
    for line, text in filled_lines(data, source):
        if text.lstrip().startswith("#"):
            continue
        # Tensor names may hold colons, numbers never do.
        name, colon, values = text.rpartition(":")
        parts = values.split(",")
        if not (colon and name.strip() and len(parts) in (1, 2)):
            raise TableError(f"'{source}' line {line} is not 'tensor: range': '{text[:80]}'")
        numbers = [number(part, source, line) for part in parts]
        if len(numbers) == 2:
            ends[name.strip()] = (numbers[0], numbers[1])
        empty = False
        amax = largest_magnitude(numbers) if len(numbers) == 2 else numbers[0]
        yield RangeEntry(name.strip(), amax, line)
    if empty:
        raise TableError(f"'{source}' holds no ranges; write one line 'tensor: range' per tensor")
    warn_widened(ends)


def _render_text(ranges: Mapping[str, float]) -> bytes:
    """Writes lines ``tensor: amax``, with every digit of the numbers."""
    check_line_names(
        ranges, "a text table", lambda name: bool(name) and name == name.strip() and name[0] != "#"
    )
    return "".join(f"{name}: {amax!r}\n" for name, amax in ranges.items()).encode()


def _read_csv(data: bytes, source: str) -> Iterator[RangeEntry]:
    """Reads CSV with the columns ``tensor`` and ``amax``; other columns are ignored."""
    text = decoded(data, source)
    split_lines(text, source)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        missing = [column for column in _HEADER if column not in (reader.fieldnames or ())]
        if missing:
            raise TableError(f"'{source}' has no column '{missing[0]}'; its first line must be tensor,amax")
        for row in reader:
            line = reader.line_num
            if not row["tensor"]:
                raise TableError(f"'{source}' line {line} has no tensor; add its name or remove the line")
            yield RangeEntry(row["tensor"], number(row["amax"] or "", source, line), line)
    except csv.Error as error:
        raise TableError(f"'{source}' is not CSV: {error}; write lines tensor,amax") from error


def _render_csv(ranges: Mapping[str, float]) -> bytes:
    """Writes CSV with a header, with every digit of the numbers."""
    check_line_names(ranges, "a CSV table")
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_HEADER)
    writer.writerows((name, repr(amax)) for name, amax in ranges.items())
    return stream.getvalue().encode()


TEXT = RangesFormat("text", ".txt", _read_text, _render_text)
CSV = RangesFormat("csv", ".csv", _read_csv, _render_csv)


_KEY = "act_quant_info"


def _entries(document: Any) -> list[RangeEntry]:
    return [RangeEntry(name, abs(float(value))) for name, value in document[_KEY].items()]


def _render(ranges: Mapping[str, float]) -> bytes:
    return (json.dumps({_KEY: dict(ranges)}, indent=4, ensure_ascii=False) + "\n").encode()


PPQ = RangesFormat(
    "ppq",
    ".json",
    lambda data, source: read_json(data, source, "a table of PPQ", _entries),
    _render,
    lambda document: isinstance(document, dict) and _KEY in document,
)
