"""Samples to judge by for which a budget means nothing, or something else."""

import numpy as np
import pytest

from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.trtint8.detectors import CLASSES as KINDS
from tests.trtint8.detectors import Detector, images
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.tuning.first_form import first_form
from trtint8.tuning.judge_samples import begin_judging, check_judging
from trtint8.validation.budget import Budget

IMAGES = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
CLASSES, MAPS, LEVELS = (
    {"x": IMAGES, "labels": labels}
    for labels in (np.arange(6) % 4, np.ones((6, 8, 8), np.int64), np.zeros((6, 4, 8, 8), np.float32))
)
PLAIN = {"x": IMAGES}


def maps():
    g = Shaped(quantized=False)
    return g.model({"x": ["N", 3, 8, 8]}, g.op("Conv", ["x", g.weights(4, 3, 3, 3)], "conv", pads=[1] * 4))


def scores():
    g = Shaped(quantized=False)
    flat = g.op("Flatten", ["x"], "flat")
    return g.model({"x": ["N", 3, 8, 8]}, g.op("MatMul", [flat, g.weights(192, 4)], "scores"))


def grid():
    """Boxes of positive sizes in pixels, and scores of six classes."""
    g = Detector(quantized=False)
    boxes, scores = g.level("one")
    sizes = g.flat(g.op("Relu", [boxes], "sizes"), 4, "flat_boxes")
    rows = g.op("Concat", [sizes, g.flat(scores, KINDS, "flat_scores")], "rows", axis=1)
    return g.model({"images": ["N", 3, 8, 8]}, rows)


def begun(model, tuned_on, judge, **budget):
    model = prepare(load_model(model))
    form = first_form(model, open_batches(tuned_on, model.inputs, batch_size=2))
    judged = open_batches(judge, model.inputs, batch_size=2)
    return begin_judging(model, Budget(**budget).goal(form), form, judged)[1]


@pytest.mark.parametrize(
    ("tuned_on", "judge", "metric", "own", "other"),
    [
        (MAPS, PLAIN, "pixels", "positions of 'y' with the label's class", "positions of 'y' with FP32's"),
        (PLAIN, MAPS, "miou", "mean IoU of 'y' with FP32", "mean IoU of 'y' with the labels"),
        (LEVELS, PLAIN, "psnr", "PSNR of 'y' against the labels", "PSNR of 'y' against FP32"),
        (LEVELS, lambda: iter([PLAIN]), "psnr", "against the labels", "against FP32"),
    ],
)
def test_metrics_that_are_compared_with_something_else(tuned_on, judge, metric, own, other):
    message = f"metric '{metric}' means .*{own}.* for the samples tuned on and .*{other}.* for those to judge"
    with pytest.raises(CalibrationDataError, match=message.replace("'y'", "'conv_out'")):
        begun(maps(), tuned_on, judge, metric=metric)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (
            {},
            "metric 'top1' was chosen for the samples tuned on and does not apply to those to judge by "
            "(output 'scores_out' (float32, 2x4) is one row of class scores per sample: chose agreement, "
            "SQNR, cosine and largest error of every output); give both labels, or neither, or name a metric "
            "that applies to both",
        ),
        (
            {"metric": "top1"},
            "the samples to judge by cannot show whether the budget (top1: a drop of at most 1 point) is "
            "kept: metric 'top1' needs one class index per sample as label; give labels, or take another "
            "metric",
        ),
    ],
)
def test_metrics_that_the_samples_to_judge_by_have_no_labels_for(budget, message):
    with pytest.raises(CalibrationDataError) as caught:
        begun(scores(), CLASSES, PLAIN, **budget)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tuned_on", "judge", "budget"),
    [
        (MAPS, MAPS, {"metric": "pixels"}),
        (PLAIN, PLAIN, {"metric": "pixels"}),
        (MAPS, PLAIN, {}),  # SQNR, which is of no labels
        (PLAIN, MAPS, {}),
        (LEVELS, PLAIN, {"metric": "max_error", "max_drop": 1.0}),
        (MAPS, PLAIN, {"metric": lambda feeds, outputs: 1.0, "max_drop": 1.0}),
    ],
)
def test_all_samples_are_in_the_pass_that_has_begun(tuned_on, judge, budget):
    found = begun(maps(), tuned_on, judge, **budget)
    assert np.array_equal(np.concatenate([feed["x"] for feed in found]), IMAGES)


def test_labels_that_only_the_samples_to_judge_by_have_are_no_harm_to_agreement():
    assert len(list(begun(scores(), PLAIN, CLASSES))) == 3


