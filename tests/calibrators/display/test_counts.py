"""Numbers of things in words."""

import pytest

from calibrators.display.counts import counted


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [(0, "", "0 samples"), (1, "", "1 sample"), (1, ",", "1 sample"), (5000, ",", "5,000 samples")],
)
def test_one_is_singular(number, form, text):
    assert counted(number, "sample", form) == text
