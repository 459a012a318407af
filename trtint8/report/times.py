"""Estimated times in words, in the unit in which `trtint8 audit` prints them."""

from __future__ import annotations

from collections.abc import Iterable

#: Where one is below this time, in seconds, times are shown in microseconds.
_SHORT = 1e-5


def time_text(seconds: float, among: Iterable[float | None]) -> str:
    """A time in milliseconds, or in microseconds where the shortest of those beside it is short.

    Args:
        seconds: The time.
        among: All times that are compared, in seconds; None where one is not known.
    """
    shortest = min((one for one in among if one is not None), default=seconds)
    factor, unit = (1e6, "us") if shortest < _SHORT else (1e3, "ms")
    return f"{factor * seconds:.3f} {unit}"
