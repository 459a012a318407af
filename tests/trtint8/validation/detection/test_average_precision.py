"""Average precision by hand: at each of 101 recalls, the best precision at that recall or beyond."""

import sys

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, UnsupportedError
from tests.trtint8.validation.small_models import FAR, OTHER, SQUARE, boxes_times
from trtint8.validation.metrics import Detections, MeanAveragePrecision, Truth

NOTHING = Detections([], [], [])
TWO_OF_THREE = (51 + 50 * 2 / 3) / 101


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


BOX, LOW, LOWER = [0.25, 0.25, 0.5, 0.5], [0, 0, 10, 6], [0, 0, 10, 8.2]


def found(*boxes, classes=None, best=0.9):
    """Detections in falling order of their scores, of class 0 unless told otherwise."""
    return Detections(boxes, best - np.arange(len(boxes)) / 10, classes or [0] * len(boxes))


def true(*boxes, classes=None):
    return Truth(boxes, classes or [0] * len(boxes))


ONE, TWO, HALF = [true(SQUARE)], [true(SQUARE, OTHER)], {"iou": 0.5}


@pytest.mark.parametrize(
    ("images", "truth", "options", "wanted"),
    [
        ([found(SQUARE, OTHER, classes=[0, 1])], [true(SQUARE, OTHER, classes=[0, 1])], {}, 1),
        # Precisions 1, 1/2, 2/3 at recalls 1/2, 1/2, 1: 51 recalls up to 0.5 have 1, the other 50 have 2/3.
        ([found(SQUARE, FAR, OTHER)], TWO, HALF, TWO_OF_THREE),
        # The second box on an object is false.
        ([found(SQUARE, SQUARE, OTHER)], TWO, HALF, TWO_OF_THREE),
        # By score, whatever the image: right (image 1), false (image 0), right (image 0).
        ([found(FAR, SQUARE, best=0.6), found(SQUARE)], ONE * 2, HALF, TWO_OF_THREE),
        ([found(FAR, SQUARE)], ONE, HALF, 0.5),
        # An object that is not found: recall ends at 1/2.
        ([found(SQUARE), NOTHING], ONE * 2, HALF, 51 / 101),
        # Classes count alike however many boxes they have, and one that is nowhere does not count.
        ([found(SQUARE, OTHER), NOTHING], [*TWO, true(SQUARE, classes=[7])], {}, 0.5),
        ([found(SQUARE, FAR, classes=[0, 3])], ONE, {}, 1),
        # Neither does what a row without a box holds.
        ([found(SQUARE)], [true(SQUARE, [0, 0, -1, -1], classes=[0, -1])], {}, 1),
        # A few boxes that are none are wrong detections.
        ([found(SQUARE, [9, 9, 1, 1])], ONE, {}, 1),
        # Intersection over union 0.6, and 0.82: thresholds 0.50 to 0.80.
        ([found(LOW)], ONE, {"iou": (0.5, 0.55, 0.65)}, 2 / 3),
        ([found(LOW)], ONE, {"iou": 0.7}, 0),
        ([found(LOWER)], ONE, {}, 0.7),
        ([found(BOX)], [true(BOX)], {}, 1),
        ([NOTHING], ONE, {}, 0),
    ],
)
def test_precision_at_each_recall(score, images, truth, options, wanted):
    assert score(images, truth, **options) == pytest.approx(wanted)


def test_what_cannot_be_scored(score):
    for images, truth, value in (
        ([NOTHING, NOTHING], ONE, "1 image"),
        ([NOTHING], [true(), *ONE], "no boxes"),  # none in the image that there is
        ([Detections([SQUARE, OTHER], [0.9], [0])], ONE, "2, 1, 1"),
    ):
        with pytest.raises(CalibrationDataError, match=value):
            score(images, truth)
    assert MeanAveragePrecision(lambda outputs: [], ONE).name == "mAP@0.50:0.95"
    assert MeanAveragePrecision(lambda outputs: [], ONE, iou=0.75).name == "mAP@0.75"


def test_detections_that_are_mostly_no_boxes_are_warned_of(score):
    """A position and a size in place of two corners; a network that is not trained may give such, too."""
    with pytest.warns(UserWarning, match="x, y, width and height"):
        assert score([found([20, 30, 10, 40], SQUARE, [30, 20, 40, 10])], ONE) == 1


@pytest.mark.parametrize(
    ("truth", "iou", "value"),
    [
        ([], 0.5, "no boxes"),
        ([([], [])] * 10, 0.5, "no boxes"),
        ([([SQUARE], [0, 1])], 0.5, "image 0 .*1, 2"),
        ([([SQUARE], [0]), ([[20, 30, 10, 40]], [0])], 0.5, "image 1 is 20, 30, 10, 40"),
        ([([SQUARE], [1.5])], 0.5, "image 0 has the class 1.5"),
        ([([[0, 0, np.inf, 1]], [0])], 0.5, "image 0 .*infinite"),
        ([([SQUARE], [-1])], 0.5, "no boxes"),
        ([([SQUARE], [0])], 50, "iou is 50"),
        ([([SQUARE], [0])], [], r"iou is \[\]"),
        ([([SQUARE], [0])], "a", "iou is 'a'"),
        ([([SQUARE], [0])], [0.5, float("nan")], r"iou is \[0.5, nan\]"),
    ],
)
def test_what_is_refused_before_the_run(truth, iou, value):
    pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed")
    with pytest.raises(CalibrationDataError, match=value):
        MeanAveragePrecision(lambda outputs: [], truth, iou=iou)


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
    with pytest.raises(UnsupportedError, match=r"faster-coco-eval"):
        MeanAveragePrecision(lambda outputs: [], [Truth(np.zeros((0, 4)), [])])
