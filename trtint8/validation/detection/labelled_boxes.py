"""Detections judged by true boxes that come as labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from calibrators.data.images.true_boxes import NO_BOX
from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import ArrayForm, Batch, BatchForm
from trtint8.validation.detection.average_precision import COCO_IOU, mean_average_precision, require_library
from trtint8.validation.detection.layouts import class_count, layout_reader
from trtint8.validation.detection.tables import Decode, found_tables
from trtint8.validation.measurand import PERCENT, Measurand

#: Names of metrics to the intersections over union of which the mean is taken.
PRECISIONS: Mapping[str, tuple[float, ...]] = {"map": COCO_IOU, "map50": (0.5,)}

#: Columns of true boxes: x1, y1, x2, y2 and class.
BOX_COLUMNS = 5


def has_true_boxes(form: BatchForm) -> bool:
    """Whether the labels of a batch are true boxes: x1, y1, x2, y2 and class, of shape (samples, n, 5).

    Args:
        form: The form of a batch.
    """
    labels = form.labels
    return (
        labels is not None
        and labels.dtype.kind in "iuf"
        and len(labels.shape) == 3
        and labels.shape[0] == form.rows
        and labels.shape[2] == BOX_COLUMNS
    )


def truth_tables(batch: Batch, classes: int | None = None) -> list[NDArray[np.float64]]:
    """The true boxes of each image.

    Args:
        batch: Its labels are x1, y1, x2, y2 and class; rows with the class -1 hold no box. Shape
            (images, n, 5).
        classes: How many classes the network knows; None where its outputs do not tell.

    Returns:
        One table per image of its boxes, float64 of shape (boxes, 5).

    Raises:
        CalibrationDataError: A box has a value that is not finite, a second corner before the first, or a
            class that is no class index or that the network does not know.
    """
    assert batch.labels is not None
    tables = batch.labels.astype(np.float64)
    for number, table in enumerate(tables, start=batch.first):
        _check_boxes(batch.name_of(number), table[table[:, 4] != NO_BOX])
    largest = tables[..., 4].max(initial=NO_BOX)
    if classes is not None and largest >= classes:
        raise CalibrationDataError(
            f"a true box has the class {largest:g}, which is not one of the network's {classes} classes "
            f"(0 to {classes - 1}, a background left out); check the labels"
        )
    return [table[table[:, 4] != NO_BOX] for table in tables]


def _check_boxes(sample: str, boxes: NDArray[np.float64]) -> None:
    if not np.isfinite(boxes).all():
        raise CalibrationDataError(
            f"a true box of {sample} holds values that are NaN or infinite; give finite values, or the class "
            "-1 where there is no box"
        )
    if (reversed_ones := boxes[(boxes[:, 2:4] < boxes[:, :2]).any(axis=1)]).size:
        corners = ", ".join(f"{value:g}" for value in reversed_ones[0, :4])
        raise CalibrationDataError(
            f"a true box of {sample} is {corners}, whose second corner lies before the first; give x1, y1, "
            "x2 and y2, not x, y, width and height"
        )
    kinds = boxes[:, 4]
    if (wrong := kinds[(kinds < 0) | (kinds != np.rint(kinds))]).size:
        raise CalibrationDataError(
            f"a true box of {sample} has the class {wrong[0]:g}; give class indices from 0 on, or -1 where "
            "there is no box"
        )


def check_truth(classes: int | None, batch: Batch, _form: BatchForm) -> None:
    """Refuses true boxes that :func:`truth_tables` refuses; takes other labels.

    Args:
        classes: How many classes the network knows; None where its outputs do not tell.
        batch: The batch, which need not have been run.
    """
    labels = batch.labels
    form = None if labels is None else ArrayForm(labels.dtype, labels.shape)
    if has_true_boxes(BatchForm({}, form, batch.rows)):
        truth_tables(batch, classes)


def box_precision(name: str, form: BatchForm, layout: str | None = None) -> Measurand:
    """Mean average precision by the labels.

    Args:
        name: ``map`` or ``map50``.
        form: The form of a batch.
        layout: The name of the layout of the outputs; None takes what they suggest.

    Raises:
        CalibrationDataError: The labels are no boxes, or the outputs are not in the layout, or in none.
        UnsupportedError: faster-coco-eval is not installed.
    """
    if not has_true_boxes(form):
        found = "there are none" if form.labels is None else f"they are {form.labels}"
        raise CalibrationDataError(
            f"metric '{name}' compares with true boxes as labels, and {found}; give a folder 'images' with a "
            "folder 'labels' beside it, or labels of shape (samples, n, 5): x1, y1, x2, y2 and class"
        )
    require_library()
    thresholds = PRECISIONS[name]
    classes = class_count(form, layout)
    ends = f"{thresholds[0]:.2f}" + (f":{thresholds[-1]:.2f}" if len(thresholds) > 1 else "")
    return Measurand(
        name,
        False,
        partial(PrecisionMeter, thresholds),
        partial(_measure, name, thresholds, layout_reader(form, layout), classes),
        title=f"mAP@{ends} by the labels",
        unit=PERCENT,
        check_labels=partial(check_truth, classes),
    )


class PrecisionMeter:
    """Detections and true boxes of all images.

    Args:
        thresholds: The intersections over union of which the mean is taken.
        found: One table per image of detections.
        truth: One table per image of true boxes.
    """

    def __init__(
        self,
        thresholds: Sequence[float],
        found: Sequence[NDArray[np.float64]] = (),
        truth: Sequence[NDArray[np.float64]] = (),
    ) -> None:
        self._thresholds, self._found, self._truth = tuple(thresholds), list(found), list(truth)

    def merge(self, other: PrecisionMeter) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        self._found += other._found
        self._truth += other._truth

    def value(self) -> float:
        """The mean average precision, in [0, 1].

        Raises:
            CalibrationDataError: The labels have no boxes.
        """
        return mean_average_precision(self._found, self._truth, self._thresholds)

    def against(self, other: object, name: str) -> None:
        """None, because samples have no values of their own."""


def _measure(
    name: str, thresholds: Sequence[float], decode: Decode, classes: int | None, batch: Batch
) -> PrecisionMeter:
    found = found_tables(name, decode, batch.outputs, batch.feeds)
    return PrecisionMeter(thresholds, found, truth_tables(batch, classes))
