"""The score of a candidate from its comparison with FP32."""

import math

import pytest

from trtint8.validation.accuracy import Accuracy
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.measure import Measure
from trtint8.validation.scores import Score, score_of
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
        (Measure("psnr:own", 3.0, 3.5), Score(0.5, 22.0, 3.0)),
    ],
)
def test_other_metrics_drop_in_their_own_unit(measure, expected):
    score = score_of(comparison(measure), measure.name)
    assert (score.sqnr_db, score.value) == (expected.sqnr_db, pytest.approx(expected.value))
    assert score.drop == (None if expected.drop is None else pytest.approx(expected.drop))


@pytest.mark.parametrize(
    ("value", "reference", "perfect", "drop"),
    [
        (math.inf, math.inf, None, 0.0),
        (26.5, math.inf, None, math.inf),
        (math.inf, 27.0, None, -math.inf),
        (-math.inf, -math.inf, None, 0.0),
        (math.inf, None, math.inf, None),
    ],
)
def test_drops_of_infinite_levels(value, reference, perfect, drop):
    """PSNR against labels is infinite for FP32 where they are its own outputs."""
    measure = Measure("psnr", value, reference, unit="dB", perfect=perfect)
    assert score_of(comparison(measure), "psnr") == Score(drop, 22.0, value)


def test_an_output_that_is_not_a_number_is_the_worst():
    broken = (*OUTPUTS, Fidelity("p4", math.nan, math.nan, math.nan))
    assert math.isnan(score_of(comparison(outputs=broken), "sqnr").sqnr_db)


@pytest.mark.parametrize(
    ("measure", "drop", "value"),
    [
        (Measure("top1", Share(80, 100), Share(81, 100), unit="%"), 1.0, 80.0),
        (Measure("agreement", Share(57, 100), unit="%", perfect=1.0), 43.0, 57.0),
        (Measure("top1", Share(6, 1000), Share(9, 1000), unit="%"), 0.3, 0.6),
    ],
)
def test_shares_of_samples_are_exact(measure, drop, value):
    """As differences of rounded shares they would be slightly above a limit that they equal."""
    score = score_of(comparison(measure), measure.name)
    assert (score.drop, score.value) == (drop, value)


def test_the_metric_is_found_among_others():
    measures = Measure("top5", Share(4, 4), Share(4, 4)), Measure("top1", Share(3, 4), Share(4, 4), unit="%")
    score = score_of(comparison(*measures, outputs=()), "top1")
    assert (score.drop, score.value, math.isnan(score.sqnr_db)) == (25.0, 75.0, True)
