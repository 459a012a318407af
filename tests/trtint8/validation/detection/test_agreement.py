"""Detections of two models, matched whatever their order."""

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import parsed
from trtint8.cli.main import main
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.detection.agreement import (
    DetectionAgreement,
    box_precision,
    has_true_boxes,
    match_detections,
    truth_tables,
)
from trtint8.validation.detection.layouts import reading_of

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


#: Of two images.
FOUND = np.stack([table((A, 0, 0.9), (B, 0, 0.4)), table((A, 0, 0.9), (B, 0, 0.2))])


def decode(outputs):
    return [(image[:, :4], image[:, 5], image[:, 4]) for image in outputs["y"]]


def measured(metric, found, wanted, labels=None):
    """A measurand, and the meter that has seen one batch."""
    batch = Batch({}, {"y": found}, {"y": wanted}, labels, len(found))
    measurand = metric.measurand(BatchForm.of(batch.reference, labels, len(found)))
    meter = measurand.start()
    meter.merge(measurand.measure(batch))
    return measurand, meter


def test_the_value_is_twice_the_matches_by_all_detections():
    wanted = np.stack([table((B, 0, 0.9), (A, 0, 0.4)), table((A, 0, 0.9), (FAR, 0, 0.8))])
    measurand, meter = measured(DetectionAgreement(decode), FOUND, wanted)
    assert (measurand.name, measurand.relative, measurand.perfect) == ("detections", True, 1.0)
    assert meter.value() == pytest.approx(2 * 3 / (3 + 4))  # a score of 0.2 is too low
    _, strict = measured(DetectionAgreement(decode, score=0.5), FOUND, wanted)
    assert strict.value() == pytest.approx(2 * 1 / (2 + 3))
    _, none = measured(DetectionAgreement(decode, score=0.95), FOUND, FOUND)
    with pytest.warns(UserWarning, match=r"'detections'.*above 0.95"):
        assert math.isnan(none.value())  # which is neither good nor bad


def test_a_decoder_may_compute_in_place():
    found, wanted = np.stack([table((A, 0, 0.9))]), np.stack([table((A, 0, 0.9))])

    def moving(outputs):
        outputs["y"][..., :4] += 5
        return decode(outputs)

    for _ in range(2):
        assert measured(DetectionAgreement(moving), found, wanted)[1].value() == 1.0
    assert found[0, 0, :4].tolist() == wanted[0, 0, :4].tolist() == A


def test_true_boxes_take_the_place_of_fp32():
    labels = np.full((2, 2, 5), -1.0, np.float32)
    for without in (FOUND[:, :0], FOUND):
        _, meter = measured(DetectionAgreement(decode), without, without, labels)
        with pytest.raises(CalibrationDataError, match="'detections'"):
            meter.value()
    labels[0, 0], labels[0, 1], labels[1, 0] = [*A, 0], [*FAR, 0], [*A, 1]
    measurand, meter = measured(DetectionAgreement(decode), FOUND, FOUND[:, :0], labels)
    title = "detections that are true (F1)"
    assert (measurand.relative, measurand.perfect, measurand.title) == (False, None, title)
    # Of three detections one is true; of three boxes one is found, because the last has another class.
    assert meter.value() == pytest.approx(2 * 1 / (3 + 3))
    assert [table.tolist() for table in truth_tables(Batch({}, {}, {}, labels[::-1], 2))] == [
        [[*A, 1]],
        [[*A, 0], [*FAR, 0]],
    ]
    outputs = {"y": np.zeros((2, 3, 6), np.float32)}
    assert has_true_boxes(BatchForm.of(outputs, labels, 2))
    assert not has_true_boxes(BatchForm.of(outputs, labels, 1))
    for other in (None, labels[:, 0], labels[..., :4], labels.astype(bool)):
        assert not has_true_boxes(BatchForm.of(outputs, other, 2))
        with pytest.raises(CalibrationDataError, match="'map'"):
            box_precision("map", BatchForm.of(outputs, other, 2))


