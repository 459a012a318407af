"""What was tried, with the result among it."""

import dataclasses

from tests.trtint8.report.samples import TUNING_LOG
from trtint8.report.layers import make_tried
from trtint8.tuning.candidates import Trial
from trtint8.validation.budget import Score


def test_logs_of_earlier_versions_are_shown_by_the_sqnr():
    for log in (
        dataclasses.replace(TUNING_LOG, metric="", unit="", goal=""),
        dataclasses.replace(
            TUNING_LOG, trials=(Trial("as calibrated", Score(2.5, 20.0), True, 0, 0.0, 1.0),), keep_float=()
        ),
    ):
        tried = make_tried(log)
        assert (tried.metric, tried.unit) == ("sqnr", "dB")
        assert (tried.candidates[0].value, tried.candidates[0].shown) == (20.0, "20.00\xa0dB")


def test_a_trial_that_was_not_taken_is_not_the_result():
    """None is within the budget, and adaptive rounding gains too little."""
    trials = tuple(
        Trial(what, Score(9.0, level, 71.0), False, 1, 0.25, 1.0)
        for what, level in (("1 layer in float", 10.0), ("adaptive rounding", 10.05))
    )
    log = dataclasses.replace(TUNING_LOG, trials=trials, float_cost=0.25, chosen=0)
    assert make_tried(log).chosen.what == "1 layer in float"


def test_a_log_that_does_not_say_which_is_the_result_marks_none():
    assert make_tried(dataclasses.replace(TUNING_LOG, chosen=None)).chosen is None


def test_nothing_was_tried():
    assert make_tried(None) is None
    assert make_tried(dataclasses.replace(TUNING_LOG, trials=())) is None
