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


BOX = [0.25, 0.25, 0.5, 0.5]


@pytest.mark.parametrize(
    ("found", "truth", "options", "wanted"),
    [
        ([([SQUARE, OTHER], [0.9, 0.8], [0, 1])], [([SQUARE, OTHER], [0, 1])], {}, 1),
        # Precisions 1, 1/2, 2/3 at recalls 1/2, 1/2, 1: 51 recalls up to 0.5 have 1, the other 50 have 2/3.
        (
            [([SQUARE, FAR, OTHER], [0.9, 0.8, 0.7], [0] * 3)],
            [([SQUARE, OTHER], [0, 0])],
            {"iou": 0.5},
            TWO_OF_THREE,
        ),
        # The second box on an object is false.
        (
            [([SQUARE, SQUARE, OTHER], [0.9, 0.8, 0.7], [0] * 3)],
            [([SQUARE, OTHER], [0, 0])],
            {"iou": 0.5},
            TWO_OF_THREE,
        ),
        # By score, whatever the image: right (image 1), false (image 0), right (image 0).
        (
            [([FAR, SQUARE], [0.6, 0.5], [0, 0]), ([SQUARE], [0.9], [0])],
            [([SQUARE], [0])] * 2,
            {"iou": 0.5},
            TWO_OF_THREE,
        ),
        ([([FAR, SQUARE], [0.9, 0.8], [0, 0])], [([SQUARE], [0])], {"iou": 0.5}, 0.5),
        # An object that is not found: recall ends at 1/2.
        ([([SQUARE], [0.9], [0]), NOTHING], [([SQUARE], [0])] * 2, {"iou": 0.5}, 51 / 101),
        # Classes count alike however many boxes they have, and one that is nowhere does not count.
        (
            [([SQUARE, OTHER], [0.9, 0.8], [0, 0]), NOTHING],
            [([SQUARE, OTHER], [0, 0]), ([SQUARE], [7])],
            {},
            0.5,
        ),
        ([([SQUARE, FAR], [0.9, 0.8], [0, 3])], [([SQUARE], [0])], {}, 1),
        # Intersection over union 0.6, and 0.82: thresholds 0.50 to 0.80.
        ([([[0, 0, 10, 6]], [0.9], [0])], [([SQUARE], [0])], {"iou": (0.5, 0.55, 0.65)}, 2 / 3),
        ([([[0, 0, 10, 6]], [0.9], [0])], [([SQUARE], [0])], {"iou": 0.7}, 0),
        ([([[0, 0, 10, 8.2]], [0.9], [0])], [([SQUARE], [0])], {}, 0.7),
        ([([BOX], [0.9], [0])], [([BOX], [0])], {}, 1),
        ([NOTHING], [([SQUARE], [0])], {}, 0),
    ],
)
def test_precision_at_each_recall(score, found, truth, options, wanted):
    assert score(
        [Detections(*one) for one in found], [Truth(*one) for one in truth], **options
    ) == pytest.approx(wanted)


def test_what_cannot_be_scored(score):
    for found, truth, value in (
        ([NOTHING, NOTHING], [Truth([SQUARE], [0])], "1 image"),
        ([NOTHING], [Truth([], []), Truth([SQUARE], [0])], "no boxes"),  # none in the image that there is
        ([Detections([SQUARE, OTHER], [0.9], [0])], [Truth([SQUARE], [0])], "2, 1, 1"),
    ):
        with pytest.raises(CalibrationDataError, match=value):
            score(found, truth)
    truth = [Truth([SQUARE], [0])]
    assert MeanAveragePrecision(lambda outputs: [], truth).name == "mAP@0.50:0.95"
    assert MeanAveragePrecision(lambda outputs: [], truth, iou=0.75).name == "mAP@0.75"


@pytest.mark.parametrize(
    ("truth", "iou", "value"),
    [
        ([], 0.5, "no boxes"),
        ([([], [])] * 10, 0.5, "no boxes"),
        ([([SQUARE], [0, 1])], 0.5, "image 0 .*1, 2"),
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
    with pytest.raises(UnsupportedError, match=r"faster-coco-eval"):
        MeanAveragePrecision(lambda outputs: [], [Truth(np.zeros((0, 4)), [])])
