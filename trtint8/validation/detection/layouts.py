"""Detections from a detector's own outputs, where these are boxes, scores and classes in a usual layout.

Each layout has a name, by which a user says how outputs are to be read. Where none is named, the shapes and
the values of the float model's outputs suggest one, and the result says which. The values of a single image
may look like another layout than the one that all images have: the size of one large object in its middle is
no less than its centre, as is the second corner of a box. So the first samples that show it decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from calibrators.data.feeds import Array, NamedArrays
from calibrators.errors import Argument, CalibrationDataError
from trtint8.validation.batch import ArrayForm, BatchForm
from trtint8.validation.detection.boxes import Detections
from trtint8.validation.detection.decoding import (
    BOX_FIRST,
    CLASS_FIRST,
    IMAGE_BOX_FIRST,
    IMAGE_CLASS_FIRST,
    MOST_LEFT,
    Activation,
    Grid,
    RowOrder,
    corners_of_centres,
    holds_rows,
)

#: Parts of the names of outputs that hold classes, where scores and classes have the same form.
_CLASS_WORDS = ("class", "label", "cls")


class Reading(NamedTuple):
    """How detections are read from outputs.

    Attributes:
        read: Turns a batch's outputs into the detections of each image.
        classes: How many classes boxes may have, without the background; None where shapes do not tell.
    """

    read: Callable[[NamedArrays], list[Detections]]
    classes: int | None = None


@dataclass(frozen=True)
class Layout:
    """How outputs hold detections.

    Attributes:
        name: The name by which a user asks for it.
        words: What outputs hold, in words.
        reading: How detections are read; None where outputs do not have the shapes of this layout.
    """

    name: str
    words: str
    reading: Callable[[BatchForm], Reading | None]


def _corners_or_centres(centres: bool) -> str:
    return "centre and size" if centres else "corners"


def _boxes(activation: Activation, centres: bool) -> Layout:
    """Boxes in one output, and their scores, classes and number in others."""

    def reading(form: BatchForm) -> Reading | None:
        roles, classes = _box_roles(form.outputs), None
        if roles is None:
            return None
        if _has_table(form.outputs, roles):
            classes = activation.class_count(form.outputs[roles["scores"]].shape[-1])
            if classes < 1:
                return None
        elif activation is not Activation.NONE:
            return None
        return Reading(partial(_read, roles, centres, activation.apply), classes)

    name, words = _boxes_name(activation, centres), activation.value[1]
    return Layout(name, f"boxes by {_corners_or_centres(centres)}, and {words}", reading)


def _boxes_name(activation: Activation, centres: bool) -> str:
    return f"boxes{_CENTRES if centres else ''}{activation.value[0]}"


def _rows(name: str, order: RowOrder, columns: str, *, centres: bool = False) -> Layout:
    """Detections as rows of one output, and perhaps their number in another one."""

    def has_shape(one: ArrayForm) -> bool:
        """Whether an output may hold such rows, behind which masks and keypoints may follow."""
        width = 6 if order.image is None else 7
        if not one.is_float or not 2 <= len(one.shape) <= 4:
            return False
        if order is not BOX_FIRST or len(one.shape) != 3 or one.shape[1] > MOST_LEFT:
            return one.shape[-1] == width
        return one.shape[-1] >= width

    def reading(form: BatchForm) -> Reading | None:
        fitting = {name: one for name, one in form.outputs.items() if has_shape(one)}
        found = [name for name, one in fitting.items() if one.row_order is not None] or list(fitting)
        counts = [name for name, one in form.outputs.items() if _is_count(one, form.rows)]
        maps = [name for name, one in form.outputs.items() if len(one.shape) > 3 and name not in found]
        if len(found) != 1 or len(counts) > 1 or len(form.outputs) > 1 + len(counts) + len(maps):
            return None

        def read(outputs: NamedArrays) -> list[Detections]:
            count = outputs[counts[0]] if counts else None
            return [
                Detections(
                    _corners(image[:, order.box], centres),
                    image[:, order.score],
                    np.rint(image[:, order.kind]),
                )
                for image in order.split(outputs[found[0]], form.rows, count)
            ]

        return Reading(read)

    return Layout(name, f"rows of {columns}, boxes by {_corners_or_centres(centres)}", reading)


def _grid(objectness: bool, name: str, columns: str) -> Layout:
    """Boxes of all positions of a grid in one output, beside which there are no others but maps."""

    def reading(form: BatchForm) -> Reading | None:
        found = [(name, one) for name, one in form.outputs.items() if len(one.shape) < 4]
        if len(found) != 1:
            return None
        ((output, one),) = found
        seen = one.grid or _grid_by_shape(one, form)
        if seen is None or not (grid := replace(seen, objectness=objectness)).classes:
            return None
        return Reading(lambda outputs: [grid.detections(image) for image in outputs[output]], grid.classes)

    return Layout(name, f"{columns} of each box, before non-maximum suppression", reading)


#: What follows the kind of a layout in its name where boxes are given by their centres.
_CENTRES = "-centre"

#: The layouts of rows: the name, the order of the columns, and the same in words.
_ROWS = (
    ("rows", BOX_FIRST, "box, score and class"),
    ("rows-class-first", CLASS_FIRST, "class, score and box"),
    ("rows-image-class-first", IMAGE_CLASS_FIRST, "image, class, score and box"),
    ("rows-image-box-first", IMAGE_BOX_FIRST, "image, box, class and score"),
)

#: Whether the rows of a grid have objectness, to the name of a layout and to words.
_GRIDS = {
    False: ("grid", "centre, size and scores"),
    True: ("grid-objectness", "centre, size, objectness and scores"),
}

#: All layouts by their names.
LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        *(_boxes(activation, centres) for centres in (False, True) for activation in Activation),
        _rows(*_ROWS[0]),
        _rows(f"rows{_CENTRES}", *_ROWS[0][1:], centres=True),
        *(_rows(*row) for row in _ROWS[1:]),
        *(_grid(objectness, *words) for objectness, words in _GRIDS.items()),
    )
}


def suggested_layout(form: BatchForm) -> Layout:
    """The layout that outputs are read in where none is named, by their shapes and values.

    For a batch of N images; without the axis N, for one image:

    - boxes (N, n, 4), scores (N, n) and classes (N, n), as detectors with non-maximum suppression give them;
      where there is an output (N,) or (N, 1) of integers too, it is the number of detections of each image;
    - boxes (N, n, 4) and scores (N, n, classes): each box has the class of its largest score. Where the
      scores of most boxes add up to 1, the first class is the background, as in SSD: it is left out, and the
      others are numbered from 0. Logits become scores first: see
      :mod:`trtint8.validation.detection.decoding`;
    - boxes (N, n, 4) and scores (N, n): all boxes have the class 0;
    - one output (N, n, 6) of x1, y1, x2, y2, score and class, or of class, score, x1, y1, x2, y2; the same
      of all images, (n, 6), with an output (N,) of integers that says how many rows each image has; or rows
      of seven that begin with the number of the image: see :mod:`trtint8.validation.detection.decoding`.
      Behind a box, its score and its class, coefficients of masks may follow, as many as an output
      (N, masks, height, width) has, or keypoints;
    - one output (N, 4 + classes, n), n being larger: centre x, centre y, width and height of each box, and
      its scores, as YOLO networks of ultralytics give them. Boxes with a score above 0.001 go through
      non-maximum suppression at an intersection over union of 0.7, as in ultralytics' validation;
    - the same as rows, (N, n, 4 + classes); or (N, n, 5 + classes) with the score of there being an object,
      which multiplies those of the classes, as YOLOv5, v6, v7 and YOLOX (decoded) have it: see
      :mod:`trtint8.validation.detection.decoding`. Here, too, masks or keypoints may follow the scores.

    Outputs of four axes or more, such as masks and maps of features, are left aside.

    Boxes of the other layouts are corners x1, y1, x2, y2; or centre x, centre y, width and height, where one
    in twenty or more would be no corners.

    What only values show is decided once for the data: see :mod:`trtint8.validation.detection.layouts`.

    Args:
        form: The form of a batch.

    Raises:
        CalibrationDataError: The outputs are in none of these layouts.
    """
    forms = form.outputs
    name = _suggested_grid(forms) or _suggested_rows(form) or _suggested_boxes(forms)
    if name and LAYOUTS[name].reading(form):
        return LAYOUTS[name]
    raise CalibrationDataError(
        f"metrics 'detections' and 'map' find no boxes with scores in the outputs {_listed(form)}; give "
        f"{Argument('DetectionAgreement')}, or for map trtint8.MeanAveragePrecision, with a function "
        "that turns a batch's outputs into detections, or another metric"
    )


def reading_of(form: BatchForm, name: str | None = None) -> Reading:
    """How detections are read from outputs.

    Args:
        form: The form of a batch.
        name: The name of the layout; None takes what the outputs suggest.

    Raises:
        CalibrationDataError: The outputs do not have the shapes of the layout, or are in none.
    """
    layout = LAYOUTS[name] if name else suggested_layout(form)
    if reading := layout.reading(form):
        return reading
    raise CalibrationDataError(
        f"the outputs {_listed(form)} cannot be read in the layout '{name}' ({layout.words}); name "
        "none, give a metric with a decoder of yours, such as trtint8.MeanAveragePrecision(decode), or name "
        f"another one of {', '.join(LAYOUTS)}"
    )


def _suggested_grid(forms: Mapping[str, ArrayForm]) -> str | None:
    """The layout of a grid of boxes; None where no output holds one, or there are others beside it."""
    found = [one.grid for one in forms.values() if len(one.shape) < 4]
    return _GRIDS[found[0].objectness][0] if len(found) == 1 and found[0] else None


def _suggested_rows(form: BatchForm) -> str | None:
    """The layout of the rows of an output; None where no output holds detections as rows."""
    orders = {name: one.row_order for name, one in form.outputs.items() if one.row_order is not None}
    if len(orders) != 1:
        return None
    ((output, order),) = orders.items()
    centres = order is BOX_FIRST and not form.outputs[output].has_corners
    name = next(name for name, own, _ in _ROWS if own == order) + (_CENTRES if centres else "")
    # Where other outputs are beside it, they may be boxes.
    return name if LAYOUTS[name].reading(form) else None


def _suggested_boxes(forms: Mapping[str, ArrayForm]) -> str | None:
    """The layout of boxes whose scores are in another output."""
    if (roles := _box_roles(forms)) is None:
        return None
    activation = forms[roles["scores"]].activation if _has_table(forms, roles) else Activation.NONE
    return _boxes_name(activation, not forms[roles["boxes"]].has_corners)


def _listed(form: BatchForm) -> str:
    return ", ".join(f"'{name}' ({one})" for name, one in form.outputs.items())


def _grid_by_shape(one: ArrayForm, form: BatchForm) -> Grid | None:
    """How an output holds the boxes of a grid where its values do not tell: what is no mask is a score."""
    if not one.is_float or len(one.shape) != 3 or one.shape[1] == one.shape[2]:
        return None
    maps = [other.shape[1] for other in form.outputs.values() if other.is_float and len(other.shape) == 4]
    fewer = min(one.shape[1:])
    scores = fewer - 4 - (maps[0] if len(maps) == 1 else 0)
    return Grid(scores, boxes_last=one.shape[1] == fewer) if scores > 0 else None


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
        if len(lead) == 2 and _is_count(one, lead[0]) and one.shape != lead
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


def _corners(boxes: Array, centres: bool) -> Array:
    """Boxes of an output as corners, shape (..., 4)."""
    return corners_of_centres(boxes) if centres else boxes


def _read(
    roles: Mapping[str, str],
    centres: bool,
    scores_of: Callable[[Array], Array],
    outputs: NamedArrays,
) -> list[Detections]:
    boxes = outputs[roles["boxes"]]
    images = boxes if boxes.ndim == 3 else boxes[None]
    corners, scores = _corners(images, centres), scores_of(outputs[roles["scores"]])
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


#: So many samples are looked at before the first batch is measured.
LOOKED_AT = 16


class SeenLayouts:
    """The layouts that were seen so far."""

    def __init__(self) -> None:
        self._seen: dict[str, ArrayForm] = {}

    def look(self, batches: Sequence[NamedArrays]) -> None:
        """Notes the layouts that several batches show together.

        Args:
            batches: The reference's outputs for each batch; one or more.
        """
        together = {name: _joined([outputs[name] for outputs in batches]) for name in batches[0]}
        self._note(BatchForm.of(together, None, 0))

    def applied_to(self, form: BatchForm) -> BatchForm:
        """The form of a batch, with the layouts that others before it have shown; notes what it shows."""
        self._note(form)
        return form.with_layouts(self._seen)

    def _note(self, form: BatchForm) -> None:
        for name, output in form.outputs.items():
            if output.holds_rows:
                self._seen.setdefault(name, output)


def _joined(arrays: Sequence[Array]) -> Array:
    """One output for all batches where it has the shape that it has where it holds rows first."""
    first = next((array for array in arrays if holds_rows(array)), None)
    if first is None:
        return arrays[0]
    return np.concatenate([array for array in arrays if array.shape[1:] == first.shape[1:]])
