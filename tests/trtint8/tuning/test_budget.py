"""What a budget means for a network, and when it is kept."""

import math

import numpy as np
import pytest

from calibrators.data.batches import open_batches
from calibrators.errors import CalibrationDataError
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.tuning.budget import Budget, first_form
from trtint8.tuning.scores import Score
from trtint8.validation.batch import BatchForm
from trtint8.validation.metrics import DetectionAgreement

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
        (
            MAPS,
            None,
            {"metric": DetectionAgreement(lambda outputs: []), "max_drop": 5, "minimum": 80},
            "detections: a drop of at most 5 points and at least 80 %",
        ),
    ],
)
def test_the_goal_in_words(outputs, labels, budget, words):
    found = goal(outputs, labels, **budget)
    assert str(found) == words
    assert (found.chosen is None) == ("metric" in budget)


def test_what_detections_are_picked_from_is_the_goal_of_a_detector():
    form = BatchForm.of({"rows": np.zeros((4, 10, 6), np.float32)}, None, 4, picked=("rows",))
    found = Budget().goal(form)
    assert str(found) == "sqnr: at least 20 dB"
    assert "chose the detections in common with FP32, and SQNR" in found.chosen


def test_true_boxes_are_the_goal_of_a_detector():
    pytest.importorskip("faster_coco_eval")
    found = goal({"output0": np.zeros((4, 10, 64), np.float32)}, np.zeros((4, 3, 5), np.float32))
    assert str(found) == "map: a drop of at most 1 point"


def test_why_a_metric_was_chosen():
    assert goal(MAPS).chosen == (
        "output 'classes' (float32, 4x3x8x8) is no row of class scores per sample: chose SQNR, cosine and "
        "largest error of every output"
    )


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"max_drop": -1.0}, "max_drop is -1.0; give 0 or more"),
        ({"max_drop": math.nan}, "max_drop is nan"),
        ({"max_drop": "1"}, "max_drop is '1'; give 0 or more"),
        ({"minimum": math.nan}, "the least value is not a number but nan; give a number"),
        ({"minimum": "90"}, "the least value is not a number but '90'; give a number"),
        (
            {"metric": "speed"},
            "there is no metric 'speed'; there are top1, top5 and so on, agreement, psnr, pix",
        ),
        (
            {"max_drop": 0.5},
            r"'classes' .* is no row of class scores .*; SQNR has no drop, .* as minimum \(--min\), such as",
        ),
        ({"max_drop": 0.5, "metric": "sqnr"}, "metric 'sqnr' has no drop"),
        ({"max_drop": 0.5, "metric": "psnr"}, "metric 'psnr' has no drop"),
        ({"minimum": 0.5, "metric": "max_error"}, "metric 'max_error' is better the smaller it is"),
        (
            {"minimum": 200.0, "metric": "pixels"},
            r"metric 'pixels' is a share, and the least value is 200 per cent; give at most 100 as min",
        ),
        ({"metric": "cosine"}, "metric 'cosine' has a unit of its own; say what is enough"),
        ({"metric": lambda feeds, outputs: 0.0}, "metric '<lambda>' has a unit of its own"),
        ({"metric": "psnr:hr"}, "is of an output 'hr' that the model does not have; there are classes"),
        ({"metric": "detections"}, "metric 'detections' finds no boxes"),
    ],
)
def test_budgets_that_mean_nothing(budget, message):
    with pytest.raises(CalibrationDataError, match=message):
        goal(MAPS, **budget)


def test_the_largest_share_may_be_asked_for():
    assert str(goal(MAPS, minimum=100.0, metric="pixels")) == "pixels: at least 100 %"


def test_what_fits():
    drop, least = goal(SCORES, max_drop=0.5), goal(MAPS, minimum=30.0)
    assert all(drop.fits(Score(d, 20.0, 99.0)) for d in (-1.0, 0.5))
    assert not any(drop.fits(Score(d, 20.0, 99.0)) for d in (0.6, math.nan, None))
    assert all(least.fits(Score(None, v, v)) for v in (30.0, math.inf))
    assert not any(least.fits(Score(None, v, v)) for v in (29.9, math.nan))
    both = goal(SCORES, max_drop=1.0, minimum=90.0)
    assert both.fits(Score(0.5, 20.0, 95.0)) and not both.fits(Score(0.5, 20.0, 89.0))


def test_a_score_in_words():
    assert goal(SCORES).describe(Score(1.25, 20.0, 98.75)) == "drop 1.25 points, agreement 98.75 %"
    assert goal(MAPS).describe(Score(None, 25.0, 25.0)) == "sqnr 25.00 dB"
    own = goal(MAPS, metric="max_error", max_drop=1)
    assert own.describe(Score(0.25, 25.0, 0.25)) == "max_error 0.25"


def test_the_form_of_the_first_batch():
    model = prepare(load_model(DEMO_MODEL))
    data = {"images": np.zeros((5, 1, 8, 8), np.float32), "labels": np.arange(5)}
    form = first_form(model, open_batches(data, model.inputs, batch_size=3))
    assert form.outputs["logits"].shape == (3, 10) and form.rows == 3 and form.has_class_indices