def batch_of(outputs, labels=None, reference=None):
    """A batch of one image."""
    return Batch({}, outputs, outputs if reference is None else reference, labels, 1)


def test_outputs_that_are_boxes_scores_and_classes_need_no_decoder():
    outputs = {
        "boxes": np.array([[A, B]], float),
        "scores": np.array([[0.9, 0.8]]),
        "labels": np.array([[0, 1]]),
    }
    batch = batch_of(outputs, reference={name: array[:, ::-1] for name, array in outputs.items()})
    measurand = DetectionAgreement().measurand(BatchForm.of(batch.reference, None, 1))
    assert measurand.measure(batch).value() == 1.0


def test_mistakes():
    with pytest.raises(CalibrationDataError, match=r"score.*is 1.5.*below 1"):
        DetectionAgreement(decode, score=1.5)
    for value in ("a", None, float("nan")):
        with pytest.raises(CalibrationDataError, match=f"iou is {value!r}; give 0 or more, below 1"):
            DetectionAgreement(decode, iou=value)
    assert DetectionAgreement(decode, iou=np.float32(0.75)).iou == 0.75
    metric = DetectionAgreement(lambda outputs: [([A], [0.5, 0.6], [0])])
    batch = batch_of({"y": np.zeros(1)})
    with pytest.raises(CalibrationDataError, match=r"image 0.*have 1.*1"):
        metric.measurand(BatchForm.of(batch.reference, None, 1)).measure(batch)


def test_a_class_that_the_network_does_not_know_is_refused():
    """Boxes of it would count as missed, in silence."""
    outputs = {"output0": np.zeros((1, 4 + 3, 50), np.float32)}
    labels = np.array([[[*A, 2], [*B, 3]]], np.float32)
    form = BatchForm.of(outputs, labels, 1)
    for measurand in (DetectionAgreement().measurand(form), box_precision("map50", form)):
        assert measurand.measure(batch_of(outputs, labels[:, :1])).value() == 0
        with pytest.raises(CalibrationDataError, match=r"class 3.*3"):
            measurand.measure(batch_of(outputs, labels))
        # Also before anything is run, where labels of another kind are left to what runs.
        for other in (labels[:, :1], labels[0], None):
            measurand.check_labels(batch_of({}, other), form)
        with pytest.raises(CalibrationDataError, match=r"class 3.*3"):
            measurand.check_labels(batch_of({}, labels), form)
    DetectionAgreement(len).measurand(form).check_labels(batch_of({}, labels), form)  # by own rules
    assert reading_of(BatchForm.of({"y": np.zeros((1, 3, 6), np.float32)}, labels, 1)).classes is None


def test_the_classes_of_a_network_with_a_background_count_from_0():
    """As those of COCO's files do, by which an SSD is judged."""
    pytest.importorskip("faster_coco_eval")
    shares = np.array([[[0.1, 0.9, 0.0], [0.5, 0.1, 0.4]]], np.float32)
    outputs = {"boxes": np.array([[A, B]], np.float32), "scores": shares}
    labels = np.array([[[*A, 0], [*B, 1]]], np.float32)
    form = BatchForm.of(outputs, labels, 1)
    for measurand in (DetectionAgreement().measurand(form), box_precision("map50", form)):
        assert measurand.measure(batch_of(outputs, labels)).value() == pytest.approx(1)
        with pytest.raises(CalibrationDataError, match=r"class 2.*2.*0"):
            measurand.measure(batch_of(outputs, labels + np.eye(5)[4]))


