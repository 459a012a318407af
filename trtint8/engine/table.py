"""The calibration table beside an engine."""

from __future__ import annotations

from pathlib import Path

from calibrators.errors import EngineError
from calibrators.files import is_file
from calibrators.tables.table import CalibrationTable
from trtint8.engine.file import EngineInfo


def table_file_of(engine: Path) -> Path:
    """The calibration table beside an engine file."""
    return engine.with_name(f"{engine.stem}.table.json")


def read_engine_table(engine: Path, info: EngineInfo) -> CalibrationTable | None:
    """Reads the table that an engine was built with.

    Args:
        engine: The engine file.
        info: What its sidecar says.

    Returns:
        The table; None where the engine was built without one, or none stands beside it.

    Raises:
        EngineError: The table beside the engine is another one.
        TableError: The table is unusable.
    """
    path = table_file_of(engine)
    if info.table_fingerprint is None or not is_file(path):
        return None
    table = CalibrationTable.load(path)
    if table.fingerprint != info.table_fingerprint:
        raise EngineError(
            f"'{path}' is not the table that the engine was built with; move it away, or build the engine "
            "from it"
        )
    return table
