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
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import Argument, CalibrationDataError
from trtint8.validation.batch import ArrayForm, BatchForm, Outputs
from trtint8.validation.detection.boxes import Detections
from trtint8.validation.detection.decoding import (
    BOX_FIRST,
    CLASS_FIRST,
    IMAGE_BOX_FIRST,
    IMAGE_CLASS_FIRST,
    MOST_LEFT,
    Activation,
    Grid,
    GridRows,
    RowOrder,
    corners_of_centres,
    holds_rows,
)

#: Turns a batch's outputs into the detections of each image.
Reader: TypeAlias = Callable[[Outputs], list[Detections]]

#: Parts of the names of outputs that hold classes, where scores and classes have the same form.
_CLASS_WORDS = ("class", "label", "cls")


class Layout(Protocol):
    """How outputs hold detections."""

    @property
    def name(self) -> str:
        """The name by which a user asks for it."""
        ...

    @property
    def words(self) -> str:
        """What outputs hold, in words."""
        ...

    def reader(self, form: BatchForm) -> Reader | None:
        """How detections are read; None where outputs do not have the shapes of this layout."""
        ...

    def class_count(self, form: BatchForm) -> int | None:
        """How many classes boxes may have, without the background; None where shapes do not tell."""
        ...


#: What is behind scores of classes, to a part of a layout's name and to words.
_ACTIVATIONS = {
    Activation.NONE: ("", "scores"),
    Activation.WITHOUT_FIRST: ("-background", "scores of classes, of which the first is the background"),
    Activation.SIGMOID: ("-sigmoid", "logits of classes, for a sigmoid"),
    Activation.SOFTMAX_WITHOUT_FIRST: (
        "-softmax-background",
        "logits of classes, for a softmax, of which the first is the background",
    ),
    Activation.SOFTMAX_WITHOUT_LAST: (
        "-softmax",
        "logits of classes, for a softmax, of which the last is no object",
    ),
}


@dataclass(frozen=True)
class _Boxes:
    """Boxes in one output, and their scores, classes and number in others."""

    activation: Activation
    centres: bool

    @property
    def name(self) -> str:
        return f"boxes{'-centre' if self.centres else ''}{_ACTIVATIONS[self.activation][0]}"

    @property
    def words(self) -> str:
        return f"boxes by {_corners_or_centres(self.centres)}, and {_ACTIVATIONS[self.activation][1]}"

    def reader(self, form: BatchForm) -> Reader | None:
        roles = _box_roles(form.outputs)
        if roles is None:
            return None
        if not _has_table(form.outputs, roles):
            if self.activation is not Activation.NONE:
                return None
        elif self.activation.class_count(form.outputs[roles["scores"]].shape[-1]) < 1:
            return None
        return partial(_read, roles, _corners_of(self.centres), self.activation.apply)

    def class_count(self, form: BatchForm) -> int | None:
        roles = _box_roles(form.outputs)
        if roles is None or not _has_table(form.outputs, roles):
            return None
        return self.activation.class_count(form.outputs[roles["scores"]].shape[-1])


