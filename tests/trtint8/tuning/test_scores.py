"""The score of a candidate from its comparison with FP32."""

import math

import pytest

from trtint8.tuning.scores import Score, score_of
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.measure import Measure
from trtint8.validation.significance import Share

OUTPUTS = (Fidelity("p2", 24.0, 0.99, 0.5, 0.9), Fidelity("p3", 22.0, 0.98, 0.25))


def comparison(*measures, outputs=OUTPUTS):
    return Accuracy("a test", 4, None, None, None, None, None, outputs, measures)


@pytest.mark.parametrize(
    ("metric", "drop", "value"),
    [("sqnr", None, 22.0), ("cosine", 0.02, 0.98), ("max_error", 0.5, 0.5), ("token_cosine", 0.1, 0.9)],
)
def test_metrics_of_single_outputs_are_those_of_the_worst(metric, drop, value):
    score = score_of(comparison(), metric)
    assert (score.sqnr_db, score.value) == (22.0, value)
    assert score.drop == (None if drop is None else pytest.approx(drop))


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (Measure("top1", Share(7, 10), Share(8, 10), unit="%"), Score(10.0, 22.0, 70.0)),
        (Measure("agreement", Share(9, 10), unit="%", perfect=1.0), Score(10.0, 22.0, 90.0)),
        (Measure("pixels", 0.75, unit="%", perfect=1.0), Score(25.0, 22.0, 75.0)),
        (Measure("psnr", 26.5, 27.0, unit="dB"), Score(0.5, 22.0, 26.5)),
        (Measure("psnr", 26.5, unit="dB", perfect=math.inf), Score(None, 22.0, 26.5)),
        (Measure("own", 3.0, 3.5), Score(0.5, 22.0, 3.0)),
    ],
)
def test_other_metrics_drop_in_their_own_unit(measure, expected):
    score = score_of(comparison(measure), measure.name)
    assert (score.sqnr_db, score.value) == (expected.sqnr_db, pytest.approx(expected.value))
    assert score.drop == (None if expected.drop is None else pytest.approx(expected.drop))


def test_an_output_that_is_not_a_number_is_the_worst():
    broken = (*OUTPUTS, Fidelity("p4", math.nan, math.nan, math.nan))
    assert math.isnan(score_of(comparison(outputs=broken), "sqnr").sqnr_db)
