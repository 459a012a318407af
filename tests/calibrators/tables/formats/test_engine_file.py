"""Engines that are given for tables."""

import pytest

from calibrators.errors import TableError
from calibrators.tables.formats.engine_file import refuse_engine
from calibrators.tables.table import CalibrationTable


@pytest.mark.parametrize("name", ["net.engine", "net.txt", "net.json"])
@pytest.mark.parametrize("letter", [b"f", b"v"])
def test_an_engine_is_no_table(letter, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(letter + b"trt\0\0\0\0\2\0\0\0\xec\x60\x34" + bytes(64))
    with pytest.raises(TableError) as refused:
        CalibrationTable.load(path)
    assert str(refused.value) == (
        f"'{path}' is an engine and holds no table; give the table that it was built with, which "
        "'trtint8 build' writes beside it as 'net.table.json'"
    )


def test_a_table_whose_first_tensor_is_called_like_an_engine():
    refuse_engine(b"strt: 1.0\nftrt: 2.0\n", "t.txt")
