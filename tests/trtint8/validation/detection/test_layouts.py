"""Boxes, scores and classes in a detector's outputs."""

import warnings

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from tests.trtint8.onnx_models import parsed
from trtint8.validation.batch import BatchForm
from trtint8.validation.detection.decoding import BOX_FIRST, IMAGE_BOX_FIRST, IMAGE_CLASS_FIRST, Activation
from trtint8.validation.detection.layouts import (
    LAYOUTS,
    SeenLayouts,
    reading_of,
    suggested_layout,
)

BOXES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SCORES = np.array([[0.9, 0.5, 0.1], [0.8, 0.4, 0.2]], np.float32)
CLASSES = np.array([[1, 0, 2], [2, 2, 1]])


def beside(scores, boxes=BOXES[:1]):
    return {"boxes": boxes, "scores": scores}


def read(outputs, rows=2, layout=None):
    found = reading_of(BatchForm.of(outputs, None, rows), layout).read(outputs)
    return [tuple(np.asarray(part).tolist() for part in image) for image in found]


EXPECTED = [(BOXES[i].tolist(), SCORES[i].tolist(), CLASSES[i].tolist()) for i in range(2)]
# As corners they would be wrong: the size is below the centre.
CENTRES = np.concatenate([(BOXES[..., :2] + BOXES[..., 2:]) / 2, BOXES[..., 2:] - BOXES[..., :2]], axis=-1)
OF_CLASSES = np.zeros((2, 3, 3), np.float32)
np.put_along_axis(OF_CLASSES, CLASSES[..., None], SCORES[..., None], axis=2)


@pytest.mark.parametrize(
    "outputs",
    [
        {"labels": CLASSES.astype(np.float32), "scores": SCORES, "boxes": BOXES},
        {"b": BOXES, "s": SCORES, "c": CLASSES.astype(np.float32)},
        beside(OF_CLASSES, BOXES),
    ],
)
def test_boxes_scores_and_classes(outputs):
    assert read(outputs) == EXPECTED


def test_some_boxes_a_single_class_and_a_single_image():
    count = np.array([[2], [0]], np.int32)
    assert read({"num": count, "boxes": BOXES, "scores": SCORES, "classes": CLASSES}) == [
        (BOXES[0, :2].tolist(), SCORES[0, :2].tolist(), [1, 0]),
        ([], [], []),
    ]
    assert read(beside(SCORES, BOXES))[1] == (BOXES[1].tolist(), SCORES[1].tolist(), [0, 0, 0])
    one = {"boxes": BOXES[0], "scores": SCORES[0], "labels": CLASSES[0]}
    assert read(one, rows=1) == EXPECTED[:1]


@pytest.mark.parametrize("lead", [(0,), (1, 0), (2, 0)])
@pytest.mark.parametrize("scores", [(), (3,)])
def test_images_without_any_box(lead, scores):
    outputs = {"boxes": np.empty((*lead, 4), np.float32), "scores": np.empty((*lead, *scores), np.float32)}
    if not scores:
        outputs["labels"] = np.empty(lead, np.int64)
    rows = lead[0] if len(lead) == 2 else 1
    assert read(outputs, rows) == [([], [], [])] * rows


SHARES = np.array([[[0.9, 0.08, 0.02], [0.2, 0.1, 0.7], [0.5, 0.4, 0.1]]], np.float32)


def test_the_background_is_no_class():
    """Also where it is the largest, as the last class of DETR: thresholds of scores leave such boxes out."""
    (image,) = read(beside(SHARES), rows=1)
    assert image[1] == pytest.approx([0.08, 0.7, 0.4]) and image[2] == [0, 1, 0]
    (image,) = read(beside(SHARES / 2), rows=1)
    assert image[1] == pytest.approx([0.45, 0.35, 0.25]) and image[2] == [0, 2, 0]
    # The reference decides: rounding moves the sums of an INT8 model's shares away from 1.
    reader = reading_of(BatchForm.of(beside(SHARES), None, 1)).read
    (image,) = reader(beside(SHARES * np.float32(0.9)))
    assert image.scores.tolist() == pytest.approx([0.072, 0.63, 0.36]) and image.classes.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("outputs", "classes"),
    [
        (beside(SHARES), 2),
        (beside(SHARES / 2), 3),
        ({"boxes": BOXES[0], "scores": SHARES[0]}, 2),
        (beside(9 * SHARES - 4), 2),
        (beside(SHARES - 3), 3),
        (beside(SCORES, BOXES), None),
        ({"boxes": BOXES, "scores": SCORES, "labels": CLASSES}, None),
        ({"output0": np.zeros((1, 4 + 3, 50), np.float32)}, 3),
    ],
)
def test_how_many_classes_boxes_may_have(outputs, classes):
    assert reading_of(BatchForm.of(outputs, None, 1)).classes == classes


