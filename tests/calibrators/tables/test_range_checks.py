"""Names and ranges that a table cannot hold; what tables say of them is tested with these."""

import re

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.tables.range_checks import check_names, check_ranges, check_ranges_by_hand

LARGEST = 127 * float(np.finfo(np.float32).max)


def test_names_and_ranges_that_a_table_holds():
    check_names(["a", "ä", ""])
    check_ranges({"a": 0, "b": np.float32(2.5), "c": LARGEST})
    check_ranges_by_hand({"b": 1e-30, "c": np.int64(3)})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 2 * LARGEST, 10**400, "1", None, True])
def test_no_range(value):
    for check in (check_ranges, check_ranges_by_hand):
        with pytest.raises(TableError, match=r": 'a' \("):
            check({"b": 1.0, "a": value})


def test_zero_is_no_range_by_hand():
    check_ranges({"a": 0.0})
    rule = "a range set by hand must be a positive number, neither too small nor too large for a float32"
    for value in (0.0, 1e-50, 1e300):
        with pytest.raises(TableError, match=f"^{rule}: 'a' \\({re.escape(repr(value))}\\)$"):
            check_ranges_by_hand({"a": value})


def test_the_first_five_are_named():
    with pytest.raises(TableError, match=r"'t4' \(-1\) and 4 more$"):
        check_ranges({f"t{number}": -1 for number in range(9)})


@pytest.mark.parametrize("name", [5, None, "\ud800"])
def test_no_name(name):
    with pytest.raises(TableError, match="is no text"):
        check_names(["a", name])
