"""Code of the user's that the command line names as MODULE:NAME."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from calibrators.error_text import in_one_line
from calibrators.errors import CalibrationDataError

_OWN = re.compile(r"(?!random:)([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


def named_object(text: str, kind: str, otherwise: str, wanted: str) -> Any:
    """The object that MODULE:NAME names, where a text has that form.

    The module is looked for in the current folder first, as ``python -m`` does.

    Args:
        text: The text.
        kind: What it stands for, for messages, such as ``data``.
        otherwise: What else it might be, for messages, such as ``a file``.
        wanted: What the module should have, for messages.

    Returns:
        The object; None where the text has another form.

    Raises:
        CalibrationDataError: The module cannot be imported, or has no such name.
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
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
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
