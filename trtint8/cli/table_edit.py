"""`trtint8 table edit`: a table as text in the user's editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from calibrators import records
from calibrators.errors import TableError
from calibrators.tables.formats.plain import TEXT
from calibrators.tables.table import CalibrationTable

_HEADER = (
    "# One tensor and its range (amax) per line. Change numbers, add lines, delete lines; histograms stay.\n"
    "# Lines that begin with # are ignored. The file is read when the editor ends.\n"
)


def edit(table: CalibrationTable) -> CalibrationTable | None:
    """Opens a table in the editor that ``VISUAL`` or ``EDITOR`` names, else vi.

    Args:
        table: The table to edit.

    Returns:
        The table with the changes, whose ranges count as set by hand; None where nothing was changed.

    Raises:
        TableError: The editor fails, or what it left is no table; the text is kept and named.
    """
    named = (os.environ.get(name, "").strip() for name in ("VISUAL", "EDITOR"))
    editor = next(filter(None, named), "vi")
    try:
        command = shlex.split(editor)
    except ValueError as error:
        raise TableError(
            f"the editor '{editor}' is no command ({error}); set the environment variable EDITOR"
        ) from error
    handle, name = tempfile.mkstemp(prefix="trtint8-", suffix=".txt")
    with os.fdopen(handle, "wb") as stream:
        stream.write(_HEADER.encode() + TEXT.render(table.amax))
    try:
        status = subprocess.run([*command, name], check=False).returncode
    except OSError as error:
        Path(name).unlink()
        raise TableError(
            f"cannot start the editor '{command[0]}': {error.strerror}; set the environment variable EDITOR"
        ) from error
    if status != 0:
        raise TableError(f"the editor '{command[0]}' failed with status {status}; your text is in '{name}'")
    try:
        with records.reading("the edited text", TableError):
            edited = _changed(table, TEXT.parse(records.read_bytes(name), name))
    except TableError as error:
        raise TableError(f"{error.template}; nothing was changed, and your text is in '{name}'") from error
    Path(name).unlink()
    return edited


def _changed(table: CalibrationTable, ranges: dict[str, float]) -> CalibrationTable | None:
    changed = {name: amax for name, amax in ranges.items() if table.amax.get(name) != amax}
    removed = [name for name in table.amax if name not in ranges]
    if not (changed or removed):
        return None
    edited = table.override(changed)
    return edited.without(removed) if removed else edited