@pytest.mark.parametrize(
    ("box", "value"),
    [
        ([0, 0, np.nan, 10, 0], "NaN"),
        ([0, 0, 10, 10, np.inf], "infinite"),
        ([10, 20, 5, 30, 0], "10, 20, 5, 30"),
        ([10, 20, 15, 10, 0], "10, 20, 15, 10"),
        ([0, 0, 10, 10, -2], "class -2"),
        ([0, 0, 10, 10, 0.5], r"class 0\.5"),
    ],
)
def test_true_boxes_that_are_none(box, value):
    labels = np.full((2, 2, 5), -1.0)
    labels[0, 0, :4], labels[0, 1, :4] = [9, 9, 1, 1], np.nan  # no boxes, whatever they hold
    labels[1, 0] = box
    with pytest.raises(CalibrationDataError, match=f"sample 33 .*{value}"):
        truth_tables(Batch({}, {}, {}, labels, 2, 32))


def test_precision_over_batches():
    pytest.importorskip("faster_coco_eval")
    found = np.array([[[*A, 0.9, 0], [*B, 0.8, 0]], [[*B, 0.7, 0], [*A, 0.0, 0]]], np.float32)
    labels = np.full((2, 1, 5), -1.0, np.float32)
    labels[0, 0], labels[1, 0] = [*A, 0], [*B, 0]
    form = BatchForm.of({"y": found[:1]}, labels[:1], 1)
    measurand = box_precision("map50", form)
    assert (measurand.title, measurand.relative) == ("mAP@0.50 by the labels", False)
    assert box_precision("map", form).title == "mAP@0.50:0.95 by the labels"
    meter = measurand.start()
    for row in range(2):
        outputs = {"y": found[row : row + 1]}
        meter.merge(measurand.measure(batch_of(outputs, labels[row : row + 1])))
    # Precisions 1, 1/2, 2/3 at recalls 1/2, 1/2, 1.
    assert meter.value() == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert meter.against(meter, "FP32") is None


