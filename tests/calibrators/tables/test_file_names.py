"""The names of files that hold calibration tables."""

from pathlib import Path

import pytest

from calibrators.errors import TableError
from calibrators.tables.file_names import (
    TABLE_SUFFIXES,
    check_format_name,
    check_table_name,
    is_table_name,
)


def test_endings():
    assert TABLE_SUFFIXES == (".json", ".cache", ".txt", ".csv", ".flatbuffers")
    assert all(is_table_name(f"folder.npz/t{ending.upper()}") for ending in TABLE_SUFFIXES)
    assert not any(map(is_table_name, ("t.npz", "t", "json", "t.json.gz")))


def test_a_name_without_a_format_is_refused_before_any_work():
    assert check_table_name("a/t.cache") == Path("a/t.cache")
    with pytest.raises(TableError, match=r"format of 't\.xyz': end it in \.json, .* or \.flatbuffers$"):
        check_table_name("t.xyz")
    for name in (".cache", "folder/.JSON"):
        with pytest.raises(TableError) as caught:
            check_table_name(name)
        assert str(caught.value) == f"the name '{name}' is an ending alone; put a name before it"


@pytest.mark.parametrize(("name", "format_name"), [(".txt", "text"), ("folder/.JSON", "ppq")])
def test_an_ending_alone_is_no_name_for_a_format_either(name, format_name):
    with pytest.raises(TableError) as caught:
        check_format_name(name, format_name)
    assert str(caught.value) == f"the name '{name}' is an ending alone; put a name before it"
