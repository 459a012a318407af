"""Estimated times in words."""

import pytest

from trtint8.report.text import time_text


@pytest.mark.parametrize(
    ("seconds", "among", "wanted"),
    [
        (8.87e-7, [8.87e-7, 4.48e-7], "0.887 us"),
        (2e-5, [2e-5, 9.9e-6], "20.000 us"),
        (2e-5, [2e-5, None, 1e-5], "0.020 ms"),
        (4e-7, [], "0.400 us"),
    ],
)
def test_times_that_are_compared_have_one_unit(seconds, among, wanted):
    assert time_text(seconds, among) == wanted
