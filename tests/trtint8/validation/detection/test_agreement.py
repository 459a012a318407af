"""Detections of two models, matched whatever their order."""

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.detection.agreement import DetectionAgreement, match_detections

A, B, FAR = [0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60]


def table(*rows):
    """Boxes with class and score."""
    return np.array([[*box, kind, score] for box, kind, score in rows], np.float64).reshape(-1, 6)


def test_matches_do_not_depend_on_the_order():
    one = table((A, 0, 0.9), (B, 1, 0.8), (FAR, 1, 0.7))
    assert match_detections(one, one[::-1], 0.5) == 3
    assert match_detections(one, table((B, 1, 0.5), (A, 1, 0.5)), 0.5) == 1  # A is of another class
    assert match_detections(one, table(), 0.5) == match_detections(table(), one, 0.5) == 0


def test_a_detection_is_matched_once_and_the_highest_score_first():
    near = [0, 0, 10, 8]
    wanted = table((A, 0, 0.9))
    assert match_detections(table((A, 0, 0.5), (near, 0, 0.9)), wanted, 0.5) == 1
    # The one with the higher score takes the box that it overlaps most; the other box is left for the other.
    assert match_detections(table((near, 0, 0.9), (A, 0, 0.5)), table((A, 0, 1), (near, 0, 1)), 0.5) == 2
    assert match_detections(table(([0, 0, 10, 5], 0, 0.9)), wanted, 0.5) == 0  # half is not above a half


def test_the_order_of_equal_scores_and_of_equal_overlaps_has_no_effect():
    low, high = [0, 0, 10, 6], [0, 0, 10, 14]
    both, wanted = table((A, 0, 0.9), (low, 0, 0.9)), table((A, 0, 1), (high, 0, 1))
    assert match_detections(both, wanted, 0.5) == match_detections(both[::-1], wanted, 0.5) == 2
    # The first overlaps both of these equally, and the second only the left one.
    left, right, middle = [0, 0, 10, 10], [4, 0, 14, 10], [2, 0, 12, 10]
    found = table((middle, 0, 0.9), ([0, 0, 9, 10], 0, 0.8))
    others = table((left, 0, 1), (right, 0, 1))
    assert match_detections(found, others, 0.5) == match_detections(found, others[::-1], 0.5) == 1


def decode(outputs):
    return [(image[:, :4], image[:, 5], image[:, 4]) for image in outputs["y"]]


def test_the_value_is_twice_the_matches_by_all_detections():
    found = np.stack([table((A, 0, 0.9), (B, 0, 0.4)), table((A, 0, 0.9), (B, 0, 0.2))])
    wanted = np.stack([table((B, 0, 0.9), (A, 0, 0.4)), table((A, 0, 0.9), (FAR, 0, 0.8))])
    batch = Batch({}, {"y": found}, {"y": wanted}, None, 2)
    measurand = DetectionAgreement(decode).measurand(BatchForm.of(batch.reference, None, 2))
    assert (measurand.name, measurand.relative, measurand.perfect) == ("detections", True, 1.0)
    meter = measurand.start()
    meter.merge(measurand.measure(batch))
    assert meter.value() == pytest.approx(2 * 3 / (3 + 4))  # a score of 0.2 is too low
    strict = DetectionAgreement(decode, score=0.5).measurand(BatchForm.of(batch.reference, None, 2))
    assert strict.measure(batch).value() == pytest.approx(2 * 1 / (2 + 3))


def test_where_neither_model_finds_anything_that_is_said():
    found = np.stack([table((A, 0, 0.9)), table((A, 0, 0.9))])
    batch = Batch({}, {"y": found}, {"y": found}, None, 2)
    measurand = DetectionAgreement(decode, score=0.95).measurand(BatchForm.of(batch.reference, None, 2))
    meter = measurand.start()
    meter.merge(measurand.measure(batch))
    with pytest.warns(
        UserWarning, match="says 100 % because neither model finds anything, with scores above 0.95"
    ):
        assert meter.value() == 1.0


def test_a_decoder_may_compute_in_place():
    found, wanted = np.stack([table((A, 0, 0.9))]), np.stack([table((A, 0, 0.9))])

    def moving(outputs):
        outputs["y"][..., :4] += 5
        return decode(outputs)

    batch = Batch({}, {"y": found}, {"y": wanted}, None, 1)
    measurand = DetectionAgreement(moving).measurand(BatchForm.of(batch.reference, None, 1))
    assert [measurand.measure(batch).value() for _ in range(2)] == [1.0, 1.0]
    assert found[0, 0, :4].tolist() == wanted[0, 0, :4].tolist() == A


def test_true_boxes_take_the_place_of_fp32():
    found = np.stack([table((A, 0, 0.9), (B, 0, 0.4)), table((A, 0, 0.9), (B, 0, 0.2))])
    labels = np.full((2, 2, 5), -1.0, np.float32)
    labels[0, 0], labels[0, 1], labels[1, 0] = [*A, 0], [*FAR, 0], [*A, 1]
    batch = Batch({}, {"y": found}, {"y": found[:, :0]}, labels, 2)
    measurand = DetectionAgreement(decode).measurand(BatchForm.of(batch.outputs, labels, 2))
    assert (measurand.relative, measurand.perfect, measurand.title) == (
        False,
        None,
        "detections that are true (F1)",
    )
    # Of three detections one is true; of three boxes one is found, because the last has another class.
    assert measurand.measure(batch).value() == pytest.approx(2 * 1 / (3 + 3))


@pytest.mark.parametrize("found", [table(), table((A, 0, 0.9))])
def test_labels_without_boxes(found):
    labels = np.full((1, 2, 5), -1.0, np.float32)
    batch = Batch({}, {"y": found[None]}, {"y": found[None]}, labels, 1)
    measurand = DetectionAgreement(decode).measurand(BatchForm.of(batch.outputs, labels, 1))
    meter = measurand.start()
    meter.merge(measurand.measure(batch))
    with pytest.raises(CalibrationDataError, match="the labels have no boxes, so metric 'detections' has"):
        meter.value()


def test_outputs_that_are_boxes_scores_and_classes_need_no_decoder():
    outputs = {
        "boxes": np.array([[A, B]], float),
        "scores": np.array([[0.9, 0.8]]),
        "labels": np.array([[0, 1]]),
    }
    batch = Batch({}, outputs, {name: array[:, ::-1] for name, array in outputs.items()}, None, 1)
    measurand = DetectionAgreement().measurand(BatchForm.of(batch.reference, None, 1))
    assert measurand.measure(batch).value() == 1.0


def test_mistakes():
    with pytest.raises(CalibrationDataError, match=r"score is 1.5; give 0 or more, below 1"):
        DetectionAgreement(decode, score=1.5)
    for value in ("a", None, float("nan")):
        with pytest.raises(CalibrationDataError, match=f"iou is {value!r}; give 0 or more, below 1"):
            DetectionAgreement(decode, iou=value)
    assert DetectionAgreement(decode, iou=np.float32(0.75)).iou == 0.75
    metric = DetectionAgreement(lambda outputs: [([A], [0.5, 0.6], [0])])
    batch = Batch({}, {"y": np.zeros(1)}, {"y": np.zeros(1)}, None, 1)
    with pytest.raises(CalibrationDataError, match="the detections of image 0 of a batch have 1, 1, 2 boxes"):
        metric.measurand(BatchForm.of(batch.reference, None, 1)).measure(batch)
