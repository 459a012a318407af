"""What the readers of outside formats share: text, numbers and ranges that are what they should be."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

from calibrators.errors import TableError


def decoded(data: bytes, source: str) -> str:
    """The file as text.

    Raises:
        TableError: It is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TableError(f"'{source}' is not text: byte {error.start} is no UTF-8") from error


def number(text: str, source: str, line: int) -> float:
    """A number from a line.

    Raises:
        TableError: It is none.
    """
    try:
        return float(text)
    except ValueError:
        raise TableError(f"'{source}' line {line}: '{text.strip()[:40]}' is not a number") from None


def add_range(ranges: dict[str, float], name: str, amax: float, source: str, line: int | None = None) -> None:
    """Adds one tensor's range.

    Raises:
        TableError: The tensor stands twice, or the range is not finite and 0 or more.
    """
    place = f"'{source}'" + (f" line {line}" if line is not None else "")
    if name in ranges:
        raise TableError(f"{place}: tensor '{name}' stands twice; remove one of them")
    if not 0 <= amax < math.inf:
        raise TableError(f"{place}: the range of '{name}' is {amax}; it must be a number of 0 or more")
    ranges[name] = amax


def warn_widened(ends: Mapping[str, tuple[float, float]]) -> None:
    """Says which ranges got wider because INT8 is symmetric.

    Args:
        ends: Tensor name to (min, max) as it was given.
    """
    widened = [f"'{name}' ({low:g}, {high:g})" for name, (low, high) in ends.items() if -low != high]
    if widened:
        warnings.warn(
            "INT8 is symmetric, so ranges got wider, to the larger of |min| and |max|: "
            + ", ".join(widened[:5])
            + (f" and {len(widened) - 5} more" if len(widened) > 5 else ""),
            UserWarning,
            stacklevel=3,
        )
