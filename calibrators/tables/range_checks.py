"""Checks of the names and the ranges that a calibration table is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from calibrators import records
from calibrators.checks import is_number
from calibrators.display.counts import enumerated
from calibrators.errors import TableError

#: The largest range whose scale, of symmetric INT8, is a float32.
_LARGEST_AMAX = 127 * float(np.finfo(np.float32).max)


def check_names(names: Iterable[object]) -> None:
    """Refuses what is no text that files can hold.

    Args:
        names: Names of tensors and methods.

    Raises:
        TableError: One is no text, or holds half of a character.
    """
    for name in names:
        if not isinstance(name, str):
            raise TableError(f"the name {name!r:.80} is no text; give names of tensors")
        if not _is_unicode(name):
            raise TableError(f"the name {name!r:.80} holds a lone surrogate, which is no text; correct it")


def check_lines(texts: Iterable[object]) -> None:
    """Refuses fingerprints, names of tools and versions that a table's file does not hold.

    Args:
        texts: All of them.

    Raises:
        TableError: One is no text of the form of :data:`calibrators.records.Line`.
    """
    for text in texts:
        if not records.is_line(text):
            raise TableError(
                f"the provenance of a table holds {text!r:.80}, which is no text of one line and at most 200 "
                "characters; give the fingerprint of the model or of the samples, or a tool and its version"
            )


def check_ranges(ranges: Mapping[str, object]) -> None:
    """Refuses ranges of which one is no number that a table holds: not negative, and with a float32 scale.

    Raises:
        TableError: There is one.
    """
    bad = {name: value for name, value in ranges.items() if not _is_range(value)}
    _refuse(bad, "a range must be a number that is not negative, and no larger than a float32 holds")


def check_ranges_by_hand(ranges: Mapping[str, object]) -> None:
    """Refuses the same, and zero, which nobody sets by hand, with what is zero as a float32.

    Raises:
        TableError: There is one.
    """
    bad = {name: value for name, value in ranges.items() if not (_is_range(value) and _has_scale(value))}
    _refuse(
        bad, "a range set by hand must be a positive number, neither too small nor too large for a float32"
    )


def _refuse(bad: Mapping[str, object], rule: str) -> None:
    if bad:
        shown = enumerated(f"'{name}' ({value!r:.80})" for name, value in bad.items())
        raise TableError(f"{rule}: {shown}")


def _is_range(value: object) -> bool:
    try:
        return is_number(value) and 0 <= float(value) <= _LARGEST_AMAX  # type: ignore[arg-type]
    except OverflowError:  # an integer larger than any float
        return False


def _has_scale(amax: object) -> bool:
    """Whether the scale of symmetric INT8 is more than 0 as a float32."""
    return bool(np.float32(float(amax) / 127) > 0)  # type: ignore[arg-type]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
