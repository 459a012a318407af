"""What a budget means for a network, and when it is kept."""

import contextlib
import dataclasses
import math

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.validation.accuracy import Accuracy, Measure, SeenSamples
from trtint8.validation.batch import BatchForm
from trtint8.validation.budget import Budget, Goal, Score, score_of
from trtint8.validation.fidelity import Fidelity
from trtint8.validation.metrics import DetectionAgreement
from trtint8.validation.significance import Comparison, SameAnswer, Share

SCORES = {"logits": np.zeros((4, 10), np.float32)}
MAPS = {"classes": np.zeros((4, 3, 8, 8), np.float32)}
INDICES = np.zeros(4, np.int64)


def goal(outputs, labels=None, **budget):
    return Budget(**budget).goal(BatchForm.of(outputs, labels, 4))


@pytest.mark.parametrize(
    ("outputs", "labels", "budget", "words"),
    [
        (SCORES, INDICES, {}, "top1: a drop of at most 1 point"),
        (SCORES, None, {}, "agreement: a drop of at most 1 point"),
        (SCORES, None, {"max_drop": 0.3}, "agreement: a drop of at most 0.3 points"),
        (SCORES, INDICES, {"minimum": 90}, "top1: at least 90 %"),
        (MAPS, None, {}, "sqnr: at least 20 dB"),
        (MAPS, INDICES, {"minimum": 30.0}, "sqnr: at least 30 dB"),
        (MAPS, None, {"metric": "pixels"}, "pixels: a drop of at most 1 point"),
        (MAPS, None, {"metric": "miou", "max_drop": 2}, "miou: a drop of at most 2 points"),
        (MAPS, None, {"metric": "psnr"}, "psnr: at least 20 dB"),
        (MAPS, np.zeros((4, 3, 8, 8)), {"metric": "psnr"}, "psnr: a drop of at most 0.5 dB"),
        (MAPS, None, {"metric": "max_error", "max_drop": 0.25}, "max_error: at most 0.25"),
        (MAPS, None, {"metric": "cosine", "minimum": 0.99}, "cosine: at least 0.99"),
        (MAPS, None, {"metric": "pixels", "minimum": 100.0}, "pixels: at least 100 %"),
        (
            MAPS,
            None,
            {"metric": DetectionAgreement(list), "max_drop": 5, "minimum": 80},
            "detections: a drop of at most 5 points and at least 80 %",
        ),
    ],
)
def test_the_goal_in_words(outputs, labels, budget, words):
    found = goal(outputs, labels, **budget)
    assert str(found) == words
    assert (found.chosen is None) == ("metric" in budget)


def test_the_goal_of_a_detector():
    form = BatchForm.of({"rows": np.zeros((4, 10, 6), np.float32)}, None, 4, picked=("rows",))
    found = Budget().goal(form)
    assert str(found) == "sqnr: at least 20 dB"
    assert "chose the detections in common with FP32, and SQNR" in found.chosen
    assert "'classes' (float32, 4x3x8x8)" in goal(MAPS).chosen
    pytest.importorskip("faster_coco_eval")
    found = goal({"output0": np.zeros((4, 10, 64), np.float32)}, np.zeros((4, 3, 5), np.float32))
    assert str(found) == "map: a drop of at most 1 point"


@pytest.mark.parametrize(
    ("budget", "value"),
    [
        ({"max_drop": -1.0}, "max_drop is -1.0"),
        ({"max_drop": math.nan}, "max_drop is nan"),
        ({"max_drop": "1"}, "max_drop is '1'"),
        ({"minimum": math.nan}, "nan"),
        ({"minimum": "90"}, "'90'"),
        ({"metric": "speed"}, "'speed'.* top1"),
        ({"max_drop": 0.5}, "'classes' .*SQNR .*minimum"),
        ({"max_drop": 0.5, "metric": "sqnr"}, "'sqnr' has no drop"),
        ({"max_drop": 0.5, "metric": "psnr"}, "'psnr' has no drop"),
        ({"minimum": 0.5, "metric": "max_error"}, "'max_error' is better"),
        ({"minimum": 200.0, "metric": "pixels"}, "'pixels' .*200"),
        ({"minimum": 0.95, "metric": "pixels"}, "'pixels' .*per cent.*95$"),
        ({"metric": "max_error"}, "'max_error' .* as max_drop$"),
        ({"metric": "cosine"}, "'cosine' has a unit"),
        ({"metric": lambda feeds, outputs: 0.0}, "'<lambda>' has a unit"),
        ({"metric": "psnr:hr"}, "'hr' .*classes"),
        ({"metric": "detections"}, "'detections' and 'map' find no"),
    ],
)
def test_budgets_that_mean_nothing(budget, value):
    with pytest.raises(CalibrationDataError, match=value):
        goal(MAPS, **budget)


