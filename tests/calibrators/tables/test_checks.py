"""Names and ranges that a table cannot hold; what tables say of them is tested with these."""

import contextlib
import re

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.tables.table import CalibrationTable, Provenance

LARGEST = 127 * float(np.finfo(np.float32).max)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 2 * LARGEST, 10**400, "1", None, True])
def test_no_range(value):
    for check in (CalibrationTable, CalibrationTable({}).override):
        with pytest.raises(TableError, match=r": 'a' \("):
            check({"b": 1.0, "a": value})
    with pytest.raises(TableError, match=r"'t4' \(.*\) and 4 more$"):  # the first five are named
        CalibrationTable({f"t{number}": value for number in range(9)})


def test_zero_is_no_range_by_hand():
    CalibrationTable({"a": 0, "b": np.float32(2.5), "c": LARGEST})
    CalibrationTable({}).override({"b": 1e-30, "c": np.int64(3)})
    for value in (0.0, 1e-50, 1e300):
        with pytest.raises(TableError, match=rf"by hand .*: 'a' \({re.escape(repr(value))}\)$"):
            CalibrationTable({}).override({"a": value})


@pytest.mark.parametrize("name", [5, None, "\ud800"])
def test_no_name(name):
    CalibrationTable(dict.fromkeys(["a", "ä", ""], 1.0))
    with pytest.raises(TableError, match=re.escape(repr(name))):
        CalibrationTable({"a": 1.0, name: 1.0})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("other", ["a", "x"]), "another model: .*'x'"),
        (("other", ["a"]), "stale"),
        (("m", ["a", "x"]), "1 tensor: 'x'"),
        (("other", ["a"], ["a", "b"]), r"another model: 1 of its 3 tensors \('c' among them\)"),
        (("other", ["a"], ["a", "b", "c"]), "stale"),
    ],
)
def test_a_table_serves_its_own_model_only(arguments, words):
    table = CalibrationTable({"a": 1.0, "b": 1.0, "c": 1.0}, provenance=Provenance("m"))
    with pytest.raises(TableError, match=words):
        table.check_model(*arguments)
    table.check_model("m", ["a"])
    table.check_model("m", ["a"], ["a"])


@pytest.mark.parametrize(
    ("asked", "given", "accepted"),
    [
        (("part", "whole"), Provenance("whole"), True),
        (("part", "whole"), Provenance("part", cut_from="whole"), True),
        (("part", "whole"), Provenance("shorter", cut_from="whole"), True),
        (("whole", None), Provenance("part", cut_from="whole"), True),
        (("part", None), Provenance("part", cut_from="whole"), True),
        (("part", None), Provenance("whole"), False),
        (("part", "whole"), Provenance("shorter", cut_from="other"), False),
        (("part", "whole"), Provenance("other"), False),
    ],
)
def test_a_table_serves_the_parts_of_its_model(asked, given, accepted):
    table = CalibrationTable({"a": 1.0}, provenance=given).of_part(*asked)
    with contextlib.nullcontext() if accepted else pytest.raises(TableError, match="stale"):
        table.check_model(asked[0], ["a"])
    if accepted:
        with pytest.raises(TableError, match="no range for 1 tensor: 'x'"):
            table.check_model(asked[0], ["a", "x"])
        CalibrationTable({"a": 1.0}, provenance=table.provenance).check_model("part", ["a"])


def test_names_are_compared_where_nothing_says_which_model_it_is():
    table = CalibrationTable({"a": 1.0, "b": 1.0, "c": 1.0})
    with pytest.warns(UserWarning, match=r"^2 of the table's 3 tensors \('b' among them\)") as caught:
        table.check_model("m", ["a"], ["a", "x"])
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(TableError, match=r"^none of the table's 3 tensors \('a' among them\)"):
        table.check_model("m", (), ["x", "y"])
    table.check_model("m", ["a"], ["a", "b", "c", "x"])
    table.override({"b": 2.0, "c": 2.0}).check_model("m", ["a"], ["a"])


def test_tensors_that_tensorrt_makes_itself_are_no_sign_of_another_model():
    own = ("(Unnamed Layer* 26) [Constant]_output", "fc.weight_output", "ONNXTRT_Broadcast_output")
    CalibrationTable(dict.fromkeys(("a", *own), 1.0)).check_model("m", ["a"], ["a"])
    with pytest.warns(UserWarning, match=r"^1 of the table's 5 tensors \('b' among them\)"):
        CalibrationTable(dict.fromkeys(("a", "b", *own), 1.0)).check_model("m", ["a"], ["a"])
    with pytest.raises(TableError, match=r"^none of the table's 3 tensors"):
        CalibrationTable(dict.fromkeys(own, 1.0)).check_model("m", (), ["x"])
