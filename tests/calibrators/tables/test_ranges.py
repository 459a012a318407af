import warnings

import pytest

from calibrators.errors import TableError
from calibrators.tables.ranges import read_ranges
from calibrators.tables.table import CalibrationTable


def test_numbers_and_symmetric_pairs_are_taken_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_ranges({"a": 2.5, "b": (-3.0, 3.0)}) == {"a": 2.5, "b": 3.0}


@pytest.mark.parametrize(("low", "high", "amax"), [(-1.0, 4.0, 4.0), (-6.0, 2.0, 6.0), (0.0, 5.0, 5.0)])
def test_pairs_get_as_wide_as_their_wider_side(low, high, amax):
    with pytest.warns(UserWarning, match=r"INT8 is symmetric, so ranges got wider.*'a' \("):
        assert read_ranges({"a": (low, high)}) == {"a": amax}


@pytest.mark.parametrize(
    "value", [0.0, -1.0, float("nan"), float("inf"), (2.0, 1.0), (0.0, 0.0), (1.0, 2.0, 3.0), "wide", None]
)
def test_what_is_no_range(value):
    with pytest.raises(TableError, match="the dynamic range of 'a' is "):
        read_ranges({"a": value})


def test_a_text_file(tmp_path):
    file = tmp_path / "ranges.txt"
    file.write_text("# by hand\n\ngpu_0/conv1_1: 5.43116007373\nscope::relu:2\n")
    assert read_ranges(file) == {"gpu_0/conv1_1": 5.43116007373, "scope::relu": 2.0}
    file.write_text("a: -1, 3\n")
    with pytest.warns(UserWarning, match="wider"):
        assert read_ranges(str(file)) == {"a": 3.0}


def test_tables_and_caches(tmp_path):
    table = CalibrationTable({"a": 2.0, "b": 3.0})
    for name in ("ranges.json", "ranges.cache"):
        assert read_ranges(table.save(tmp_path / name)) == pytest.approx({"a": 2.0, "b": 3.0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no ranges"),
        ("a 5\n", "line 1 is not 'tensor: range'"),
        ("a: five\n", "line 1: 'five' is not a number"),
        (": 5\n", "line 1 is not 'tensor: range'"),
        ("a: 1\n\nb: 1, 2, 3\n", "line 3 is not 'tensor: range'"),
        ("a: 1\na: 2\n", "line 2: tensor 'a' stands twice"),
        ("a: 0\n", "the dynamic range of 'a' is 0.0"),
    ],
)
def test_bad_text_files(tmp_path, text, message):
    file = tmp_path / "ranges.txt"
    file.write_text(text)
    with pytest.raises(TableError, match=message):
        read_ranges(file)


def test_a_missing_file(tmp_path):
    with pytest.raises(TableError, match="cannot read the"):
        read_ranges(tmp_path / "missing.txt")