def test_what_fits():
    drop, least = goal(SCORES, max_drop=0.5), goal(MAPS, minimum=30.0)
    assert all(drop.fits(Score(d, 20.0, 99.0)) for d in (-1.0, 0.5))
    assert not any(drop.fits(Score(d, 20.0, 99.0)) for d in (0.6, math.nan, None))
    assert all(least.fits(Score(None, v, v)) for v in (30.0, math.inf))
    assert not any(least.fits(Score(None, v, v)) for v in (29.9, math.nan))
    both = goal(SCORES, max_drop=1.0, minimum=90.0)
    assert both.fits(Score(0.5, 20.0, 95.0)) and not both.fits(Score(0.5, 20.0, 89.0))


@pytest.mark.parametrize(
    ("metric", "unit", "limits", "fp32", "int8", "fits"),
    [
        ("pixels", "%", {"max_drop": 1.0}, 0.8, 0.79, True),
        ("pixels", "%", {"max_drop": 1.0}, 0.8, 0.7899, False),
        ("pixels", "%", {"max_drop": 0.0}, 0.1 + 0.2, 0.3, True),
        ("pixels", "%", {"minimum": 58.0}, 1.0, 0.58 - 1e-16, True),
        ("pixels", "%", {"minimum": 58.0}, 1.0, 0.5799, False),
        ("psnr:own", "", {"max_drop": 0.01}, 0.81, 0.80, True),
        ("psnr:own", "", {"max_drop": 1e-10}, 1e-9, 0.8e-9, False),
        ("psnr:own", "", {"max_drop": 1e-10}, 1e-9, 0.9e-9, True),
    ],
)
def test_limits_that_are_met_exactly(metric, unit, limits, fp32, int8, fits):
    """In floating point 100 (0.8 - 0.79) is more than 1, and 0.81 - 0.80 more than 0.01."""
    found = Goal(metric, metric, unit, limits.get("max_drop"), limits.get("minimum"))
    measure = Measure(metric, int8, fp32, unit=unit)
    assert found.judge(compared(4, measure)).fits == fits


@pytest.mark.parametrize(
    ("limits", "score", "refused"),
    [
        ({"minimum": 99.0}, Score(0.0, 37.0, 98.4375), True),
        ({"minimum": 99.0}, Score(2.0, 37.0, 96.4375), True),
        ({"minimum": 99.0}, Score(2.0, 37.0, 97.0), False),  # FP32 has just that
        ({"minimum": 99.0}, Score(-1.0, 37.0, 99.5), False),  # INT8 is better by chance
        ({"max_drop": 0.5}, Score(2.0, 37.0, 96.0), False),
        ({"minimum": 99.0}, Score(None, 37.0, 96.0), False),
    ],
)
def test_a_least_value_that_fp32_itself_does_not_have(limits, score, refused):
    found = Goal("top1", "top1", "%", limits.get("max_drop"), limits.get("minimum"))
    error = pytest.raises(CalibrationDataError, match=r"top1 98\.44 .*99\.00")
    with error if refused else contextlib.nullcontext():
        found.check_reachable(score)


def test_infinite_levels_of_fp32():
    def judged(value):
        measure = Measure("psnr", value, math.inf, unit="dB")
        return goal(MAPS, np.zeros((4, 3, 8, 8)), metric="psnr").judge(compared(4, measure))

    assert judged(math.inf).fits and "drop 0.00 dB, psnr inf dB" in judged(math.inf).notes[0]
    assert not judged(26.5).fits and "drop inf dB, psnr 26.50 dB" in judged(26.5).notes[0]


def compared(samples, *measures, outputs=()):
    return Accuracy("a test", samples, None, None, None, None, None, outputs, measures)


