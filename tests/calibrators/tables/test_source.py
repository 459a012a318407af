"""A calibration table, or the file that holds one."""

from pathlib import Path

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.tables.source import as_table, is_table, table_among
from calibrators.tables.table import CalibrationTable


@pytest.mark.parametrize("name", ["t.json", "t.cache", "t.txt", "t.csv", "t.flatbuffers"])
def test_paths_of_tables(name):
    assert is_table(name) and is_table(Path(name))


@pytest.mark.parametrize("other", ["data.npz", "folder", np.zeros(3), None])
def test_what_is_no_table(other):
    assert not is_table(other)
    assert table_among(other) is None


def test_a_table_is_itself_and_a_file_is_read(tmp_path):
    table = CalibrationTable({"a": 1.5})
    path = table.save(tmp_path / "t.json")
    assert as_table(table) is table
    assert as_table(path) == as_table(str(path)) == table
    assert is_table(table) and table_among(table) is table
    assert table_among(path) == table_among(str(path)) == table
    path.write_text("{}")
    with pytest.raises(TableError, match="not a calibration table"):
        as_table(path)
