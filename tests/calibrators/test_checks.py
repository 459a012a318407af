"""Checks of options."""

import re
from pathlib import Path

import numpy as np
import pytest

from calibrators.checks import (
    check_choice,
    check_ending,
    check_path,
    is_number,
    positive_integer,
    refuse_empty_path,
    several,
)
from calibrators.errors import CalibrationDataError, OutputError, TableError, UnsupportedError


def test_a_choice():
    check_choice("colour", "red", ("red", "green"))
    with pytest.raises(UnsupportedError, match=r"^colour is 'blue'; use one of red, green$"):
        check_choice("colour", "blue", ("red", "green"))
    with pytest.raises(TableError, match=r"^colour is None; use one of red$"):
        check_choice("colour", None, ("red",), TableError)


@pytest.mark.parametrize("value", [1, np.int64(7), np.uint8(255)])
def test_positive_integers(value):
    assert positive_integer("threads", value) == value
    assert type(positive_integer("threads", value)) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, "2", True, None, np.float32(2), [1]])
def test_what_is_no_positive_integer(value):
    with pytest.raises(
        CalibrationDataError, match=r"^threads is .*; give a positive integer or leave it out$"
    ):
        positive_integer("threads", value)


def test_numbers():
    assert all(map(is_number, (0, -1.5, float("nan"), np.float16(2), np.int8(3), 10**400)))
    assert not any(map(is_number, (True, np.bool_(True), "1", None, 1j, [1], (1, 2))))


def test_one_name_is_not_its_letters():
    assert several("conv1") == ["conv1"]
    assert several(Path("a/b")) == [Path("a/b")]
    assert several(("a", "b")) == several(iter(["a", "b"])) == ["a", "b"]
    assert several(()) == []


@pytest.mark.parametrize("value", [None, 5, b"name", np.array(1)])
def test_what_is_no_name_and_holds_none(value):
    with pytest.raises(
        UnsupportedError, match=f"^{re.escape(repr(value))} is given where names are expected; give a string"
    ):
        several(value)


def test_an_empty_text_is_no_path():
    with pytest.raises(CalibrationDataError, match=r"^the path of the data is empty; give the path$"):
        refuse_empty_path("the data", "", CalibrationDataError)
    for path in (".", Path(), b"", None, np.zeros(0)):
        refuse_empty_path("the data", path, CalibrationDataError)


def test_what_is_no_path():
    for path in ("a", ".", Path()):
        check_path("the engine", path, TableError)
    for path in (None, 5, b"a", ["a"]):
        name = type(path).__name__
        with pytest.raises(TableError, match=f"^the engine is given as {name}; give the path$"):
            check_path("the engine", path, TableError)
    with pytest.raises(TableError, match=r"^the path of the engine is empty; give the path$"):
        check_path("the engine", "", TableError)


@pytest.mark.parametrize("name", ["a/page.html", "page.HTML", "page.htm", "a.npz.html"])
def test_names_with_an_ending(name):
    assert (
        check_ending(name, "a page", (".html", ".htm"))
        == check_ending(Path(name), "a page", (".html", ".htm"))
        == Path(name)
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a/data.npz",
            "the name 'a/data.npz' does not end in .html or .htm, as that of a page does; end it in .html",
        ),
        ("html", "the name 'html' does not end in .html or .htm, as that of a page does; end it in .html"),
        ("a/.Html", "the name 'a/.Html' is an ending alone; put a name before it"),
        ("", "the path of a file to write is empty; give the path"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(OutputError) as caught:
        check_ending(name, "a page", (".html", ".htm"))
    assert str(caught.value) == message


def test_a_single_ending():
    assert check_ending("s.Json", "a JSON file", (".json",)) == Path("s.Json")
    with pytest.raises(OutputError) as caught:
        check_ending("s.html", "a JSON file", (".json",))
    assert str(caught.value) == (
        "the name 's.html' does not end in .json, as that of a JSON file does; end it in .json"
    )


@pytest.mark.parametrize("value", [None, [], {}, 0, np.zeros(0), np.zeros(2), object()])
def test_a_choice_of_another_type_is_refused(value):
    with pytest.raises(UnsupportedError, match=r"^colour is .*; use one of red, blue$"):
        check_choice("colour", value, ("red", "blue"))


@pytest.mark.parametrize("path", ["a\0b", Path("a\0b")])
@pytest.mark.parametrize("check", [check_path, refuse_empty_path])
def test_a_path_with_a_nul_is_refused(check, path):
    with pytest.raises(TableError, match=r"the path of the table, 'a.*b'"):
        check("the table", path, TableError)
