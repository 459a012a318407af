"""The names of files that hold calibration tables: their endings say what format they have."""

from __future__ import annotations

import os
from pathlib import Path

from calibrators.checks import check_choice, refuse_ending_alone
from calibrators.errors import TableError
from calibrators.tables.formats.registry import FORMATS, SUFFIXES

#: Endings of the files that hold tables.
TABLE_SUFFIXES = (".json", ".cache", *SUFFIXES)


def is_table_name(path: str | os.PathLike[str]) -> bool:
    """Whether a file's ending names a table format."""
    return Path(path).suffix.lower() in TABLE_SUFFIXES


def check_table_name(path: str | os.PathLike[str]) -> Path:
    """Refuses a file name whose ending names no table format, before any work is done for it.

    Raises:
        TableError: The ending is none of :data:`TABLE_SUFFIXES`, or the whole name.
    """
    refuse_ending_alone(path, TABLE_SUFFIXES, TableError)
    if not is_table_name(path):
        raise TableError(
            f"cannot tell the table format of '{path}': end it in {', '.join(TABLE_SUFFIXES[:-1])} or "
            f"{TABLE_SUFFIXES[-1]}"
        )
    return Path(path)


def check_format_name(path: str | os.PathLike[str], format_name: str) -> None:
    """Refuses a file name under which a format would not be read back.

    Args:
        path: The file; its ending may be one that names no format where the format is JSON, which is
            recognized by its content.
        format_name: A key of :data:`calibrators.tables.formats.registry.FORMATS`.

    Raises:
        TableError: There is no such format, the ending names another or is the whole name, or it names none
            and the format is recognized by its ending alone.
    """
    check_choice("format_name", format_name, tuple(FORMATS), TableError)
    refuse_ending_alone(path, TABLE_SUFFIXES, TableError)
    own = FORMATS[format_name].suffix
    if Path(path).suffix.lower() == own:
        return
    if is_table_name(path):
        raise TableError(
            f"the format {format_name!r} does not fit the name '{path}', which ends as that of another and "
            f"would be read as that; end it in {own}"
        )
    if own in SUFFIXES:
        raise TableError(
            f"the format {format_name!r} is recognized by its ending alone, which the name '{path}' lacks; "
            f"end it in {own}"
        )