@dataclass(frozen=True)
class _Rows:
    """Detections as rows of one output, and perhaps their number in another one."""

    name: str
    order: RowOrder
    columns: str
    centres: bool = False

    @property
    def words(self) -> str:
        return f"rows of {self.columns}, boxes by {_corners_or_centres(self.centres)}"

    def reader(self, form: BatchForm) -> Reader | None:
        fitting = {name: one for name, one in form.outputs.items() if self._has_shape(one)}
        found = [name for name, one in fitting.items() if one.row_order is not None] or list(fitting)
        counts = [name for name, one in form.outputs.items() if _is_count(one, form.rows)]
        maps = [name for name, one in form.outputs.items() if len(one.shape) > 3 and name not in found]
        if len(found) != 1 or len(counts) > 1 or len(form.outputs) > 1 + len(counts) + len(maps):
            return None
        return partial(self._read, found[0], counts[0] if counts else None, form.rows)

    def class_count(self, form: BatchForm) -> None:  # noqa: ARG002  # named as in the protocol
        return None

    def _has_shape(self, one: ArrayForm) -> bool:
        """Whether an output may hold such rows, behind which masks and keypoints may follow."""
        columns = 6 if self.order.image is None else 7
        if not one.is_float or not 2 <= len(one.shape) <= 4:
            return False
        if self.order is not BOX_FIRST or len(one.shape) != 3 or one.shape[1] > MOST_LEFT:
            return one.shape[-1] == columns
        return one.shape[-1] >= columns

    def _read(self, name: str, count: str | None, images: int, outputs: Outputs) -> list[Detections]:
        order, corners_of = self.order, _corners_of(self.centres)
        found = order.split(outputs[name], images, None if count is None else outputs[count])
        return [
            Detections(corners_of(image[:, order.box]), image[:, order.score], np.rint(image[:, order.kind]))
            for image in found
        ]


_ROWS = (
    _Rows("rows", BOX_FIRST, "box, score and class"),
    _Rows("rows-centre", BOX_FIRST, "box, score and class", centres=True),
    _Rows("rows-class-first", CLASS_FIRST, "class, score and box"),
    _Rows("rows-image-class-first", IMAGE_CLASS_FIRST, "image, class, score and box"),
    _Rows("rows-image-box-first", IMAGE_BOX_FIRST, "image, box, class and score"),
)

#: What follows a box of a grid, to the name of a layout and to words.
_GRIDS = {
    GridRows.SCORES: ("grid", "centre, size and scores"),
    GridRows.OBJECTNESS_AND_SCORES: ("grid-objectness", "centre, size, objectness and scores"),
}


@dataclass(frozen=True)
class _Grid:
    """Boxes of all positions of a grid in one output."""

    rows: GridRows

    @property
    def name(self) -> str:
        return _GRIDS[self.rows][0]

    @property
    def words(self) -> str:
        return f"{_GRIDS[self.rows][1]} of each box, before non-maximum suppression"

    def reader(self, form: BatchForm) -> Reader | None:
        found = self._grid(form)
        return partial(_read_grid, *found) if found is not None else None

    def class_count(self, form: BatchForm) -> int | None:
        found = self._grid(form)
        return found[1].classes if found is not None else None

    def _grid(self, form: BatchForm) -> tuple[str, Grid] | None:
        """The output that holds boxes, if no others but maps are beside it, and how it does."""
        found = [(name, one) for name, one in form.outputs.items() if len(one.shape) < 4]
        if len(found) != 1:
            return None
        ((name, one),) = found
        grid = one.grid or _grid_by_shape(one, form)
        if grid is None:
            return None
        grid = replace(grid, rows=self.rows)
        return (name, grid) if grid.classes else None


def _all_layouts() -> list[Layout]:
    boxes = [_Boxes(activation, centres) for centres in (False, True) for activation in _ACTIVATIONS]
    return [*boxes, *_ROWS, *map(_Grid, _GRIDS)]


#: All layouts by their names.
LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in _all_layouts()}


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
    layout = _suggested_grid(forms) or _suggested_rows(form) or _suggested_boxes(forms)
    if layout is not None and layout.reader(form) is not None:
        return layout
    raise CalibrationDataError(
        f"metric 'detections' finds no boxes with scores in the outputs {_listed(form)}; give "
        f"{Argument('DetectionAgreement')} with a function that turns a batch's outputs into detections, or "
        "another metric"
    )


def _layout_of(form: BatchForm, name: str | None) -> Layout:
    """The layout that a user has named, else the suggested one.

    Args:
        form: The form of a batch.
        name: A name among :data:`LAYOUTS`; None where none is named.

    Raises:
        CalibrationDataError: The outputs do not have the shapes of the layout, or are in none.
    """
    if name is None:
        return suggested_layout(form)
    layout = LAYOUTS[name]
    if layout.reader(form) is None:
        raise CalibrationDataError(
            f"the outputs {_listed(form)} cannot be read in the layout '{name}' ({layout.words}); name "
            f"another one of {', '.join(LAYOUTS)}, or none"
        )
    return layout