def top1(lost, samples):
    """A comparison in which FP32 has all samples right but ten, and INT8 loses some of these."""
    right = Share(samples - 10 - lost, samples), Share(samples - 10, samples)
    agreement = Measure("agreement", Share(samples, samples), unit="%", perfect=1.0)
    return compared(samples, Measure("top1", *right, unit="%"), agreement)


@pytest.mark.parametrize(
    ("lost", "samples", "max_drop", "fits", "too_fine"),
    [
        (0, 100, 0.1, None, True),
        (1, 100, 0.1, False, True),
        (1, 100, 1.0, True, False),
        (2, 100, 1.0, False, False),
        (0, 100, 0.0, True, False),
        (1, 100, 0.0, False, False),
        (3, 1000, 0.3, True, False),
        (4, 1000, 0.3, False, False),
        (0, 300, 0.3, None, True),
    ],
)
def test_what_samples_say_of_a_largest_drop(lost, samples, max_drop, fits, too_fine):
    found = goal(SCORES, INDICES, max_drop=max_drop).judge(top1(lost, samples))
    assert (found.fits, found.too_fine, found.step) == (bool(fits), too_fine, 100 / samples)
    if fits is None:  # whether it is kept or missed, nothing less than one sample can be lost
        assert found.unjudged in found.notes[0] and (found.drop, found.value) == (None, None)
        return
    assert (found.drop, found.value) == (100 * lost / samples, 100 * (samples - 10 - lost) / samples)
    assert len(found.notes) == 1 + too_fine and found.unjudged is None


def test_a_usual_budget_that_is_finer_than_a_sample_is_noted():
    found = goal(SCORES, INDICES).judge(top1(0, 50))
    assert (found.fits, found.too_fine, len(found.notes)) == (True, True, 2)


def test_scores_and_judgements_in_words():
    assert goal(SCORES).describe(Score(1.25, 20.0, 98.75)) == "drop 1.25 points, agreement 98.75 %"
    assert goal(MAPS).describe(Score(None, 25.0, 25.0)) == "sqnr 25.00 dB"
    own = goal(MAPS, metric="max_error", max_drop=1)
    assert own.describe(Score(0.25, 25.0, 0.25)) == "max_error 0.25"
    found = goal(SCORES, INDICES, max_drop=0.3).judge(top1(1, 100))
    assert found.goal == "top1: a drop of at most 0.3 points"
    missed, too_fine = found.notes
    assert "on 100 samples" in missed and missed.endswith("drop 1.00 points, top1 89.00 %")
    assert "0.3 points" in too_fine and "1 point;" in too_fine and "334 different samples" in too_fine


def test_metrics_that_count_no_samples_have_no_step():
    outputs = (Fidelity("classes", 29.0, 0.99, 0.5),)
    found = goal(MAPS, minimum=30.0, metric="sqnr").judge(compared(4, outputs=outputs))
    assert (found.fits, found.value, found.drop) == (False, 29.0, None)
    assert (found.step, found.too_fine) == (None, False)
    assert found.notes == ("on 4 samples the budget (sqnr: at least 30 dB) is missed: sqnr 29.00 dB",)
    pixels = compared(4, Measure("pixels", 0.98, unit="%", perfect=1.0))
    found = goal(MAPS, metric="pixels", max_drop=3).judge(pixels)
    assert (found.fits, found.value, found.step, found.too_fine) == (True, 98.0, None, False)


OUTPUTS = (Fidelity("p2", 24.0, 0.99, 0.5, 0.9), Fidelity("p3", 22.0, 0.98, 0.25))


def scored(metric, *measures, outputs=OUTPUTS):
    return score_of(compared(4, *measures, outputs=outputs), metric)


