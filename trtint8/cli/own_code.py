"""Code of the user's that the command line names as MODULE:NAME."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrators.error_text import in_one_line
from calibrators.errors import CalibrationDataError
from calibrators.own_modules import find_own_module

_OWN = re.compile(r"(?!random:)([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


def named_object(text: str, kind: str, otherwise: str, wanted: str) -> Any:
    """The object that MODULE:NAME names, where a text has that form.

    The module is one that is installed, or a file of the current folder. Nothing else is ever imported from
    that folder, except by the module itself: see :mod:`calibrators.own_modules`.

    Args:
        text: The text.
        kind: What it stands for, for messages, such as ``data``.
        otherwise: What else it might be, for messages, such as ``a file``.
        wanted: What the module should have, for messages.

    Returns:
        The object; None where the text has another form.

    Raises:
        CalibrationDataError: The module cannot be imported, is both installed and a file of the current
            folder, or has no such name.
    """
    found = _OWN.fullmatch(text)
    if found is None:
        return None
    value = getattr(_imported(found[1], f"the {kind} '{text}'", otherwise), found[2], None)
    if value is None:
        raise CalibrationDataError(
            f"the {kind} '{text}': the module '{found[1]}' has no '{found[2]}'; name {wanted}"
        )
    return value


def _imported(name: str, what: str, otherwise: str) -> Any:
    importlib.invalidate_caches()
    folder, top = str(Path.cwd()), name.partition(".")[0]
    if _is_twice(top, folder):
        raise CalibrationDataError(
            f"{what}: there is a module '{top}' in the current folder, and another one is installed; rename "
            "that in the current folder"
        )
    find_own_module(top, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise CalibrationDataError(
                f"{what} is neither {otherwise} nor a function: there is no module '{error.name}' in the "
                "current folder or among what is installed; check the spelling"
            ) from error
        raise CalibrationDataError(
            f"{what}: the module '{name}' cannot be imported: {in_one_line(error)}; correct it"
        ) from error


def _is_twice(name: str, folder: str) -> bool:
    """Whether a folder has a module, not imported yet, of a name that an installed one has."""
    here = PathFinder.find_spec(name, [folder])
    if name in sys.modules or here is None or here.origin is None:  # a folder without __init__.py gives way
        return False
    there = find_spec(name)
    return there is not None and there.origin != here.origin
