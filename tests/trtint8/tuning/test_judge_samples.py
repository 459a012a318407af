"""Samples to judge by for which a budget means nothing, or something else."""

import numpy as np
import pytest

from calibrators.data.batches import open_batches
from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.tuning.first_form import first_form
from trtint8.tuning.judge_samples import begin_judging
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


def begun(model, tuned_on, judge, **budget):
    model = prepare(load_model(model))
    form = first_form(model, open_batches(tuned_on, model.inputs, batch_size=2))
    judged = open_batches(judge, model.inputs, batch_size=2)
    return begin_judging(model, Budget(**budget).goal(form), form, judged)


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