def yolo(*boxes, classes=2, columns=12):
    """An output of a YOLO network: centre, size and scores of classes, boxes last."""
    table = np.zeros((4 + classes, columns), np.float32)
    for column, (box, kind, score) in enumerate(boxes):
        table[:4, column], table[4 + kind, column] = box, score
    return table


def test_the_output_of_a_yolo_network():
    whole = yolo(
        ([10, 10, 4, 2], 1, 0.5),
        ([10, 10, 4, 2.5], 1, 0.9),  # overlaps the first by 0.8
        ([10, 10, 4, 2], 0, 0.3),  # of another class
        ([30, 10, 4, 4], 1, 0.0005),  # too low
        ([50, 50, 4, 4], 0, 0.6),
    )
    (boxes, scores, classes), nothing = read({"output0": np.stack([whole, yolo()])})
    assert boxes == [[8, 8.75, 12, 11.25], [48, 48, 52, 52], [8, 9, 12, 11]]
    assert scores == pytest.approx([0.9, 0.6, 0.3])
    assert classes == [1, 0, 0]
    assert nothing == ([], [], [])


@pytest.mark.parametrize(
    ("outputs", "named"),
    [
        ({"y": yolo(([10, 10, 4, 2], 1, -3.0))[None]}, "'y' .*1x6x12"),
        ({"y": yolo(([10, 10, 4, 2], 1, 40.0))[None]}, "'y' .*1x6x12"),
        (
            {"p2": np.zeros((1, 22, 22, 95), np.float32), "p3": np.zeros((1, 11, 11, 95), np.float32)},
            r"'p2' \(float32, 1x22x22x95\), .*DetectionAgreement",
        ),
    ],
)
def test_outputs_without_scores_are_refused(outputs, named):
    with pytest.raises(CalibrationDataError, match=named):
        read(outputs, rows=1)


ROWS = np.concatenate([BOXES, SCORES[..., None], CLASSES[..., None]], axis=2).astype(np.float32)
CENTRE_ROWS = np.concatenate([CENTRES, ROWS[..., 4:]], axis=2).astype(np.float32)
NUMBERS = np.repeat(np.arange(2, dtype=np.float32), 3)[:, None]
IMAGE_ROWS = np.concatenate([NUMBERS, ROWS.reshape(-1, 6)], axis=1)
TABLE = np.zeros((2, 3, 4), np.float32)
np.put_along_axis(TABLE, 1 + CLASSES[..., None], SCORES[..., None], axis=2)
GRID = np.concatenate([CENTRES, TABLE[..., 1:]], axis=2).swapaxes(1, 2)
#: More boxes, which show nothing.
GRID = np.concatenate([GRID, np.full((2, 7, 20), 1e-4, np.float32)], axis=2)
OBJECTS = np.concatenate([GRID[:, :4], np.ones((2, 1, 23), np.float32), GRID[:, 4:]], axis=1).swapaxes(1, 2)

OUTPUTS = {
    "boxes": {"boxes": BOXES, "scores": SCORES, "labels": CLASSES},
    "boxes-background": beside(TABLE, BOXES),
    "boxes-sigmoid": {
        "boxes": BOXES,
        "scores": np.log(TABLE[..., 1:] + 1e-9) - np.log1p(1e-9 - TABLE[..., 1:]),
    },
    "boxes-centre": {"boxes": CENTRES, "scores": SCORES, "labels": CLASSES},
    "rows": {"y": ROWS},
    "rows-centre": {"y": CENTRE_ROWS},
    "rows-class-first": {"y": ROWS[..., [5, 4, 0, 1, 2, 3]]},
    "rows-image-class-first": {"y": IMAGE_ROWS[:, [0, 6, 5, 1, 2, 3, 4]]},
    "rows-image-box-first": {"y": IMAGE_ROWS[:, [0, 1, 2, 3, 4, 6, 5]]},
}


