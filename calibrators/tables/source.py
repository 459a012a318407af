"""A calibration table, or the file that holds one."""

from __future__ import annotations

import os

from calibrators.tables.file_names import is_table_name
from calibrators.tables.table import CalibrationTable

#: A table, or the path of a file that holds one.
TableSource = CalibrationTable | str | os.PathLike[str]


def is_table_file(source: object) -> bool:
    """Whether a calibration argument is the path of a table or of a TensorRT calibration cache."""
    return isinstance(source, (str, os.PathLike)) and is_table_name(source)


def as_table(table: TableSource) -> CalibrationTable:
    """The table itself; where it is given as a file, the file is read.

    Raises:
        TableError: The file cannot be read, or is not a table.
    """
    return table if isinstance(table, CalibrationTable) else CalibrationTable.load(table)
