"""The table beside an engine."""

from dataclasses import replace

import pytest

from calibrators.errors import EngineError
from calibrators.tables.table import CalibrationTable
from trtint8.engine.file import EngineInfo
from trtint8.engine.table import read_engine_table


def test_the_table_is_the_one_that_the_engine_was_built_with(tmp_path):
    engine, table = tmp_path / "net.engine", CalibrationTable({"x": 2.0})
    info = EngineInfo("tensorrt", "8.6.1", ("8.6",), (), (), (), None, (), None, "")
    known = replace(info, table_fingerprint=table.fingerprint)
    assert read_engine_table(engine, known) is None
    table.save(tmp_path / "net.table.json")
    found = read_engine_table(engine, known)
    assert found is not None and found.amax == {"x": 2.0}
    assert read_engine_table(engine, info) is None
    CalibrationTable({"x": 3.0}).save(tmp_path / "net.table.json")
    with pytest.raises(EngineError, match="is not the table that the engine was built with; move it away"):
        read_engine_table(engine, known)