@pytest.mark.parametrize("layout", OUTPUTS)
def test_a_layout_that_is_named_is_read_so_whatever_the_values_suggest(layout):
    for image, expected in zip(read(OUTPUTS[layout], layout=layout), EXPECTED, strict=True):
        for part, wanted in zip(image, expected, strict=True):
            np.testing.assert_allclose(part, wanted, atol=1e-6)


@pytest.mark.parametrize(("outputs", "layout"), [(GRID, "grid"), (OBJECTS, "grid-objectness")])
def test_a_grid_that_is_named(outputs, layout):
    for (boxes, scores, classes), expected in zip(read({"y": outputs}, layout=layout), EXPECTED, strict=True):
        np.testing.assert_allclose(boxes, expected[0], atol=1e-5)
        assert scores == pytest.approx(expected[1]) and classes == expected[2]


@pytest.mark.parametrize(
    "layout", [name for name in OUTPUTS if name not in ("boxes-background", "boxes-sigmoid")]
)
def test_the_layout_that_is_suggested_has_the_name_by_which_it_is_asked_for(layout):
    assert suggested_layout(BatchForm.of(OUTPUTS[layout], None, 2)).name == layout
    assert read(OUTPUTS[layout]) == EXPECTED


def test_one_large_object_does_not_decide_where_the_layout_is_named():
    """Its centre is below its size, as the first corner is below the second one."""
    box = np.array([[[40, 40, 60, 60, 0.9, 1]]], np.float32)
    assert suggested_layout(BatchForm.of({"y": box}, None, 1)).name == "rows"
    ((boxes, _, _),) = read({"y": box}, rows=1, layout="rows-centre")
    assert boxes == [[10, 10, 70, 70]]


#: A background by itself leaves no class.
_ONE_COLUMN = {"boxes", "boxes-sigmoid", "boxes-centre", "boxes-centre-sigmoid"}
_SIX_WIDE = {"rows", "rows-centre", "rows-class-first"}


@pytest.mark.parametrize("activation", ["-sigmoid", "-softmax", "-softmax-background", "-background", ""])
def test_how_many_classes_a_named_layout_has(activation):
    form = BatchForm.of(beside(TABLE, BOXES), None, 2)
    assert reading_of(form, f"boxes{activation}").classes == (4 if activation in ("", "-sigmoid") else 3)


@pytest.mark.parametrize(
    ("outputs", "layouts"),
    [
        ({"y": ROWS}, _SIX_WIDE),
        ({"y": IMAGE_ROWS}, {"rows-image-class-first", "rows-image-box-first"}),
        (beside(SCORES, BOXES), {"boxes", "boxes-centre"}),
        (beside(TABLE, BOXES), {name for name in LAYOUTS if name.startswith("boxes")}),
        ({"y": np.zeros((2, 2000, 5), np.float32)}, {"grid"}),
        ({"y": np.zeros((2, 2000, 6), np.float32)}, {*_SIX_WIDE, "grid", "grid-objectness"}),
        ({"y": np.zeros((2, 6, 30), np.int64)}, set()),
        ({"boxes": BOXES, "scores": SCORES[..., None]}, _ONE_COLUMN),
        ({"boxes": BOXES, "scores": TABLE[..., :0]}, set()),
        ({"y": np.zeros((2, 3), np.float32)}, set()),
    ],
)
def test_layouts_whose_shapes_outputs_do_not_have_are_refused(outputs, layouts):
    form, read_so = BatchForm.of(outputs, None, 2), set()
    for name in LAYOUTS:
        try:
            reading_of(form, name)
            read_so.add(name)
        except CalibrationDataError as error:
            assert f"'{name}'" in str(error) and all(f"'{output}'" in str(error) for output in outputs)
    assert read_so == layouts


def form(**outputs):
    return BatchForm.of({name: np.array(rows, np.float32) for name, rows in outputs.items()}, None, 1)


def seen_in(*batches):
    seen = SeenLayouts()
    seen.look([{name: np.array(rows, np.float32) for name, rows in batch.items()} for batch in batches])
    return seen


LARGE, SMALL = [[[0.5, 0.5, 0.9, 0.9]]], [[[0.5, 0.5, 0.2, 0.2]]]
NONE = [[[0.0, 0, 0, 0]]]