def test_a_generator_is_read_once():
    halves = [{name: array[part] for name, array in MAPS.items()} for part in (slice(2), slice(2, 6))]
    found = list(begun(maps(), MAPS, iter(halves), metric="pixels").labelled())
    assert np.array_equal(np.concatenate([batch.feed["x"] for batch in found]), IMAGES)
    assert [batch.labels.shape for batch in found] == [(2, 8, 8)] * 3


def test_there_have_to_be_samples():
    with pytest.raises(CalibrationDataError, match="there are no samples to judge by; pass at least one"):
        begun(maps(), PLAIN, lambda: iter([]), metric="pixels")


def test_a_metric_without_a_value_on_the_first_batch_is_no_reason_to_refuse():
    class Precise:
        """As an area under a curve, which a single class has none of."""

        name = "precise"

        def fresh(self):
            return Precise()

        def update(self, feeds, outputs, labels):
            pass

        def merge(self, other):
            pass

        def value(self):
            raise ValueError("only one class")

    assert len(list(begun(scores(), CLASSES, CLASSES, metric=Precise(), max_drop=1.0))) == 3


def checked(model, judge, tuned_on=None, **budget):
    model = prepare(load_model(model))
    tuned_on, judged = (open_batches(data, model.inputs, batch_size=2) for data in (tuned_on or judge, judge))
    goal = Budget(**budget).goal(first_form(model, tuned_on))
    return check_judging(model, goal, first_form(model, judged), judged)


def with_label(label, dtype=np.int64):
    """Class indices, of which the fifth is this one."""
    return {"x": IMAGES, "labels": np.array([0, 1, 2, 3, label, 1], dtype)}


@pytest.mark.parametrize("budget", [{}, {"metric": "top1"}, {"metric": "top2:scores_out"}])
@pytest.mark.parametrize("label", [4, -1])
def test_classes_that_the_model_does_not_have(label, budget):
    with pytest.raises(CalibrationDataError) as caught:
        checked(scores(), with_label(label), **budget)
    message = f"label {label} is not one of the model's 4 classes (0 to 3); check the labels"
    assert str(caught.value) == message


def test_metrics_that_only_the_samples_to_judge_by_have_labels_for():
    """They are measured at the end, although agreement is what the search keeps."""
    with pytest.raises(CalibrationDataError, match="label 4 is not one of the model's 4 classes"):
        checked(scores(), with_label(4), tuned_on=PLAIN)


@pytest.mark.parametrize(
    ("model", "judge", "budget"),
    [
        (scores(), with_label(3), {}),
        (scores(), with_label(4), {"metric": "sqnr"}),  # of no labels
        (scores(), with_label(4), {"metric": "agreement"}),
        (scores(), with_label(4, np.float32), {}),
        (scores(), PLAIN, {}),
        (maps(), with_label(4), {}),
        (scores(), [CLASSES], {}),
    ],
)
def test_batches_with_usable_labels_are_counted(model, judge, budget):
    assert checked(model, judge, **budget) == 3


def test_levels_that_are_not_finite():
    levels = LEVELS["labels"].copy()
    levels[4, 0, 0, 0] = np.inf
    message = "metric 'psnr' compares with the labels, of which sample 4 has values that are NaN or infinite"
    with pytest.raises(CalibrationDataError, match=message):
        checked(maps(), {"x": IMAGES, "labels": levels}, metric="psnr")


def test_true_boxes_of_a_class_that_the_network_does_not_have():
    """As metric detections judges by them."""
    labels = np.zeros((4, 1, 5), np.float32)
    labels[3, 0] = [0, 0, 4, 4, KINDS]
    data = {"images": images(4), "labels": labels}
    assert checked(grid(), {name: array[:3] for name, array in data.items()}, metric="detections") == 2
    with pytest.raises(
        CalibrationDataError, match="a true box has the class 6, which is not one of the netw"
    ):
        checked(grid(), data, metric="detections")


def test_samples_that_do_not_fit_the_model():
    broken = IMAGES.copy()
    broken[4, 0, 0, 0] = np.nan
    with pytest.raises(CalibrationDataError, match=r"NaN or infinite, the first in sample 4;"):
        checked(scores(), {**CLASSES, "x": broken})


def test_half_of_one_batch_is_none():
    model = prepare(load_model(scores()))
    tuned_on, judged = (open_batches(data, model.inputs) for data in (PLAIN, lambda: iter([])))
    form = first_form(model, tuned_on)
    assert check_judging(model, Budget().goal(form), form, judged) == 0
