"""What the formats that hold nothing but ranges have in common."""

import pytest

from calibrators.errors import TableError
from calibrators.tables.formats.ranges_format import RangeEntry, RangesFormat, collect_ranges


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
