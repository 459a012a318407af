"""The names of files that hold calibration tables: their endings say what format they have."""

from __future__ import annotations

import os
from pathlib import Path

from calibrators.errors import TableError
from calibrators.tables.formats.registry import SUFFIXES

#: Endings of the files that hold tables.
TABLE_SUFFIXES = (".json", ".cache", *SUFFIXES)


def is_table_name(path: str | os.PathLike[str]) -> bool:
    """Whether a file's ending names a table format."""
    return Path(path).suffix.lower() in TABLE_SUFFIXES


def check_table_name(path: str | os.PathLike[str]) -> Path:
    """Refuses a file name whose ending names no table format, before any work is done for it.

    Raises:
        TableError: The ending is none of :data:`TABLE_SUFFIXES`.
    """
    if not is_table_name(path):
        raise TableError(
            f"cannot tell the table format of '{path}': end it in {', '.join(TABLE_SUFFIXES[:-1])} or "
            f"{TABLE_SUFFIXES[-1]}"
        )
    return Path(path)
