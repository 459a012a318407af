"""Names and ranges that a table cannot hold; what tables say of them is tested with these."""

import re

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.tables.checks import check_names, check_ranges, check_ranges_by_hand
from calibrators.tables.table import CalibrationTable, Provenance

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


@pytest.mark.parametrize(
    ("fingerprint", "tensors", "words"),
    [
        ("other", ["a", "x"], "another model: it has no range for 'x'"),
        ("other", ["a"], "stale"),
        ("m", ["a", "x"], "no range for 1 tensor: 'x'"),
    ],
)
def test_a_table_serves_its_own_model_only(fingerprint, tensors, words):
    table = CalibrationTable({"a": 1.0, "b::c d": 1.0}, provenance=Provenance("m"))
    with pytest.raises(TableError, match=words):
        table.check_model(fingerprint, tensors)
    table.check_model("m", ["a"])


def test_names_are_compared_where_nothing_says_which_model_it_is():
    table = CalibrationTable({"a": 1.0, "b": 1.0, "c": 1.0})
    with pytest.warns(UserWarning) as caught:
        table.check_model("m", ["a"], ["a", "x"])
    assert [str(warning.message) for warning in caught] == [
        "2 of the table's 3 tensors ('b' among them) are not in the model, and the table does not say which "
        "model it was made for; make sure that it was this one"
    ]
    assert caught[0].filename == __file__
    with pytest.raises(TableError) as refused:
        table.check_model("m", (), ["x", "y"])
    assert str(refused.value) == (
        "none of the table's 3 tensors ('a' among them) is in the model; give the table of this model, or "
        "calibrate it"
    )
    table.check_model("m", ["a"], ["a", "b", "c", "x"])
    table.override({"b": 2.0, "c": 2.0}).check_model("m", ["a"], ["a"])
    CalibrationTable({"a": 1.0}, provenance=Provenance("m")).check_model("m", ["a"], ["a"])


def test_a_table_with_tensors_that_the_model_lacks_is_of_another_one():
    table = CalibrationTable({"a": 1.0, "b": 1.0, "c": 1.0}, provenance=Provenance("m"))
    with pytest.raises(TableError) as refused:
        table.check_model("other", ["a"], ["a", "b"])
    assert str(refused.value) == (
        "the table was made for another model: 1 of its 3 tensors ('c' among them) are not in this one; "
        "calibrate this one"
    )
    with pytest.raises(TableError, match="stale: the model has the same tensors"):
        table.check_model("other", ["a"], ["a", "b", "c"])


def test_tensors_that_tensorrt_makes_itself_are_no_sign_of_another_model():
    own = ("(Unnamed Layer* 26) [Constant]_output", "fc.weight_output", "ONNXTRT_Broadcast_output")
    CalibrationTable(dict.fromkeys(("a", *own), 1.0)).check_model("m", ["a"], ["a"])
    with pytest.warns(UserWarning, match=r"^1 of the table's 5 tensors \('b' among them\)"):
        CalibrationTable(dict.fromkeys(("a", "b", *own), 1.0)).check_model("m", ["a"], ["a"])
    with pytest.raises(TableError, match=r"^none of the table's 3 tensors"):
        CalibrationTable(dict.fromkeys(own, 1.0)).check_model("m", (), ["x"])
