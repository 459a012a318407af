"""How many of a detector's detections are those of the float model, or true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrators.checks import check_choice, is_number
from calibrators.display.counts import counted
from calibrators.errors import Argument, CalibrationDataError
from trtint8.validation.batch import Batch, BatchForm, Outputs, copied
from trtint8.validation.detection.boxes import box_overlaps
from trtint8.validation.detection.labelled_boxes import check_truth, has_true_boxes, truth_tables
from trtint8.validation.detection.layouts import LAYOUTS, class_count, layout_reader
from trtint8.validation.detection.tables import Decode, found_tables
from trtint8.validation.measurand import PERCENT, Measurand
from trtint8.validation.meters import CountedSumsMeter, SumsMeter
from trtint8.validation.segmentation import share


@dataclass(frozen=True)
class DetectionAgreement:
    """The share of detections that a model and the float model have in common, whatever their order.

    Going through the model's detections of an image from the highest score to the lowest, each is matched
    with the float model's detection of the same class that it overlaps most, of those not matched yet, if the
    intersection over union is above ``iou``. The value is 2 matches / (detections of the model + detections
    of the float model) over all images: the F1 score, with the float model's detections as the truth. It is
    1, with a warning, where neither model has detections.

    Where the labels are true boxes (x1, y1, x2, y2 and class, of shape (samples, n, 5), in the unit of the
    detections; rows with the class -1 hold no box), these take the place of the float model's detections, and
    the float model is measured too. There has to be a box then.

    Attributes:
        decode: Turns a batch's outputs into one :class:`Detections`, or a tuple of the same fields, per
            image; it applies anchors and non-maximum suppression. The outputs are copies, which it may
            change. The name of a layout, such as ``grid``, reads outputs that are boxes, scores and classes.
            None reads them in the layout that they suggest; see
            :func:`trtint8.validation.detection.layouts.suggested_layout`.
        score: Detections count whose score is above this.
        iou: The intersection over union above which two detections match.
        name: The metric's name in results, ``detections``.

    Raises:
        CalibrationDataError: ``score`` or ``iou`` is not in [0, 1), or there is no layout of that name.
    """

    decode: Decode | str | None = None
    score: float = 0.3
    iou: float = 0.5
    name: ClassVar[str] = "detections"

    def __post_init__(self) -> None:
        if isinstance(self.decode, str):
            check_choice("decode", self.decode, tuple(LAYOUTS), CalibrationDataError)
        for name in ("score", "iou"):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value < 1):
                raise CalibrationDataError(f"{Argument(name)} is {value!r}; give 0 or more, below 1")

    def measurand(self, form: BatchForm) -> Measurand:
        """The metric for the outputs of a model.

        Args:
            form: The form of a batch.

        Raises:
            CalibrationDataError: There is no ``decode``, and the outputs are in no usual layout; or they do
                not have the shapes of the one that it names.
        """
        decode: Decode
        classes: int | None = None
        if self.decode is None or isinstance(self.decode, str):
            decode, classes = layout_reader(form, self.decode), class_count(form, self.decode)
        else:
            decode = self.decode
        with_labels = has_true_boxes(form)
        source = "true" if with_labels else "FP32's"
        start: Callable[[], SumsMeter]
        if with_labels:
            nothing = (
                f"the labels have no boxes, so metric '{self.name}' has nothing to judge by; check the labels"
            )
            start = partial(CountedSumsMeter, share, 2, nothing)
        else:
            nothing = (
                f"metric '{self.name}' says 100 % because neither model finds anything, with scores above "
                f"{self.score:g}; check the preprocessing, or give other samples"
            )
            start = partial(CountedSumsMeter, share, 1, nothing, is_refused=False)
        return Measurand(
            self.name,
            not with_labels,
            start,
            partial(self._measure, decode, with_labels, classes),
            title=f"detections that are {source} (F1)",
            unit=PERCENT,
            perfect=None if with_labels else 1.0,
            check_labels=partial(check_truth, classes),
        )

    def _measure(self, decode: Decode, with_labels: bool, classes: int | None, batch: Batch) -> SumsMeter:
        found = self._tables(decode, batch.outputs, batch)
        if with_labels and batch.labels is not None:
            wanted = truth_tables(batch, classes)
        else:
            wanted = self._tables(decode, batch.reference, batch)
        if len(found) != len(wanted):
            others = f"{len(wanted)} {'have labels' if with_labels else 'for the float model'}"
            raise CalibrationDataError(
                f"decode returns {counted(len(found), 'image')} for a model and {others}; return one entry "
                "per image"
            )
        sums = [
            (2.0 * match_detections(own, other, self.iou), float(len(own) + len(other)), float(len(other)))
            for own, other in zip(found, wanted, strict=True)
        ]
        return SumsMeter(share, [np.array(sums).reshape(-1, 3)], batch.rows)

    def _tables(self, decode: Decode, outputs: Outputs, batch: Batch) -> list[NDArray[np.float64]]:
        """One table per image of the detections that count."""
        own = copied(outputs) if callable(self.decode) else outputs
        tables = found_tables(self.name, decode, own, batch.feeds)
        return [table[table[:, 5] > self.score] for table in tables]


def match_detections(found: NDArray[np.float64], wanted: NDArray[np.float64], iou: float) -> int:
    """Counts the detections of one image that match others of the same class, each at most once.

    Args:
        found: One row per detection: x1, y1, x2, y2, class and score; shape (n, 6).
        wanted: The other detections, or true boxes without scores; shape (m, 6) or (m, 5).
        iou: The intersection over union above which two detections match.

    Returns:
        The number of pairs, found greedily from the highest score of ``found`` to the lowest, and by the
        numbers of the boxes where scores or overlaps are equal.
    """
    found, wanted = _by_box(found), _by_box(wanted)
    overlaps = box_overlaps(found[:, :4], wanted[:, :4])
    overlaps[found[:, None, 4] != wanted[None, :, 4]] = 0.0
    matches = 0
    for row in np.argsort(-found[:, 5], kind="stable"):
        if overlaps.shape[1] and overlaps[row].max() > iou:
            overlaps[:, overlaps[row].argmax()] = 0.0
            matches += 1
    return matches


def _by_box(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows of a table sorted by x1, y1, x2, y2 and class."""
    order: NDArray[np.intp] = np.lexsort(table[:, 4::-1].T)
    return table[order]
