"""What holds for every format of ranges: round trips, and garbage refused."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.errors import TableError
from calibrators.tables.formats.registry import FORMATS
from calibrators.tables.table import CalibrationTable
from tests.calibrators.tables.formats.golden_files import ONE_ENDED


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", ["nan", "inf"])
@ONE_ENDED
def test_no_format_takes_what_is_no_range(name, value):
    written = FORMATS[name].render({"a": float(value)})
    with pytest.raises(TableError, match=rf"the range of 'a' is {value}"):
        FORMATS[name].parse(written, "it")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"{", b""])
@ONE_ENDED
def test_no_format_takes_garbage(name, data):
    with pytest.raises(TableError):
        FORMATS[name].parse(data, "it")


names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)


@pytest.mark.parametrize("name", FORMATS)
@given(
    ranges=st.dictionaries(names.filter(lambda n: not n.startswith("#")), st.floats(1e-30, 1e30), min_size=1)
)
@ONE_ENDED
def test_round_trips_are_exact(name, ranges):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert FORMATS[name].parse(FORMATS[name].render(ranges), "it") == ranges


@pytest.mark.parametrize(
    ("file", "format_name"),
    [
        ("t.json", None),
        ("t.txt", None),
        ("t.csv", None),
        ("t.flatbuffers", None),
        ("t.json", "ppq"),
        ("t.json", "onnxruntime-json"),
        ("t.ranges.json", None),
    ],
)
@ONE_ENDED
def test_tables_find_their_format_again(tmp_path, file, format_name):
    table = CalibrationTable({"a": 1.5, "b::c": 0.1})
    path = table.save(tmp_path / file, format_name=format_name)
    assert CalibrationTable.load(path).amax == table.amax
