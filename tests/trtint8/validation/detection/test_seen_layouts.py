"""How outputs hold detections, by several batches."""

import numpy as np

from trtint8.validation.batch import BatchForm
from trtint8.validation.detection.box_scores import Activation
from trtint8.validation.detection.rows import BOX_FIRST, IMAGE_BOX_FIRST, IMAGE_CLASS_FIRST
from trtint8.validation.detection.seen_layouts import SeenLayouts


def form(**outputs):
    return BatchForm.of({name: np.array(rows, np.float32) for name, rows in outputs.items()}, None, 1)


LARGE, SMALL = [[[0.5, 0.5, 0.9, 0.9]]], [[[0.5, 0.5, 0.2, 0.2]]]
NONE = [[[0.0, 0, 0, 0]]]


def test_the_first_batch_with_detections_decides():
    assert form(boxes=LARGE).outputs["boxes"].has_corners
    seen = SeenLayouts()
    found = [seen.applied_to(form(boxes=rows)).outputs["boxes"] for rows in (NONE, SMALL, LARGE, NONE)]
    assert [one.has_corners for one in found] == [True, False, False, False]
    seen = SeenLayouts()
    found = [seen.applied_to(form(boxes=rows)).outputs["boxes"] for rows in (LARGE, SMALL)]
    assert [one.has_corners for one in found] == [True, True]


def test_several_batches_decide_together():
    batches = [{"boxes": np.array(rows, np.float32)} for rows in (NONE, LARGE, SMALL)]
    seen = SeenLayouts()
    seen.look(batches)
    assert [
        seen.applied_to(form(boxes=rows)).outputs["boxes"].has_corners for rows in (NONE, LARGE, SMALL)
    ] == [False] * 3


def test_of_batches_of_different_lengths_the_first_with_rows_decides():
    seen = SeenLayouts()
    seen.look(
        [{"boxes": np.array(rows, np.float32)} for rows in (NONE, SMALL * 2, np.tile(LARGE, (1, 3, 1)))]
    )
    assert not seen.applied_to(form(boxes=LARGE)).outputs["boxes"].has_corners


def test_the_order_of_rows_is_that_of_all_batches():
    corner, inside = [[0, 0, 0, 150, 200, 3, 0.9]], [[0, 40.3, 30.7, 150, 200, 3, 0.9]]
    assert form(y=corner).outputs["y"].row_order is IMAGE_CLASS_FIRST
    seen = SeenLayouts()
    seen.look([{"y": np.array(rows, np.float32)} for rows in (corner, inside)])
    assert seen.applied_to(form(y=corner)).outputs["y"].row_order is IMAGE_BOX_FIRST


def test_an_image_without_a_person_has_the_layout_of_the_others():
    rows = np.zeros((1, 3, 12), np.float32)
    nobody = form(y=rows)
    rows[0, 0] = [1, 2, 30, 40, 0.9, 0, *range(6)]
    seen = SeenLayouts()
    assert seen.applied_to(form(y=rows)).outputs["y"].row_order is BOX_FIRST
    assert nobody.outputs["y"].row_order is None
    assert seen.applied_to(nobody).outputs["y"].row_order is BOX_FIRST


def test_the_background_is_that_of_the_first_batch():
    shares, others = [[[0.9, 0.1], [0.3, 0.7]]], [[[0.7, 0.1], [0.3, 0.5]]]
    seen, boxes = SeenLayouts(), [LARGE[0] * 2]
    seen.look([{"b": np.array(boxes, np.float32), "s": np.array(shares, np.float32)}])
    assert form(b=boxes, s=others).outputs["s"].activation is Activation.NONE
    assert seen.applied_to(form(b=boxes, s=others)).outputs["s"].activation is Activation.WITHOUT_FIRST


def test_scores_are_logits_whatever_those_of_an_image_are():
    unsure, sure = [[[0.1, 0.2], [0.3, 0.2]]], [[[-6.0, 0.2], [4, -5]]]
    seen, boxes = SeenLayouts(), LARGE[0] * 2
    seen.look(
        [{"b": np.array([boxes], np.float32), "s": np.array(one, np.float32)} for one in (unsure, sure)]
    )
    assert form(b=[boxes], s=unsure).outputs["s"].activation is Activation.NONE
    assert seen.applied_to(form(b=[boxes], s=unsure)).outputs["s"].activation is not Activation.NONE
