"""Warnings that name a line of the user's, however deep in the two packages they are found."""

from __future__ import annotations

import inspect
import warnings

#: Packages and modules that are no user's: the two packages, and what calls their context managers.
_PASSED_OVER = frozenset({"calibrators", "trtint8", "contextlib"})


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns, at the line outside the two packages that led here.

    Modules are told by their names and not by their files: the ``__init__`` of a data class has no file.

    Args:
        message: What the user should know, and what to do.
        category: The warning's class.
    """
    level, frame = 1, inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
