"""Dynamic ranges as users give them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from calibrators import records
from calibrators.checks import check_mapping
from calibrators.errors import TableError
from calibrators.tables.file_names import is_table_name
from calibrators.tables.formats.plain import TEXT
from calibrators.tables.formats.values import warn_widened
from calibrators.tables.table import CalibrationTable

#: Tensor name to amax or to (min, max); or the path of a table of any format, or of a text file.
DynamicRanges = Mapping[str, float | tuple[float, float]] | str | os.PathLike[str]


def read_ranges(ranges: DynamicRanges) -> dict[str, float]:
    """Brings dynamic ranges to one positive number per tensor.

    Args:
        ranges: Tensor name to amax or to TensorRT's (min, max); or a file that
            :meth:`CalibrationTable.load` reads; or any other file as text, with one line ``tensor: amax`` or
            ``tensor: min, max`` per tensor.

    Returns:
        Tensor name to amax.

    Raises:
        TableError: The file cannot be read or is malformed, or a range is not positive and finite.

    Warns:
        UserWarning: A (min, max) is not symmetric. INT8 is, so its amax becomes the larger of |min| and
            |max|.
    """
    given = _read(Path(ranges)) if isinstance(ranges, (str, os.PathLike)) else ranges
    check_mapping("dynamic_ranges", given, "from tensor name to range, or a file", TableError)
    result = {name: _amax(name, value) for name, value in given.items()}
    warn_widened({name: value for name, value in given.items() if isinstance(value, tuple)})
    return result


def _read(path: Path) -> Mapping[str, float]:
    if is_table_name(path):
        return CalibrationTable.load(path).amax
    with records.reading(f"the dynamic ranges '{path}'", TableError):
        return TEXT.parse(records.read_bytes(path), str(path))


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