@pytest.mark.parametrize(
    ("metric", "drop", "value"),
    [("sqnr", None, 22.0), ("cosine", 0.02, 0.98), ("max_error", 0.5, 0.5), ("token_cosine", 0.1, 0.9)],
)
def test_metrics_of_single_outputs_are_those_of_the_worst(metric, drop, value):
    score = scored(metric)
    assert (score.sqnr_db, score.value) == (22.0, value)
    assert score.drop == (None if drop is None else pytest.approx(drop))
    broken = (*OUTPUTS, Fidelity("p4", math.nan, math.nan, math.nan))
    assert math.isnan(scored("sqnr", outputs=broken).sqnr_db)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (Measure("top1", Share(7, 10), Share(8, 10), unit="%"), Score(10.0, 22.0, 70.0, True)),
        (Measure("agreement", Share(9, 10), unit="%", perfect=1.0), Score(10.0, 22.0, 90.0, True)),
        # Exact, as differences of rounded shares would be slightly above a limit that they equal.
        (Measure("top1", Share(80, 100), Share(81, 100), unit="%"), Score(1.0, 22.0, 80.0, True)),
        (Measure("agreement", Share(57, 100), unit="%", perfect=1.0), Score(43.0, 22.0, 57.0, True)),
        (Measure("top1", Share(6, 1000), Share(9, 1000), unit="%"), Score(0.3, 22.0, 0.6, True)),
        (Measure("pixels", 0.75, unit="%", perfect=1.0), Score(25.0, 22.0, 75.0, True)),
        (Measure("psnr", 26.5, 27.0, unit="dB"), Score(0.5, 22.0, 26.5)),
        (Measure("psnr", 26.5, unit="dB", perfect=math.inf), Score(None, 22.0, 26.5)),
        (Measure("psnr:own", 3.0, 3.5), Score(0.5, 22.0, 3.0)),
    ],
)
def test_other_metrics_drop_in_their_own_unit(measure, expected):
    """Among other metrics, too."""
    other = Measure("top5", Share(4, 4), Share(4, 4))
    assert scored(measure.name, other, measure) == expected
    assert math.isnan(scored(measure.name, other, measure, outputs=()).sqnr_db)


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
    assert scored("psnr", measure) == Score(drop, 22.0, value)


def test_what_the_samples_that_decided_say_beside_others():
    least = goal(MAPS, minimum=30.0, metric="sqnr")
    missed = compared(4, outputs=(Fidelity("classes", 29.5, 0.99, 0.5),))
    assert "30.1" in least.judge(missed, None, Score(None, 30.1, 30.1)).notes[-1]
    assert len(least.judge(missed, None, Score(None, 29.9, 29.9)).notes) == 1  # they missed it too


LOSS_OF_ONE = Measure("pixels", 0.99, unit="%", perfect=1.0)


@pytest.mark.parametrize(
    ("budget", "interval", "verdict", "needed"),
    [
        ({"metric": "sqnr", "minimum": 30.0}, (31.0, 37.0), "kept", None),
        ({"metric": "sqnr", "minimum": 30.0}, (28.0, 37.0), "uncertain", 4000),
        ({"metric": "sqnr", "minimum": 30.0}, None, "uncertain", None),
        ({"metric": "sqnr", "minimum": 32.0}, (28.0, 37.0), "uncertain", None),  # the figure is the limit
        ({"metric": "sqnr", "minimum": 33.0}, (28.0, 37.0), "missed", None),
        ({"metric": "sqnr", "minimum": 33.0}, None, "missed", None),
        ({"metric": "pixels", "max_drop": 3.0}, (0.98, 1.0), "kept", None),
        ({"metric": "pixels", "max_drop": 1.5}, (0.98, 1.02), "uncertain", 4000),
        ({"metric": "pixels", "max_drop": 0.5}, (0.98, 1.0), "missed", None),
        # Both limits count, and the one that is further from being decided.
        ({"metric": "pixels", "max_drop": 3.0, "minimum": 98.5}, (0.98, 1.0), "uncertain", 4000),
        ({"metric": "pixels", "max_drop": 1.2, "minimum": 98.5}, (0.98, 1.0), "uncertain", 25_000),
        ({"metric": "pixels", "max_drop": 1.05}, (0.98, 1.0), "uncertain", None),  # far from being decided
        ({"metric": "max_error", "max_drop": 1.0}, None, "uncertain", None),
    ],
)
def test_an_interval_makes_a_verdict(budget, interval, verdict, needed):
    found = compared(1000, LOSS_OF_ONE, outputs=(Fidelity("classes", 32.0, 0.99, 0.5),))
    judged = goal(MAPS, **budget).judge(found, interval)
    assert (judged.verdict, judged.needed) == (verdict, needed)
    assert judged.fits == (verdict != "missed") and judged.unjudged is None
    sure = goal(MAPS, **budget, certain=True).judge(found, interval)
    assert (sure.verdict, sure.fits) == (verdict, verdict == "kept")
    if interval and judged.is_share:
        low, high = judged.interval
        assert (low, high) == pytest.approx((98.0, 100.0))
        assert judged.drop_interval == pytest.approx((0.0, 2.0))


