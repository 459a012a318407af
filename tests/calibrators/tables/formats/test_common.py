"""What the formats that hold nothing but ranges have in common."""

import re

import pytest

from calibrators.errors import TableError
from calibrators.tables.formats.common import (
    RangeEntry,
    RangesFormat,
    add_range,
    check_line_names,
    collect_ranges,
    decoded,
    number,
    refuse_engine,
    warn_widened,
)
from calibrators.tables.table import CalibrationTable


def test_a_format_reads_through_the_same_check():
    def read(data, _source):
        yield RangeEntry(data.decode(), 1.5)

    made = RangesFormat("one", ".one", read, lambda ranges: next(iter(ranges)).encode())
    assert made.parse(made.render({"x": 1.5}), "f") == {"x": 1.5}


def test_text_and_numbers():
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert decoded("ä: 1".encode(encoding), "f") == "ä: 1"
    assert number(" 1e-3\n", "f", 1) == 0.001
    for read, words in (
        (lambda: decoded(b"ab\xff", "f"), "'f' .*byte 2 .*UTF-8"),
        (lambda: decoded(b"\xff\xfea\0\0", "f"), "'f' .*byte 4 .*UTF-16"),
        (lambda: number(" wide ", "f", 7), "'f' line 7: 'wide'"),
    ):
        with pytest.raises(TableError, match=f"^{words}"):
            read()


def test_a_range_is_added_once_and_is_a_number_of_zero_or_more():
    ranges = {}
    add_range(ranges, "b", 0.0, "f")
    add_range(ranges, "a", 2.5, "f", 3)
    with pytest.raises(TableError, match=r"^'f' line 4: tensor 'a' "):
        add_range(ranges, "a", 1.0, "f", 4)
    for amax in (-1.0, float("nan"), float("inf")):
        with pytest.raises(TableError, match=f"^'f': the range of 'c' is {amax};"):
            add_range(ranges, "c", amax, "f")
    entries = [RangeEntry("b", 0.0), RangeEntry("a", 2.5, 7)]
    assert list(ranges.items()) == list(collect_ranges(entries, "f").items()) == [("b", 0.0), ("a", 2.5)]
    with pytest.raises(TableError, match=r"^'f' line 8: tensor 'a' "):
        collect_ranges([*entries, RangeEntry("a", 1.0, 8)], "f")


def test_ranges_that_got_wider_are_named():
    with pytest.warns(UserWarning, match=r": 'a' \(-1, 2\), 'b' \(0, 3\)$"):
        warn_widened({"a": (-1.0, 2.0), "even": (-4.0, 4.0), "b": (0.0, 3.0)})
    with pytest.warns(UserWarning, match=r"'4' \(0, 1\) and 2 more$"):
        warn_widened({str(i): (0.0, 1.0) for i in range(7)})
    warn_widened({"even": (-4.0, 4.0)})  # and warnings are errors here


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "\x1b[31m", "a\x85b", "a\u2028b", "\ud800", "\0", ""])
def test_a_name_that_does_not_stay_on_one_line_is_refused(name):
    with pytest.raises(TableError, match=re.escape(f"a text table cannot hold the name {name!r};")):
        check_line_names(["fine: 1", name], "a text table")
    check_line_names(["a b", "ä"], "a text table")
    with pytest.raises(TableError, match="'a b'"):  # a format may carry less
        check_line_names(["ä", "a b"], "a table of ncnn", str.isalpha)


@pytest.mark.parametrize("name", ["net.engine", "net.txt", "net.json"])
@pytest.mark.parametrize("letter", [b"f", b"v"])
def test_an_engine_is_no_table(letter, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(letter + b"trt\0\0\0\0\2\0\0\0\xec\x60\x34" + bytes(64))
    with pytest.raises(TableError, match=rf"^'{path}' is an engine .*'net\.table\.json'$"):
        CalibrationTable.load(path)
    refuse_engine(b"strt: 1.0\nftrt: 2.0\n", "t.txt")  # whose first tensor is called like an engine
