"""What a calibration cache does not keep of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtint8.cli.output import say

if TYPE_CHECKING:
    from calibrators.tables.table import CalibrationTable


def say_method_in_cache(table: CalibrationTable, output: Path) -> None:
    """Says that a calibration cache lacks the table's method, where it does.

    Args:
        table: The table that was written.
        output: The file, of any format.
    """
    if output.suffix.lower() == ".cache" and table.method != table.method_in_cache:
        say(
            f"'{output}' is a calibration cache, which has no name for the method "
            f"'{table.method}': read back, its method is '{table.method_in_cache}'"
        )
