"""A calibration table, or the file that holds one."""

from __future__ import annotations

import os
from typing import TypeAlias

from calibrators.errors import TableError
from calibrators.tables.file_names import is_table_name
from calibrators.tables.table import CalibrationTable

#: What a table may be given as.
TableSource: TypeAlias = CalibrationTable | str | os.PathLike[str]


def as_table(source: TableSource) -> CalibrationTable:
    """A table, read where it is given as a file.

    Raises:
        TableError: The file is no table, or it is neither a table nor a file.
    """
    if isinstance(source, CalibrationTable):
        return source
    if not isinstance(source, (str, os.PathLike)):
        raise TableError(
            f"a calibration table is given as {type(source).__name__}; give a CalibrationTable, which can be "
            "made of a dict of ranges, or the path of a table"
        )
    return CalibrationTable.load(source)


def is_table(source: object) -> bool:
    """Whether an argument is a table, or the path of a table or of a TensorRT calibration cache."""
    return isinstance(source, CalibrationTable) or (
        isinstance(source, (str, os.PathLike)) and is_table_name(source)
    )


def table_among(source: object) -> CalibrationTable | None:
    """The table that a calibration argument is or names; None where it is something else, like samples.

    Args:
        source: A table, the path of a table or of a TensorRT calibration cache, or anything else.

    Raises:
        TableError: The file is no table.
    """
    if isinstance(source, CalibrationTable):
        return source
    if isinstance(source, (str, os.PathLike)) and is_table_name(source):
        return CalibrationTable.load(source)
    return None