def test_the_interval_of_a_drop_is_that_of_the_comparison():
    comparison = Comparison("FP32", -0.01, (-0.03, 0.01), 0.3, "McNemar", 1000)
    measure = Measure("top1", Share(890, 1000), Share(900, 1000), (comparison,), unit="%")
    score = score_of(compared(1000, measure), "top1", (0.87, 0.91))
    assert score.interval == (87.0, 91.0) and score.drop_interval == (-1.0, 3.0)
    assert (score.at_worst.value, score.at_worst.drop) == (87.0, 3.0)
    for most, verdict in ((3, "kept"), (2, "uncertain"), (0.5, "missed")):
        judged = goal(SCORES, INDICES, max_drop=most).judge(compared(1000, measure), (0.87, 0.91))
        assert judged.verdict == verdict
    same = dataclasses.replace(comparison, interval=(0.0, 0.0))  # by a bootstrap, where nothing differs
    measure = dataclasses.replace(measure, comparisons=(same,))
    assert score_of(compared(1000, measure), "top1", (0.87, 0.91)).drop_interval is None


@pytest.mark.parametrize(
    ("outputs", "budget", "samples", "refused"),
    [
        (SCORES, {"metric": "agreement", "max_drop": 1.0}, 380, True),
        (SCORES, {"metric": "agreement", "max_drop": 1.0}, 381, False),
        (SCORES, {"metric": "agreement", "minimum": 95.0}, 50, True),
        (SCORES, {"metric": "top1", "max_drop": 1.0}, 100, True),
        (MAPS, {"metric": "sqnr", "minimum": 20.0}, 5, True),
        (MAPS, {"metric": "sqnr", "minimum": 20.0}, 6, False),
        (MAPS, {"metric": "max_error", "max_drop": 1.0}, 1000, True),
    ],
)
def test_what_no_network_keeps_for_certain_is_refused(outputs, budget, samples, refused):
    form = BatchForm.of(outputs, INDICES, 4)
    error = pytest.raises(CalibrationDataError, match="certain")
    with error if refused else contextlib.nullcontext():
        goal(outputs, certain=True, **budget).check_certain(samples, form)
    goal(outputs, **budget).check_certain(samples, form)


@pytest.mark.parametrize(
    ("right", "fp32", "same", "is_beaten", "limits", "fits", "is_judged"),
    [
        (985, 990, 0.1, True, {"max_drop": 1}, True, True),
        (95, 100, 0.11, False, {"max_drop": 1}, False, False),  # chance
        (900, 990, 0.1, True, {"max_drop": 1}, False, True),
        # One class has 95 % of the samples: a point is nothing beside it, half a point tells.
        (958, 960, 0.95, True, {"max_drop": 1}, False, False),
        (958, 960, 0.95, True, {"max_drop": 0.5}, True, True),
        (958, 960, 0.95, True, {"minimum": 90}, False, False),
        (958, 960, 0.95, True, {"minimum": 95.5}, True, True),
    ],
)
def test_a_budget_that_the_same_answer_for_all_would_keep_is_not_judged(
    right, fp32, same, is_beaten, limits, fits, is_judged
):
    """``same`` is the top-1 of a network with one answer."""
    answer = SameAnswer(same, is_beaten)
    lost = (right - fp32) / 1000
    level = Comparison("FP32", lost, (lost - 1e-6, lost + 1e-6), 0.5, "McNemar", 1000)
    measure = Measure("top1", Share(right, 1000), Share(fp32, 1000), (level,), unit="%", same_answer=answer)
    accuracy = dataclasses.replace(compared(1000, measure), seen=SeenSamples(1000, 1, {}))
    judged = goal(SCORES, INDICES, **limits).judge(accuracy)
    assert (judged.fits, judged.unjudged is None, judged.value is not None) == (fits, is_judged, is_judged)
    # The interval is that of the network that is judged, and not of the one with one answer.
    sure = goal(SCORES, INDICES, certain=True, **limits).judge(accuracy, (right / 1000 - 1e-6, right / 1000))
    assert (sure.fits, sure.unjudged) == (judged.fits, judged.unjudged)
