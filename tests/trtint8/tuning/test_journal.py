"""The trials of an interrupted search."""

import math

import pytest

from calibrators.errors import CalibrationDataError, TableError
from tests.calibrators.host.checkpoint_files import change, sealed
from trtint8.tuning.candidates import Trial
from trtint8.tuning.journal import Journal, JournalFile, OutOfTimeError, TimeLimit
from trtint8.tuning.stopwatch import Timing
from trtint8.validation.budget import Score

FIRST = Trial("as calibrated", Score(None, math.inf, math.inf), True, 0, 0.0, 0.5, 3.0)
SECOND = Trial("bias correction", Score(0.25, 20.0, 79.75), False, 0, 0.0, 0.5)


@pytest.fixture
def file(tmp_path):
    return JournalFile(tmp_path / "t.checkpoint", resume=True)


def test_trials_and_shares_come_back(file):
    journal = file.open({"model": "m"})
    assert (journal.next, dict(journal.shares)) == (None, {})
    journal.add(FIRST)
    journal.add_shares({"fc": 0.75, "conv": 0.25})
    journal.add(SECOND)
    again = file.open({"model": "m"})
    assert (again.next, dict(again.shares), again.trials) == (FIRST, {"fc": 0.75, "conv": 0.25}, ())
    again.add(FIRST)
    assert again.next == SECOND
    again.add(again.next)
    assert (again.next, again.trials) == (None, (FIRST, SECOND))


def test_an_interrupted_continuation_loses_nothing(file):
    journal = file.open({})
    journal.add(FIRST)
    journal.add(SECOND)
    before = file.path.read_bytes()
    file.open({}).add(FIRST)
    assert file.path.read_bytes() == before


def test_without_resume_it_begins_anew(file):
    file.open({}).add(FIRST)
    assert JournalFile(file.path).open({}).next is None


def test_another_search_is_refused(file):
    file.open({"seed": 0}).add(FIRST)
    with pytest.raises(TableError, match=r"with another seed \(0 then, 1 now\)"):
        file.open({"seed": 1})


@pytest.mark.parametrize(
    "content", [b"", b"{}", sealed({}), sealed({"identity": {}, "progress": {}}), sealed([])]
)
def test_a_damaged_file_is_refused(file, content):
    file.path.write_bytes(content)
    with pytest.raises(TableError, match="remove it to begin anew"):
        file.open({})


def test_without_a_file_trials_are_kept_in_memory():
    journal = Journal()
    journal.add(FIRST)
    assert (journal.trials, journal.next) == ((FIRST,), None)


def test_times_come_back(file):
    journal = file.open({})
    journal.start_from(("a",))
    journal.add(FIRST)
    journal.add_timing("key", None)
    again = file.open({})
    again.start_from(("a",))
    # A time that is added before the trials are replayed loses none of them.
    again.add_timing("other", Timing(0.25, 0.25, 0.25))
    last = file.open({})
    assert dict(last.timings) == {"key": None, "other": Timing(0.25, 0.25, 0.25)}
    assert last.next == FIRST


def test_trials_that_started_from_other_layers_are_forgotten(file):
    journal = file.open({})
    journal.start_from(("a",))
    journal.add_shares({"fc": 1.0})
    journal.add(FIRST)
    journal.add_timing("key", None)
    again = file.open({})
    again.start_from(("a", "b"))
    assert (again.next, dict(again.shares), dict(again.timings)) == (None, {}, {"key": None})
    again.add(SECOND)
    last = file.open({})
    last.start_from(("a", "b"))
    assert last.next == SECOND


def _trial(**values):
    return lambda progress: progress["trials"][0].update(values)


@pytest.mark.parametrize(
    "work",
    [
        *(_trial(keep_float=value) for value in (-1, 0.5, 10**30, None, "x")),
        *(_trial(float_cost=value) for value in (-0.5, 7.0, "nan", "inf", None)),
        *(_trial(seconds=value) for value in (-1.0, "nan", "inf", None)),
        *(_trial(seconds_left=value) for value in (-1.0, "nan")),
        *(_trial(taken=value) for value in (2, None, "x")),
        *(_trial(what=value) for value in (5, None)),
        *(_trial(score=value) for value in (None, 5.0, {}, {"drop": "x", "sqnr_db": 1.0})),
        lambda progress: progress["trials"][0].pop("score"),
        lambda progress: progress.update(trials={}),
        *(lambda progress, value=value: progress.update(shares={"a": value}) for value in (-1.0, "nan", 1e9)),
        *(
            lambda progress, value=value: progress.update(
                timings={"a": {"seconds": value, "least": 1.0, "most": 1.0}}
            )
            for value in (-1.0, "nan", "inf")
        ),
        lambda progress: progress.update(keep_float=["a", "a"]),
        lambda progress: progress.update(keep_float=[1]),
    ],
)
def test_numbers_that_no_search_writes_are_refused(file, work):
    file.open({}).add(FIRST)
    change(file.path, lambda document: work(document["progress"]))
    with pytest.raises(TableError, match=r"cannot read the checkpoint .*; remove it to begin anew"):
        file.open({})


def test_scores_that_were_not_measured_come_back(file):
    file.open({}).add(Trial("as calibrated", Score(math.nan, math.nan, math.inf), True, 0, 1.0000000002, 0.5))
    assert math.isnan(file.open({}).next.score.sqnr_db)


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
