"""Detections from a detector's own outputs, where these are boxes, scores and classes in a usual layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import ArrayForm, BatchForm, Outputs
from trtint8.validation.detection.grids import Grid, corners_of_centres
from trtint8.validation.detection.rows import BOX_FIRST
from trtint8.validation.detection.tables import Detections

#: Turns a batch's outputs into the detections of each image.
Reader: TypeAlias = Callable[[Outputs], list[Detections]]

#: Parts of the names of outputs that hold classes, where scores and classes have the same form.
_CLASS_WORDS = ("class", "label", "cls")


def layout_reader(form: BatchForm) -> Reader:
    """How detections are read from outputs, by the shapes of these.

    The layouts, for a batch of N images; without the axis N, for one image:

    - boxes (N, n, 4), scores (N, n) and classes (N, n), as detectors with non-maximum suppression give them;
      where there is an output (N,) or (N, 1) of integers too, it is the number of detections of each image;
    - boxes (N, n, 4) and scores (N, n, classes): each box has the class of its largest score. Where the
      scores of most boxes add up to 1, the first class is the background, as in SSD: it is left out, and the
      others are numbered from 0. Logits become scores first: see
      :mod:`trtint8.validation.detection.box_scores`;
    - boxes (N, n, 4) and scores (N, n): all boxes have the class 0;
    - one output (N, n, 6) of x1, y1, x2, y2, score and class, or of class, score, x1, y1, x2, y2; the same
      of all images, (n, 6), with an output (N,) of integers that says how many rows each image has; or rows
      of seven that begin with the number of the image: see :mod:`trtint8.validation.detection.rows`. Behind
      a box, its score and its class, coefficients of masks may follow, as many as an output
      (N, masks, height, width) has, or keypoints;
    - one output (N, 4 + classes, n), n being larger: centre x, centre y, width and height of each box, and
      its scores, as YOLO networks of ultralytics give them. Boxes with a score above 0.001 go through
      non-maximum suppression at an intersection over union of 0.7, as in ultralytics' validation;
    - the same as rows, (N, n, 4 + classes); or (N, n, 5 + classes) with the score of there being an object,
      which multiplies those of the classes, as YOLOv5, v6, v7 and YOLOX (decoded) have it: see
      :mod:`trtint8.validation.detection.grids`. Here, too, masks or keypoints may follow the scores.

    Outputs of four axes or more, such as masks and maps of features, are left aside.

    Boxes of the other layouts are corners x1, y1, x2, y2; or centre x, centre y, width and height, where one
    in twenty or more would be no corners.

    What only values show is decided once for the data: see :mod:`trtint8.validation.detection.seen_layouts`.

    Args:
        form: The form of a batch.

    Returns:
        The function that reads the detections.

    Raises:
        CalibrationDataError: The outputs are in none of these layouts.
    """
    forms = form.outputs
    if reader := _grid_reader(forms) or _rows_reader(form):
        return reader
    if (roles := _box_roles(forms)) is not None:
        corners_of = _corners_of(forms[roles["boxes"]])
        scores_of = forms[roles["scores"]].activation.apply if _has_table(forms, roles) else _as_they_are
        return partial(_read, roles, corners_of, scores_of)
    listed = ", ".join(f"'{name}' ({one})" for name, one in forms.items())
    raise CalibrationDataError(
        f"metric 'detections' finds no boxes with scores in the outputs {listed}; pass "
        "trtint8.DetectionAgreement(decode) as metric, with a function that turns a batch's outputs into "
        "detections"
    )


def class_count(form: BatchForm) -> int | None:
    """How many classes the boxes of a detector may have.

    Args:
        form: The form of a batch.

    Returns:
        Their number, without the background; None where the shapes of the outputs do not tell.
    """
    forms = form.outputs
    if (found := _only_grid(forms)) is not None:
        return found[1].classes
    roles = None if _rows_reader(form) else _box_roles(forms)
    if roles is None or not _has_table(forms, roles):
        return None
    scores = forms[roles["scores"]]
    return scores.activation.class_count(scores.shape[-1])


def _grid_reader(forms: Mapping[str, ArrayForm]) -> Reader | None:
    """How a grid of boxes is read; None where no output holds one, or there are others beside it."""
    found = _only_grid(forms)
    return partial(_read_grid, *found) if found is not None else None


def _only_grid(forms: Mapping[str, ArrayForm]) -> tuple[str, Grid] | None:
    """The output that holds a grid of boxes, if no others but maps are beside it."""
    found = [(name, one.grid) for name, one in forms.items() if len(one.shape) < 4]
    if len(found) != 1:
        return None
    ((name, grid),) = found
    return (name, grid) if grid else None


def _read_grid(name: str, grid: Grid, outputs: Outputs) -> list[Detections]:
    return [grid.detections(image) for image in outputs[name]]


def _rows_reader(form: BatchForm) -> Reader | None:
    """How the rows of an output are read; None where no output holds detections as rows."""
    orders = {name: one.row_order for name, one in form.outputs.items() if one.row_order is not None}
    counts = [name for name, one in form.outputs.items() if _is_count(one, form.rows)]
    maps = [name for name, one in form.outputs.items() if len(one.shape) > 3 and name not in orders]
    if len(orders) != 1 or len(counts) > 1 or len(form.outputs) > len(orders) + len(counts) + len(maps):
        return None
    ((name, order),) = orders.items()
    corners_of = _corners_of(form.outputs[name]) if order is BOX_FIRST else _as_they_are

    def read(outputs: Outputs) -> list[Detections]:
        found = order.split(outputs[name], form.rows, outputs[counts[0]] if counts else None)
        return [
            Detections(corners_of(image[:, order.box]), image[:, order.score], np.rint(image[:, order.kind]))
            for image in found
        ]

    return read


def _is_count(form: ArrayForm, images: int) -> bool:
    return form.is_integer and form.shape in ((images,), (images, 1))


def _box_roles(forms: Mapping[str, ArrayForm]) -> dict[str, str] | None:
    """Which output is what: ``boxes``, ``scores``, and perhaps ``classes`` and ``count``."""
    boxes = [name for name, one in forms.items() if len(one.shape) in (2, 3) and one.shape[-1] == 4]
    if len(boxes) > 1:  # scores of four classes look like boxes
        boxes = [name for name in boxes if "box" in name.lower()]
    others = _roles(forms, boxes[0]) if len(boxes) == 1 else None
    return None if others is None else {"boxes": boxes[0], **others}


def _has_table(forms: Mapping[str, ArrayForm], roles: Mapping[str, str]) -> bool:
    """Whether each box has a score of each class, not a single one."""
    return len(forms[roles["scores"]].shape) == len(forms[roles["boxes"]].shape)


def _roles(forms: Mapping[str, ArrayForm], boxes: str) -> dict[str, str] | None:
    """Which output is what beside the boxes: ``scores``, and perhaps ``classes`` and ``count``."""
    lead = forms[boxes].shape[:-1]
    flat = [name for name, one in forms.items() if one.shape == lead]
    table = [
        name for name, one in forms.items() if name != boxes and one.shape[:-1] == lead and len(one.shape) > 1
    ]
    count = [
        name
        for name, one in forms.items()
        if one.is_integer and len(lead) == 2 and one.shape in ((lead[0],), (lead[0], 1)) and one.shape != lead
    ]
    counted = {"count": count[0]} if count else {}
    if len(flat) == 2:
        classes = next(
            (name for name in flat if forms[name].is_integer),
            next((name for name in flat if any(word in name.lower() for word in _CLASS_WORDS)), flat[1]),
        )
        scores = next(name for name in flat if name != classes)
        return {"scores": scores, "classes": classes, **counted}
    if len(flat) == 1 and not table:
        return {"scores": flat[0], **counted}
    if len(table) == 1 and not flat:
        return {"scores": table[0]}
    return None


def _corners_of(form: ArrayForm) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Turns boxes of an output into corners, shape (..., 4)."""
    return _as_they_are if form.has_corners else corners_of_centres


def _as_they_are(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _read(
    roles: Mapping[str, str],
    corners_of: Callable[[NDArray[Any]], NDArray[Any]],
    scores_of: Callable[[NDArray[Any]], NDArray[Any]],
    outputs: Outputs,
) -> list[Detections]:
    boxes = outputs[roles["boxes"]]
    corners, scores = corners_of(_images(boxes)), scores_of(outputs[roles["scores"]])
    kinds_of_scores = 1 if scores.shape == boxes.shape[:-1] else scores.shape[-1]
    scores = scores.reshape(*corners.shape[:2], kinds_of_scores)  # of no box, where there are none
    if "classes" in roles:
        classes = outputs[roles["classes"]].reshape(corners.shape[:2])
    else:
        classes = scores.argmax(axis=2)
    best = scores.max(axis=2)
    counts = outputs[roles["count"]].ravel().tolist() if "count" in roles else [corners.shape[1]] * len(best)
    return [
        Detections(image[:count], own[:count], kinds[:count])
        for image, own, kinds, count in zip(corners, best, classes, counts, strict=True)
    ]


def _images(boxes: NDArray[Any]) -> NDArray[Any]:
    """Boxes with the axis of images."""
    return boxes if boxes.ndim == 3 else boxes[None]
