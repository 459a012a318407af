"""How long a search may take."""

import math

import pytest

from calibrators.errors import CalibrationDataError
from trtint8.tuning.time_limit import OutOfTimeError, TimeLimit


def test_after_the_limit_nothing_more_is_given(monkeypatch):
    now = iter([1.0, 59.0, 61.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    watched = TimeLimit(1.0, 0.0).watched("abc")
    assert (next(watched), next(watched)) == ("a", "b")
    with pytest.raises(OutOfTimeError):
        next(watched)


def test_without_a_limit_all_is_given():
    assert list(TimeLimit().watched("abc")) == ["a", "b", "c"]


def test_half_the_time():
    assert TimeLimit(3.0).half().minutes == 1.5
    assert TimeLimit().half().minutes is None


@pytest.mark.parametrize("minutes", [0, -1.0, math.nan, math.inf, "1"])
def test_minutes_that_make_no_sense(minutes):
    with pytest.raises(CalibrationDataError, match=f"minutes is {minutes!r}; give a positive number"):
        TimeLimit(minutes)
