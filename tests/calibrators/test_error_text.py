"""Errors in words."""

from calibrators.error_text import cause_in_words, in_one_line


def test_an_error_of_several_lines():
    assert in_one_line(ValueError("no such\n  image.")) == "ValueError: no such image"


def test_an_error_that_says_nothing():
    assert in_one_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_long_error():
    assert in_one_line(OSError("x" * 1000)) == "OSError: " + "x" * 300


def test_the_error_that_began_a_chain():
    error = RuntimeError("it failed")
    error.__cause__ = ValueError("Wrong\ntype.")
    assert cause_in_words(error) == "Wrong type"
    error.__cause__ = ValueError()
    assert cause_in_words(error) == "ValueError"
