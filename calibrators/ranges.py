"""Dynamic ranges as users give them."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from calibrators.errors import TableError
from calibrators.table import CalibrationTable, is_table_name

#: Tensor name to amax, or to (min, max); or the path of a text file, a table or a cache.
DynamicRanges = Mapping[str, float | tuple[float, float]] | str | os.PathLike[str]


def read_ranges(ranges: DynamicRanges) -> dict[str, float]:
    """Brings dynamic ranges to one positive number a tensor.

    Args:
        ranges: Tensor name to amax or to TensorRT's (min, max); or a table or calibration cache (``.json``,
            ``.cache``); or any other file as text, with a line ``tensor: amax`` or ``tensor: min, max``
            each, as TensorRT's INT8 sample has it. ``#`` begins a comment line.

    Returns:
        Tensor name to amax.

    Raises:
        TableError: The file or a line is malformed, or a range is not positive and finite.

    Warns:
        UserWarning: A (min, max) is not symmetric; INT8 is, so the wider side counts for both.
    """
    given = _read(Path(ranges)) if isinstance(ranges, (str, os.PathLike)) else ranges
    widened = []
    result = {}
    for name, value in given.items():
        amax = _amax(name, value)
        if isinstance(value, tuple) and -value[0] != value[1]:
            widened.append(f"'{name}' ({value[0]:g}, {value[1]:g})")
        result[name] = amax
    if widened:
        warnings.warn(
            "INT8 is symmetric, so ranges got wider, to the larger of |min| and |max|: "
            + ", ".join(widened[:5])
            + (f" and {len(widened) - 5} more" if len(widened) > 5 else ""),
            UserWarning,
            stacklevel=2,
        )
    return result


def _amax(name: str, value: float | tuple[float, float]) -> float:
    try:
        low, high = value if isinstance(value, tuple) else (-value, value)
        amax = float(max(abs(low), abs(high)))
        valid = 0 < amax < math.inf and low <= high
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise TableError(
            f"the dynamic range of '{name}' is {value!r}; give a positive number, or (min, max) with min "
            "below max"
        )
    return amax


def _read(path: Path) -> Mapping[str, float | tuple[float, float]]:
    return CalibrationTable.load(path).amax if is_table_name(path) else _parse(path)


def _parse(path: Path) -> dict[str, float | tuple[float, float]]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"cannot read the dynamic ranges '{path}': {error}") from error
    ranges: dict[str, float | tuple[float, float]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        # Tensor names hold colons themselves, numbers never do.
        name, colon, numbers = line.rpartition(":")
        try:
            values = [float(part) for part in numbers.split(",")]
        except ValueError:
            values = []
        name = name.strip()
        if not (colon and name and len(values) in (1, 2)):
            raise TableError(f"'{path}' line {number} is not 'tensor: range': '{line[:80]}'")
        if name in ranges:
            raise TableError(f"'{path}' line {number}: tensor '{name}' stands twice; remove one of the lines")
        ranges[name] = values[0] if len(values) == 1 else (values[0], values[1])
    if not ranges:
        raise TableError(f"'{path}' holds no dynamic ranges; write a line 'tensor: range' each")
    return ranges
