"""Numbers in words."""

import math

import pytest

from trtint8.report import text
from trtint8.validation.significance import Share

SPACE = "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("function", "value", "wanted"),
    [
        (text.decibels, 26.04, "26.0 dB"),
        (text.decibels, -3.21, "−3.2 dB"),
        (text.decibels, math.inf, "exact"),
        (text.decibels, -math.inf, "no signal"),
        (text.decibels, math.nan, "not a number"),
        (text.decibels, None, "–"),
        (text.percentage, 0.125, "12.5 %"),
        (text.percentage, None, "–"),
        (text.percentage, math.inf, "∞"),
        (lambda value: text.figure(value, "%"), 79.456, "79.46 %"),
        (lambda value: text.figure(value, "dB"), math.inf, "exact"),
        (lambda value: text.figure(value, ""), -0.01234567, "−0.01235"),
        (lambda value: text.figure(value, "%"), math.nan, "not a number"),
        (text.small_percentage, 0.0, "0 %"),
        (text.small_percentage, 4e-6, "< 0.001 %"),
        (text.small_percentage, 6e-6, "0.001 %"),
        (text.small_percentage, 0.0123456, "1.235 %"),
        (text.interval, Share(80, 100), "71.1–86.7 %"),
        (text.number, 2.640001, "2.64"),
        (text.number, -1e-7, "−1e−07"),
        (text.size, 999, "999 bytes"),
        (text.size, 5248, "5.2 kB"),
        (text.size, 3_432_684, "3.43 MB"),
        (text.size, 25_000_000_000, "25.00 GB"),
        (text.size, None, "–"),
        (text.duration, None, "–"),
        (text.duration, 8.87e-7, "0.887 us"),
        (text.duration, 1e-5, "0.010 ms"),
        (lambda value: text.duration(value, (value, 1e-3)), 1e-5, "0.010 ms"),
        (lambda value: text.duration(value, (value, 9.9e-6)), 2e-5, "20.000 us"),
        (lambda value: text.duration(value, (value, None, 1e-5)), 2e-5, "0.020 ms"),
        (text.times, 3.999, "4.00×"),
    ],
)
def test_forms(function, value, wanted):
    assert str(function(value)).replace(SPACE, " ") == wanted
