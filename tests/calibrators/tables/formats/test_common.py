"""What the formats that hold nothing but ranges have in common."""

import warnings

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


def test_entries_in_their_order():
    entries = [RangeEntry("b", 2.0), RangeEntry("a", 0.0, 7)]
    assert list(collect_ranges(entries, "f").items()) == [("b", 2.0), ("a", 0.0)]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([RangeEntry("a", 1.0, 1), RangeEntry("a", 1.0, 2)], "'f' line 2: tensor 'a' stands twice"),
        ([RangeEntry("a", -1.0, 3)], "'f' line 3: the range of 'a' is -1.0"),
        ([RangeEntry("a", float("nan"))], "'f': the range of 'a' is nan"),
    ],
)
def test_entries_that_are_no_ranges(entries, message):
    with pytest.raises(TableError, match=f"^{message}"):
        collect_ranges(entries, "f")


def test_a_format_reads_through_the_same_check():
    def read(data, _source):
        yield RangeEntry(data.decode(), 1.5)

    made = RangesFormat("one", ".one", read, lambda ranges: next(iter(ranges)).encode())
    assert made.parse(made.render({"x": 1.5}), "f") == {"x": 1.5}


def test_text_and_numbers():
    assert decoded("ä: 1".encode(), "f") == "ä: 1"
    for encoding in ("utf-8-sig", "utf-16"):
        assert decoded("ä: 1".encode(encoding), "f") == "ä: 1"
    assert number(" 1e-3\n", "f", 1) == 0.001
    with pytest.raises(TableError, match=r"^'f' is not text: byte 2 is no UTF-8$"):
        decoded(b"ab\xff", "f")
    with pytest.raises(TableError, match=r"^'f' is not text: byte 4 is no UTF-16$"):
        decoded(b"\xff\xfea\0\0", "f")
    with pytest.raises(TableError, match=r"^'f' line 7: 'wide' is not a number$"):
        number(" wide ", "f", 7)


def test_a_range_is_added_once_and_is_a_number_of_zero_or_more():
    ranges = {}
    add_range(ranges, "a", 0.0, "f")
    add_range(ranges, "b", 2.5, "f", 3)
    assert ranges == {"a": 0.0, "b": 2.5}
    with pytest.raises(TableError, match=r"^'f' line 4: tensor 'a' stands twice; remove one of them$"):
        add_range(ranges, "a", 1.0, "f", 4)
    for amax in (-1.0, float("nan"), float("inf")):
        with pytest.raises(TableError, match=rf"^'f': the range of 'c' is {amax}; it must be a number of 0"):
            add_range(ranges, "c", amax, "f")
    assert ranges == {"a": 0.0, "b": 2.5}


def test_ranges_that_got_wider_are_named():
    with pytest.warns(UserWarning, match=r"larger of \|min\| and \|max\|: 'a' \(-1, 2\), 'b' \(0, 3\)$"):
        warn_widened({"a": (-1.0, 2.0), "even": (-4.0, 4.0), "b": (0.0, 3.0)})
    with pytest.warns(UserWarning, match=r"'4' \(0, 1\) and 2 more$"):
        warn_widened({str(i): (0.0, 1.0) for i in range(7)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_widened({"even": (-4.0, 4.0)})


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "\x1b[31m", "a\x85b", "a\u2028b", "\ud800", "\0", ""])
def test_a_name_that_does_not_stay_on_one_line_is_refused(name):
    with pytest.raises(TableError) as caught:
        check_line_names(["fine: 1", name], "a text table")
    assert str(caught.value) == (
        f"a text table cannot hold the name {name!r}; write trtint8's own format (.json), or rename the "
        "tensor in the model"
    )


def test_a_format_may_carry_less():
    check_line_names(["a b", "ä"], "a text table")
    with pytest.raises(TableError, match="cannot hold the name 'a b'"):
        check_line_names(["ä", "a b"], "a table of ncnn", str.isalpha)


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