def detector():
    """Finds bright squares of 3 x 3 pixels in images of 8 x 8, as a YOLO network gives them: (n, 5, 64)."""
    rows, columns = np.divmod(np.arange(64), 8)
    grid = np.stack([columns + 0.5, rows + 0.5, np.full(64, 3), np.full(64, 3)]).astype(np.float32)
    return parsed(
        "float[n, 3, 8, 8] images",
        "float[n, 5, 64] output0",
        "mean = Conv <pads = [1, 1, 1, 1]> (images, kernel) above = Sub (mean, limit) "
        "steep = Mul (above, forty) score = Sigmoid (steep) scores = Reshape (score, shape) "
        "zeros = Mul (scores, zero) boxes = Add (zeros, grid) output0 = Concat <axis = 1> (boxes, scores)",
        kernel=np.full((1, 3, 3, 3), 1 / 27, np.float32),
        grid=grid[None],
        shape=np.array([-1, 1, 64]),
        **{"limit": np.float32(0.9), "forty": np.float32(40), "zero": np.float32(0)},
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Four images of 4 x 8 pixels, each with a white square; the truth of the last has it elsewhere."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for name in ("images", "labels"):
        (tmp_path / "set" / name).mkdir(parents=True)
    for index in range(4):
        pixels = np.zeros((4, 8, 3), np.uint8)
        pixels[:3, index : index + 3] = 255
        image.fromarray(pixels).save(f"set/images/{index}.png")
        centre = (index + 1.5) / 8 if index < 3 else 0.25
        (tmp_path / "set" / "labels" / f"{index}.txt").write_text(f"0 {centre} 0.375 0.375 0.75\n")
    onnx.save(detector(), "detector.onnx")
    return tmp_path


def test_a_detector_on_the_command_line(folder, capsys):
    pytest.importorskip("faster_coco_eval")

    def ran(line, status=0):
        assert main(f"{line} --letterbox 8".split()) == status
        return capsys.readouterr()

    def printed(more):
        found = json.loads(ran(f"{validate} --json {more}").out)
        return found["chosen"], {one["name"]: one for one in found["measures"]}

    validate = "validate int8.onnx set --reference detector.onnx"
    ran("calibrate detector.onnx set/images -o table.json")
    trtint8.write_quantized("detector.onnx", "table.json", "int8.onnx")
    _, found = printed("--metric detections --metric map50 --metric map")
    # Three of four squares are where the truth has them. All have the same score, the first wrong one last.
    assert found["detections"]["reference"] == pytest.approx(2 * 3 / (4 + 4))
    assert found["map50"]["reference"] == pytest.approx(76 / 101)
    assert found["map"]["reference"] == pytest.approx(76 / 101)
    assert found["detections"]["value"] == pytest.approx(2 * 3 / (4 + 4))
    chosen, usual = printed("")
    assert list(usual) == ["map", "map50"] and usual["map50"] == found["map50"]
    assert "chose map, map50, SQNR, cosine" in chosen and "'map:grid'" in chosen
    # A layout that is named is not mentioned, and gives the same figures.
    chosen, named = printed("--metric map50:grid --metric detections:grid")
    assert chosen is None and named == {name: found[name] for name in ("map50", "detections")}
    assert "'detections:grid'" in ran(f"{validate} --metric detections").out.replace("\n", " ")
    for name in ("boxes", "gird"):
        assert f"'{name}'" in ran(f"{validate} --metric detections:{name}", 2).err


DECODER = """import numpy as np
import trtint8

def decode(outputs):
    for *box, scores in outputs["output0"]:
        x, y, width, height = box
        best = scores > 0.5
        corners = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)
        yield corners[best], scores[best], np.zeros(best.sum())

precision = trtint8.MeanAveragePrecision(decode)
"""


def test_a_decoder_of_ones_own_is_judged_by_labels(folder, capsys):
    pytest.importorskip("faster_coco_eval")
    (folder / "own_boxes_by_labels.py").write_text(DECODER)
    instances = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 8, "height": 4} for n in range(4)],
        "annotations": [
            {"image_id": n, "category_id": 9, "bbox": [n if n < 3 else 0.5, 0, 3, 3]} for n in range(4)
        ],
        "categories": [{"id": 9}],
    }
    Path("instances.json").write_text(json.dumps(instances))
    metric = "--metric own_boxes_by_labels:precision"
    validate = f"validate detector.onnx {{}} --reference detector.onnx {metric} --letterbox 8 --json"
    for data in ("set", "set/images --labels instances.json", "set --batch-size 3 --metric map"):
        assert main(validate.format(data).split()) == 0
        for one in json.loads(capsys.readouterr().out)["measures"]:  # as by the built-in metric
            assert (one["reference"], one["unit"]) == (pytest.approx(76 / 101), "%")
    np.savez("plain.npz", images=np.ones((4, 3, 8, 8), np.float32), labels=np.zeros(4, np.int64))
    for line in (
        "validate detector.onnx plain.npz --reference detector.onnx",
        "tune detector.onnx plain.npz plain.npz -o o.onnx",
    ):
        assert main(f"{line} {metric}".split()) == 2
        assert "'mAP@0.50:0.95'" in capsys.readouterr().err and not Path("o.onnx").exists()


def test_a_budget_that_nothing_is_shown_of_is_not_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(detector(), "detector.onnx")
    np.savez("dark.npz", images=np.zeros((4, 3, 8, 8), np.float32))
    validate = "validate detector.onnx dark.npz --reference detector.onnx --metric detections --json"
    for limit, status in ((" --max-drop 1", 1), (" --min 50", 1), ("", 0)):
        assert main(f"{validate}{limit}".split()) == status
        found = json.loads(capsys.readouterr().out)
        assert found["measures"][0]["value"] is None
        if limit:
            judgement = found["judgement"]
            assert (judgement["fits"], judgement["value"], judgement["drop"]) == (False, None, None)
    tune = "tune detector.onnx dark.npz dark.npz --metric detections -o o.onnx"
    assert main(tune.split()) == 2
    assert "'detections'" in capsys.readouterr().err and not Path("o.onnx").exists()
