"""Numbers as texts, in the same form throughout a report.

Estimated times in words, in the unit in which `trtint8 audit` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from trtint8.validation.meters import DECIBELS
from trtint8.validation.significance import Share

#: A number and its unit stay on one line.
_SPACE = "\N{NO-BREAK SPACE}"

#: Shares below this one would be shown as 0.000 %.
_TINY = 5e-6


def decibels(value: float | None) -> str:
    """A level, such as ``25.7 dB``; ``exact`` where there is no noise, a dash where it is not known."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "not a number"
    if not math.isfinite(value):
        return "exact" if value > 0 else "no signal"
    return f"{value:.1f}{_SPACE}dB".replace("-", "\N{MINUS SIGN}")


def percentage(share: float | None, digits: int = 1) -> str:
    """A share in per cent; a dash where it is not known.

    Args:
        share: The share, where 1 is all; or None.
        digits: Number of digits after the point.
    """
    if share is None:
        return "–"
    return f"{100 * share:.{digits}f}{_SPACE}%" if math.isfinite(share) else "\N{INFINITY}"


def figure(value: float, unit: str) -> str:
    """The value of a metric with its unit.

    Args:
        value: The value: in per cent where the unit is ``%``.
        unit: ``%``, ``dB``, or empty for a unit of the metric's own.
    """
    if math.isnan(value) or (unit == DECIBELS and math.isinf(value)):
        return decibels(value)
    return f"{value:.2f}{_SPACE}{unit}".replace("-", "\N{MINUS SIGN}") if unit else number(value)


def small_percentage(share: float) -> str:
    """A share that is usually tiny, such as that of clipped values, in per cent."""
    if not share:
        return f"0{_SPACE}%"
    return f"<{_SPACE}0.001{_SPACE}%" if share < _TINY else f"{100 * share:.3f}{_SPACE}%"


def interval(share: Share) -> str:
    """The 95 % interval of a share, in per cent."""
    low, high = share.interval
    return f"{100 * low:.1f}–{100 * high:.1f}{_SPACE}%"


def number(value: float, digits: int = 4) -> str:
    """A number with some significant digits."""
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def size(count: int | None) -> str:
    """A number of bytes in bytes, kB, MB or GB, which are powers of 1000; a dash where it is not known."""
    if count is None:
        return "–"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.{1 if unit == 'kB' else 2}f}{_SPACE}{unit}"
    return f"{count}{_SPACE}bytes"


def duration(seconds: float | None, among: Iterable[float | None] = ()) -> str:
    """A time in milliseconds or microseconds; a dash where it is not known.

    Args:
        seconds: The time, or None.
        among: All times that are compared, which are in the same unit; the time alone where empty.
    """
    if seconds is None:
        return "–"
    return time_text(seconds, tuple(among) or (seconds,)).replace(" ", _SPACE)


def times(ratio: float) -> str:
    """A ratio, such as ``1.50×``."""
    return f"{ratio:.2f}×"


def sentence(text: str) -> str:
    """Returns a message as a sentence: with a capital letter and a full stop."""
    return full_stop(f"{text[:1].upper()}{text[1:]}")


def full_stop(text: str) -> str:
    """Returns a message with a full stop at its end."""
    return f"{text.rstrip('.')}."


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


def layers_text(names: Sequence[str], most: int) -> str:
    """The first names of layers, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
