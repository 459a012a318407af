"""Ranges as plain text (``tensor: amax`` a line) and as CSV (``tensor,amax`` with a header)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from calibrators.errors import TableError
from calibrators.tables.formats.values import add_range, decoded, number, warn_widened

_HEADER = ["tensor", "amax"]


def parse_text(data: bytes, source: str) -> dict[str, float]:
    """Reads ``tensor: amax`` or ``tensor: min, max`` lines, as TensorRT's INT8 sample has them.

    Empty lines and those that begin with ``#`` are passed over.

    Args:
        data: The file's content.
        source: What to call it in messages.

    Returns:
        Tensor name to amax, the larger of |min| and |max|.

    Raises:
        TableError: There are none, a line is malformed, or a range is not finite.

    Warns:
        UserWarning: A (min, max) is not symmetric, so its range got wider.
    """
    ranges: dict[str, float] = {}
    ends: dict[str, tuple[float, float]] = {}
    for place, line in enumerate(decoded(data, source).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        # Tensor names hold colons themselves, numbers never do.
        name, colon, text = line.rpartition(":")
        numbers = text.split(",")
        if not (colon and name.strip() and len(numbers) in (1, 2)):
            raise TableError(f"'{source}' line {place} is not 'tensor: range': '{line[:80]}'")
        values = [number(part, source, place) for part in numbers]
        amax = max(map(abs, values)) if len(values) == 2 else values[0]
        add_range(ranges, name.strip(), amax, source, place)
        if len(values) == 2:
            ends[name.strip()] = (values[0], values[1])
    if not ranges:
        raise TableError(f"'{source}' holds no ranges; write a line 'tensor: range' each")
    warn_widened(ends)
    return ranges


def render_text(ranges: Mapping[str, float]) -> bytes:
    """Writes ``tensor: amax`` lines, every digit of the numbers kept."""
    return "".join(f"{name}: {amax!r}\n" for name, amax in ranges.items()).encode()


def parse_csv(data: bytes, source: str) -> dict[str, float]:
    """Reads CSV with the columns ``tensor`` and ``amax``; others are passed over.

    Args:
        data: The file's content.
        source: What to call it in messages.

    Returns:
        Tensor name to amax.

    Raises:
        TableError: A column is missing, or a range is not a number of 0 or more.
    """
    reader = csv.DictReader(io.StringIO(decoded(data, source), newline=""))
    missing = [column for column in _HEADER if column not in (reader.fieldnames or ())]
    if missing:
        raise TableError(f"'{source}' has no column '{missing[0]}'; its first line must be tensor,amax")
    ranges: dict[str, float] = {}
    for row in reader:
        amax = number(row["amax"] or "", source, reader.line_num)
        add_range(ranges, row["tensor"], amax, source, reader.line_num)
    return ranges


def render_csv(ranges: Mapping[str, float]) -> bytes:
    """Writes CSV with a header, every digit of the numbers kept."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_HEADER)
    writer.writerows((name, repr(amax)) for name, amax in ranges.items())
    return stream.getvalue().encode()
