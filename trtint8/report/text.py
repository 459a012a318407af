"""Numbers as words: the same form everywhere in a report."""

from __future__ import annotations

import math

from markupsafe import Markup, escape

from trtint8.validation.significance import Share

#: A number and its unit stay on one line.
_SPACE = "\N{NO-BREAK SPACE}"

#: Below this share of all values, three digits would all be zeros.
_TINY = 5e-6


def decibels(value: float | None) -> str:
    """A level: ``25.7 dB``; ``exact`` where there is no noise, a dash where it is not known."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "not a number"
    if not math.isfinite(value):
        return "exact" if value > 0 else "no signal"
    return f"{value:.1f}{_SPACE}dB".replace("-", "\N{MINUS SIGN}")


def percentage(share: float | None, digits: int = 1) -> str:
    """A share of 1 in per cent; a dash where it is not known."""
    if share is None:
        return "–"
    return f"{100 * share:.{digits}f}{_SPACE}%" if math.isfinite(share) else "\N{INFINITY}"


def small_percentage(share: float) -> str:
    """A share that is mostly tiny, such as what a range cuts off."""
    if not share:
        return f"0{_SPACE}%"
    return f"<{_SPACE}0.001{_SPACE}%" if share < _TINY else f"{100 * share:.3f}{_SPACE}%"


def interval(share: Share) -> str:
    """The 95 % interval of a share, in per cent."""
    low, high = share.interval
    return f"{100 * low:.1f}–{100 * high:.1f}{_SPACE}%"


def number(value: float, digits: int = 4) -> str:
    """A magnitude with a few significant digits."""
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def size(count: int | None) -> str:
    """Bytes, in units of 1000."""
    if count is None:
        return "–"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.{1 if unit == 'kB' else 2}f}{_SPACE}{unit}"
    return f"{count}{_SPACE}bytes"


def times(ratio: float) -> str:
    """How many times as much."""
    return f"{ratio:.2f}×"


def breakable(name: str) -> Markup:
    """A name of many parts, which a line may break after each."""
    return Markup("/<wbr>").join(map(escape, name.split("/")))