def layout_reader(form: BatchForm, name: str | None = None) -> Reader:
    """How detections are read from outputs.

    Args:
        form: The form of a batch.
        name: The name of the layout; None takes what the outputs suggest.

    Raises:
        CalibrationDataError: The outputs do not have the shapes of the layout, or are in none.
    """
    reader = _layout_of(form, name).reader(form)
    assert reader is not None
    return reader


def class_count(form: BatchForm, name: str | None = None) -> int | None:
    """How many classes the boxes of a detector may have.

    Args:
        form: The form of a batch.
        name: The name of the layout; None takes what the outputs suggest.

    Returns:
        Their number, without the background; None where the shapes of the outputs do not tell.
    """
    return _layout_of(form, name).class_count(form)


def _suggested_grid(forms: Mapping[str, ArrayForm]) -> Layout | None:
    """The layout of a grid of boxes; None where no output holds one, or there are others beside it."""
    found = [one.grid for one in forms.values() if len(one.shape) < 4]
    return _Grid(found[0].rows) if len(found) == 1 and found[0] else None


def _suggested_rows(form: BatchForm) -> Layout | None:
    """The layout of the rows of an output; None where no output holds detections as rows."""
    orders = {name: one.row_order for name, one in form.outputs.items() if one.row_order is not None}
    if len(orders) != 1:
        return None
    ((name, order),) = orders.items()
    centres = order is BOX_FIRST and not form.outputs[name].has_corners
    layout = next(one for one in _ROWS if one.order == order and one.centres == centres)
    # Where other outputs are beside it, they may be boxes.
    return layout if layout.reader(form) is not None else None


def _suggested_boxes(forms: Mapping[str, ArrayForm]) -> Layout | None:
    """The layout of boxes whose scores are in another output."""
    if (roles := _box_roles(forms)) is None:
        return None
    activation = forms[roles["scores"]].activation if _has_table(forms, roles) else Activation.NONE
    return _Boxes(activation, not forms[roles["boxes"]].has_corners)


def _listed(form: BatchForm) -> str:
    return ", ".join(f"'{name}' ({one})" for name, one in form.outputs.items())


def _corners_or_centres(centres: bool) -> str:
    return "centre and size" if centres else "corners"


def _grid_by_shape(one: ArrayForm, form: BatchForm) -> Grid | None:
    """How an output holds the boxes of a grid where its values do not tell: what is no mask is a score."""
    if not one.is_float or len(one.shape) != 3 or one.shape[1] == one.shape[2]:
        return None
    maps = [other.shape[1] for other in form.outputs.values() if other.is_float and len(other.shape) == 4]
    fewer = min(one.shape[1:])
    scores = fewer - 4 - (maps[0] if len(maps) == 1 else 0)
    return Grid(GridRows.SCORES, scores, one.shape[1] == fewer) if scores > 0 else None


def _read_grid(name: str, grid: Grid, outputs: Outputs) -> list[Detections]:
    return [grid.detections(image) for image in outputs[name]]


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


def _corners_of(centres: bool) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Turns boxes of an output into corners, shape (..., 4)."""
    return corners_of_centres if centres else _as_they_are


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


#: So many samples are looked at before the first batch is measured.
LOOKED_AT = 16


class SeenLayouts:
    """The layouts that were seen so far."""

    def __init__(self) -> None:
        self._seen: dict[str, ArrayForm] = {}

    def look(self, batches: Sequence[Outputs]) -> None:
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


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One output for all batches where it has the shape that it has where it holds rows first."""
    first = next((array for array in arrays if holds_rows(array)), None)
    if first is None:
        return arrays[0]
    return np.concatenate([array for array in arrays if array.shape[1:] == first.shape[1:]])