def test_the_first_batch_with_detections_decides():
    assert form(boxes=LARGE).outputs["boxes"].has_corners
    for batches, corners in (
        ((NONE, SMALL, LARGE, NONE), [True, False, False, False]),
        ((LARGE, SMALL), [True] * 2),
    ):
        seen = SeenLayouts()
        assert [seen.applied_to(form(boxes=rows)).outputs["boxes"].has_corners for rows in batches] == corners
    # Several batches decide together; of batches of different lengths, the first with rows.
    seen = seen_in(*({"boxes": rows} for rows in (NONE, LARGE, SMALL)))
    for rows in (NONE, LARGE, SMALL):
        assert not seen.applied_to(form(boxes=rows)).outputs["boxes"].has_corners
    seen = seen_in(*({"boxes": rows} for rows in (NONE, SMALL * 2, np.tile(LARGE, (1, 3, 1)))))
    assert not seen.applied_to(form(boxes=LARGE)).outputs["boxes"].has_corners


def test_rows_backgrounds_and_logits_are_those_of_all_batches():
    corner, inside = [[0, 0, 0, 150, 200, 3, 0.9]], [[0, 40.3, 30.7, 150, 200, 3, 0.9]]
    assert form(y=corner).outputs["y"].row_order is IMAGE_CLASS_FIRST
    found = seen_in({"y": corner}, {"y": inside}).applied_to(form(y=corner))
    assert found.outputs["y"].row_order is IMAGE_BOX_FIRST
    shares, others = [[[0.9, 0.1], [0.3, 0.7]]], [[[0.7, 0.1], [0.3, 0.5]]]
    unsure, sure = [[[0.1, 0.2], [0.3, 0.2]]], [[[-6.0, 0.2], [4, -5]]]
    boxes = [LARGE[0] * 2]
    assert form(b=boxes, s=others).outputs["s"].activation is Activation.NONE
    found = seen_in({"b": boxes, "s": shares}).applied_to(form(b=boxes, s=others))
    assert found.outputs["s"].activation is Activation.WITHOUT_FIRST
    assert form(b=boxes, s=unsure).outputs["s"].activation is Activation.NONE
    found = seen_in(*({"b": boxes, "s": one} for one in (unsure, sure))).applied_to(form(b=boxes, s=unsure))
    assert found.outputs["s"].activation is not Activation.NONE


def test_an_image_without_a_person_has_the_layout_of_the_others():
    rows = np.zeros((1, 3, 12), np.float32)
    nobody = form(y=rows)
    rows[0, 0] = [1, 2, 30, 40, 0.9, 0, *range(6)]
    seen = SeenLayouts()
    assert seen.applied_to(form(y=rows)).outputs["y"].row_order is BOX_FIRST
    assert nobody.outputs["y"].row_order is None
    assert seen.applied_to(nobody).outputs["y"].row_order is BOX_FIRST


@pytest.mark.parametrize(
    ("body", "shape", "chosen"),
    [
        ("y = Reshape (j, s)", "N, 6, 64", True),  # in pixels, as YOLO networks have it
        ("r = Reshape (j, s) y = Transpose <perm = [0, 2, 1]> (r)", "N, 64, 6", True),
        ("r = Reshape (j, s) y = Softmax <axis = 1> (r)", "N, 6, 64", False),  # classes of moments in time
        ("r = Reshape (j, s) y = Tanh (r)", "N, 6, 64", False),
        ("r = Reshape (j, s) y = Sub (r, hundred)", "N, 6, 64", False),
    ],
)
def test_detections_are_measured_where_the_values_show_them(tmp_path, body, shape, chosen):
    model = parsed(
        "float[N, 3, 8, 8] images", f"float[{shape}] y",
        "c = Conv (images, w) a = Abs (c) b = Mul (a, ten) t = Conv (images, v) p = Sigmoid (t) "
        f"j = Concat <axis = 1> (b, p) {body}",
        w=(np.float32([3, 3, 1, 1]).reshape(4, 1, 1, 1) * np.float32([1, 2, 1]).reshape(1, 3, 1, 1)),
        v=np.random.default_rng(1).uniform(-3, -2, (2, 3, 1, 1)).astype(np.float32),
        ten=np.float32(10), hundred=np.float32(100), s=np.array([0, 6, 64]),
    )  # fmt: skip
    images = np.random.default_rng(0).uniform(0.2, 1, (4, 3, 8, 8)).astype(np.float32)
    table = trtint8.calibrate(model, images, method="minmax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accuracy = trtint8.validate(trtint8.quantize(model, table), images, reference=model)
    assert ("detections" in [measure.name for measure in accuracy.measures]) == chosen
