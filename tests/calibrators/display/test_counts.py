"""Numbers of things, and things themselves, in words."""

import pytest

from calibrators.display.counts import counted, enumerated


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [(0, "", "0 samples"), (1, "", "1 sample"), (1, ",", "1 sample"), (5000, ",", "5,000 samples")],
)
def test_one_is_singular(number, form, text):
    assert counted(number, "sample", form) == text


@pytest.mark.parametrize(("names", "text"), [("", ""), ("ab", "a, b"), ("abc", "a, b and 1 more")])
def test_what_is_left_out_is_counted(names, text):
    assert enumerated(names, 2) == text
