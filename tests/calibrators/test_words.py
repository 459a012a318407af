"""Errors in words."""

import pytest

from calibrators.errors import cause_in_words, counted, enumerated, in_one_line, megabytes, such_as


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such\n  image."), "ValueError: no such image"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (OSError("x" * 1000), "OSError: " + "x" * 300),
    ],
)
def test_an_error_in_one_line(error, text):
    assert in_one_line(error) == text


def test_the_error_that_began_a_chain():
    error = RuntimeError("it failed")
    error.__cause__ = ValueError("Wrong\ntype.")
    assert cause_in_words(error) == "Wrong type"
    error.__cause__ = ValueError()
    assert cause_in_words(error) == "ValueError"


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [(0, "", "0 samples"), (1, "", "1 sample"), (1, ",", "1 sample"), (5000, ",", "5,000 samples")],
)
def test_one_is_singular(number, form, text):
    assert counted(number, "sample", form) == text


@pytest.mark.parametrize(("names", "text"), [("", ""), ("ab", "a, b"), ("abc", "a, b and 1 more")])
def test_what_is_left_out_is_counted(names, text):
    assert enumerated(names, 2) == text


@pytest.mark.parametrize(("names", "text"), [("", "none"), ("a", "'a'"), ("abc", "'a', 'b' and 1 more")])
def test_names_that_there_are_may_be_none(names, text):
    assert such_as(names, 2) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0.000 MB"), (5_200, "0.005 MB"), (40e6, "40.0 MB"), (12e9, "12,000.0 MB")]
)
def test_bytes_are_megabytes(count, text):
    assert megabytes(count) == text
