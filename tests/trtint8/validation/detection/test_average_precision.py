"""Average precision by hand: at each of 101 recalls, the best precision at that recall or beyond."""

import sys

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, UnsupportedError
from tests.trtint8.validation.small_models import FAR, OTHER, SQUARE, boxes_times
from trtint8.validation.metrics import Detections, MeanAveragePrecision, Truth

NOTHING = Detections([], [], [])


@pytest.fixture
def score():
    pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")

    def score(found, truth, **options):
        metric = MeanAveragePrecision(lambda outputs: found[outputs["which"]], truth, **options).fresh()
        first = len(found) // 2
        metric.update({}, {"which": slice(0, first)}, None)
        metric.update({}, {"which": slice(first, None)}, None)
        return metric.value()

    return score


def test_every_box_found(score):
    found = Detections([SQUARE, OTHER], [0.9, 0.8], [0, 1])
    assert score([found], [Truth([SQUARE, OTHER], [0, 1])]) == pytest.approx(1.0)


def test_a_false_box_between_two_right_ones(score):
    # Precisions 1, 1/2, 2/3 at recalls 1/2, 1/2, 1: 51 recalls up to 0.5 have 1, the other 50 have 2/3.
    found = Detections([SQUARE, FAR, OTHER], [0.9, 0.8, 0.7], [0, 0, 0])
    truth = [Truth([SQUARE, OTHER], [0, 0])]
    assert score([found], truth, iou=0.5) == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_a_false_box_with_the_best_score(score):
    found = Detections([FAR, SQUARE], [0.9, 0.8], [0, 0])
    assert score([found], [Truth([SQUARE], [0])], iou=0.5) == pytest.approx(0.5)


def test_the_second_box_on_an_object_is_false(score):
    found = Detections([SQUARE, SQUARE, OTHER], [0.9, 0.8, 0.7], [0, 0, 0])
    truth = [Truth([SQUARE, OTHER], [0, 0])]
    assert score([found], truth, iou=0.5) == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_an_object_that_is_not_found(score):
    found = [Detections([SQUARE], [0.9], [0]), NOTHING]
    truth = [Truth([SQUARE], [0]), Truth([SQUARE], [0])]
    assert score(found, truth, iou=0.5) == pytest.approx(51 / 101)  # recall ends at 1/2


def test_classes_count_alike_however_many_boxes_they_have(score):
    found = [Detections([SQUARE, OTHER], [0.9, 0.8], [0, 0]), NOTHING]
    truth = [Truth([SQUARE, OTHER], [0, 0]), Truth([SQUARE], [7])]
    assert score(found, truth) == pytest.approx(0.5)


def test_a_class_that_is_nowhere_does_not_count(score):
    found = [Detections([SQUARE, FAR], [0.9, 0.8], [0, 3])]
    assert score(found, [Truth([SQUARE], [0])]) == pytest.approx(1.0)


def test_the_scores_of_all_images_stand_in_one_row(score):
    # By score: right (image 1), false (image 0), right (image 0).
    found = [Detections([FAR, SQUARE], [0.6, 0.5], [0, 0]), Detections([SQUARE], [0.9], [0])]
    truth = [Truth([SQUARE], [0]), Truth([SQUARE], [0])]
    assert score(found, truth, iou=0.5) == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_the_mean_over_thresholds(score):
    found = [Detections([[0, 0, 10, 6]], [0.9], [0])]  # intersection over union 0.6
    truth = [Truth([SQUARE], [0])]
    assert score(found, truth, iou=(0.5, 0.55, 0.65)) == pytest.approx(2 / 3)
    assert score(found, truth, iou=0.7) == 0.0
    assert score([Detections([[0, 0, 10, 8.2]], [0.9], [0])], truth) == pytest.approx(0.7)  # 0.50 to 0.80


def test_boxes_in_any_unit(score):
    box = [0.25, 0.25, 0.5, 0.5]
    assert score([Detections([box], [0.9], [0])], [Truth([box], [0])]) == pytest.approx(1.0)


def test_nothing_found_is_zero(score):
    assert score([NOTHING], [Truth([SQUARE], [0])]) == 0.0


def test_its_name_says_the_thresholds(score):
    truth = [Truth([SQUARE], [0])]
    assert MeanAveragePrecision(lambda outputs: [], truth).name == "mAP@0.50:0.95"
    assert MeanAveragePrecision(lambda outputs: [], truth, iou=0.75).name == "mAP@0.75"


def test_what_cannot_be_scored(score):
    with pytest.raises(CalibrationDataError, match="the truth has 1 image but the data has more"):
        score([NOTHING, NOTHING], [Truth([SQUARE], [0])])
    with pytest.raises(CalibrationDataError, match="the truth has no boxes"):
        score([NOTHING], [Truth([], []), Truth([SQUARE], [0])])  # none in the image that there is
    with pytest.raises(CalibrationDataError, match="detections of image 0 of a batch have 2, 1, 1 boxes"):
        score([Detections([SQUARE, OTHER], [0.9], [0])], [Truth([SQUARE], [0])])


@pytest.mark.parametrize(
    ("truth", "options", "message"),
    [
        ([], {}, "the truth has no boxes"),
        ([([], [])] * 10, {}, "the truth has no boxes"),
        ([([SQUARE], [0, 1])], {}, "the true boxes of image 0 have 1, 2 boxes, classes"),
        ([([SQUARE], [0])], {"iou": 50}, "iou is 50; give one threshold or more, above 0 and up to 1"),
        ([([SQUARE], [0])], {"iou": []}, r"iou is \[\]; give one threshold or more"),
        ([([SQUARE], [0])], {"iou": "a"}, "iou is 'a'; give one threshold or more"),
        ([([SQUARE], [0])], {"iou": [0.5, float("nan")]}, r"iou is \[0.5, nan\]; give one threshold or more"),
    ],
)
def test_what_is_refused_before_the_run(truth, options, message):
    pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")
    with pytest.raises(CalibrationDataError, match=message):
        MeanAveragePrecision(lambda outputs: [], truth, **options)


def test_a_detector_is_validated(score):
    boxes = np.array([SQUARE, OTHER, SQUARE], np.float32)

    def decode(outputs):
        return [(box[None], [1.0], [0]) for box in outputs["boxes"]]

    result = trtint8.validate(
        boxes_times(1.3),
        boxes,
        reference=boxes_times(1.0),
        metrics=["max_error", MeanAveragePrecision(decode, [([box], [0]) for box in boxes], iou=0.5)],
        batch_size=2,
        progress=False,
    )
    (measure,) = result.measures
    # [0, 13]^2 holds [0, 10]^2 with 100 / 169 = 0.59; [26, 39]^2 and [20, 30]^2 share 16 of 253. Of equal
    # scores the first image's comes first, so precisions are 1, 1/2, 2/3 at recalls 1/3, 1/3, 2/3.
    assert (measure.name, measure.reference) == ("mAP@0.50", pytest.approx(1.0))
    assert measure.value == pytest.approx((34 + 33 * 2 / 3) / 101)
    assert measure.comparisons == ()
    assert result.outputs[0].max_error == pytest.approx(9.0)


def test_the_library_is_asked_for_before_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'trtint8\[detection\]'"):
        MeanAveragePrecision(lambda outputs: [], [Truth(np.zeros((0, 4)), [])])
