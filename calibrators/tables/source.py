"""A calibration table, or the file that holds one."""

from __future__ import annotations

import os

from calibrators.tables.table import CalibrationTable, is_table_name

#: What a table may be given as.
TableSource = CalibrationTable | str | os.PathLike[str]


def is_table_file(source: object) -> bool:
    """Whether a calibration argument is the path of a table or a TensorRT calibration cache."""
    return isinstance(source, (str, os.PathLike)) and is_table_name(source)


def as_table(table: TableSource) -> CalibrationTable:
    """A table, read where it is given as a file.

    Raises:
        TableError: The file is no table.
    """
    return table if isinstance(table, CalibrationTable) else CalibrationTable.load(table)
