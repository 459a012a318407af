"""Detections judged: by those of the float model, or by true boxes that come as labels.

Mean average precision is that of COCO.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from calibrators.checks import check_choice, is_number
from calibrators.data.feeds import Array, Floats, Indices, NamedArrays
from calibrators.data.images.true_boxes import NO_BOX
from calibrators.errors import Argument, CalibrationDataError, UnsupportedError, counted
from calibrators.imports import install_command
from trtint8.validation.batch import ArrayForm, Batch, BatchForm, copied
from trtint8.validation.class_scores import share
from trtint8.validation.detection.boxes import (
    Decode,
    box_overlaps,
    found_tables,
    given_tables,
    true_boxes,
    warn_of_no_boxes,
)
from trtint8.validation.detection.layouts import LAYOUTS, reading_of
from trtint8.validation.meters import (
    NOTHING_FOUND,
    PERCENT,
    CountedSumsMeter,
    Measurand,
    PartsMeter,
    SumsMeter,
)
from trtint8.validation.user_metrics import user_measurand

#: COCO's thresholds, 0.50 to 0.95 in steps of 0.05.
COCO_IOU = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))

#: Detections per class and image that count, those of the highest scores: COCO's limit.
_MOST_DETECTIONS = 100


class MeanAveragePrecision:
    """Mean average precision (mAP) over classes and IoU thresholds.

    Precision is interpolated at 101 recalls, as in Lin et al., "Microsoft COCO: Common Objects in Context",
    2014, and its evaluation code; the arithmetic is faster-coco-eval's. Classes that the truth does not have
    do not count. Boxes and scores of all images are stored until :meth:`value`; outputs are not. A truth that
    is given is not pickled, because workers do not need it.

    Args:
        decode: Turns a batch's outputs into detections; it applies score thresholds, anchors and non-maximum
            suppression.
        truth: The objects in each image, in the order of the data: :class:`Truth`, or tuples of the same
            fields; the class -1 is no object. By default the labels of the data are the truth. They are boxes
            as :class:`DetectionAgreement` takes them, such as those of COCO's file of instances.
        iou: The intersection over union from which a detection counts as right; with several, the mean over
            them is taken.

    Attributes:
        name: ``mAP@`` and the thresholds, such as ``mAP@0.50:0.95``.

    Raises:
        CalibrationDataError: A threshold is not in (0, 1], an image's truth is not boxes and as many classes,
            a box of it is none, or there is no box in the truth.
        UnsupportedError: faster-coco-eval is not installed.

    Examples:
        >>> def decode(outputs):  # boxes, scores and classes of each image
        ...     return [(rows[:, :4], rows[:, 4], rows[:, 5]) for rows in outputs["rows"]]
        >>> score = trtint8.MeanAveragePrecision(decode, iou=0.5)  # by the labels in boxes.npz
        >>> accuracy = trtint8.validate("boxes.int8.onnx", "boxes.npz", reference="boxes.onnx", metrics=score)
        >>> accuracy.measures[0].value
        1.0
    """

    def __init__(
        self,
        decode: Decode,
        truth: Sequence[tuple[ArrayLike, ArrayLike]] | None = None,
        *,
        iou: float | Sequence[float] = COCO_IOU,
    ) -> None:
        require_library()  # before the run, not after it
        self._iou = _thresholds(iou)
        self._decode = decode
        self._truth = None if truth is None else tuple(given_tables(truth))
        if self._truth is not None:
            _check_has_boxes(self._truth)
        self._found: list[Floats] = []
        self._labels: list[Floats] = []
        self.name = f"mAP@{_ends(self._iou)}"

    def fresh(self) -> MeanAveragePrecision:
        """Makes the same metric without data."""
        other = object.__new__(type(self))
        # A worker's metric has no truth that could be checked again.
        vars(other).update(vars(self), _found=[], _labels=[])
        return other

    def update(
        self,
        feeds: NamedArrays,
        outputs: NamedArrays,
        labels: Array | None,
    ) -> None:
        """Adds one batch.

        Args:
            feeds: The model's inputs. They give the number of images.
            outputs: The model's outputs, which ``decode`` is called with.
            labels: The true boxes if no truth is given.

        Raises:
            CalibrationDataError: ``decode`` does not return one entry per image, an entry is not of boxes,
                scores and classes of equal lengths, or the labels are no true boxes.
        """
        found = found_tables(self.name, self._decode, outputs, feeds)
        warn_of_no_boxes(self.name, found)
        if self._truth is None:
            batch = Batch({}, {}, {}, labels, len(found), name_of="image {} of a batch".format)
            _check_are_boxes(self.name, _form_of(batch))
            self._labels += truth_tables(batch)
        self._found += found

    def merge(self, other: MeanAveragePrecision) -> None:
        """Adds the detections that another metric has decoded from later batches.

        Args:
            other: The other metric.

        Raises:
            CalibrationDataError: The truth has fewer images than there are detections of.
        """
        self._found += other._found
        self._labels += other._labels
        self._check_length()

    def value(self) -> float:
        """The mean average precision, in [0, 1].

        Raises:
            CalibrationDataError: The truth has fewer images than the data, or no boxes in those of the data.
        """
        self._check_length()
        truth = self._labels if self._truth is None else self._truth
        return mean_average_precision(self._found, truth[: len(self._found)], self._iou)

    def measurand(self, form: BatchForm) -> Measurand:
        """The metric for the outputs of a model.

        Args:
            form: The form of a batch.

        Raises:
            CalibrationDataError: There is no truth, and the labels are no true boxes.
        """
        found = replace(user_measurand(self), unit=PERCENT, answers=NOTHING_FOUND)
        if self._truth is not None:
            return found
        _check_are_boxes(self.name, form)
        return replace(found, check_labels=partial(_check_truth, None))

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: everything except a truth that is given."""
        return {**vars(self), "_truth": None if self._truth is None else ()}

    def _check_length(self) -> None:
        if self._truth is not None and len(self._found) > len(self._truth):
            raise CalibrationDataError(
                f"the truth has {counted(len(self._truth), 'image')} but the data has more; give one entry "
                "per image"
            )


def mean_average_precision(found: Sequence[Floats], truth: Sequence[Floats], iou: Sequence[float]) -> float:
    """Mean average precision over classes and thresholds; see :class:`MeanAveragePrecision`.

    Args:
        found: One table per image of detections, x1, y1, x2, y2, class and score.
        truth: One table per image of true boxes: x1, y1, x2, y2 and class.
        iou: The intersections over union from which a detection counts as right.

    Returns:
        The mean, in [0, 1].

    Raises:
        CalibrationDataError: The truth has no boxes.
        UnsupportedError: faster-coco-eval is not installed.
    """
    classes = {int(row[4]) for table in (*truth, *found) for row in table}
    _check_has_boxes(truth)
    library = require_library()
    images = [{"id": number} for number in range(1, len(found) + 1)]
    head = {"images": images, "categories": [{"id": c} for c in sorted(classes)]}
    sides = [library.COCO({**head, "annotations": _annotations(tables)}) for tables in (truth, found)]
    evaluation = library.COCOeval_faster(*sides, iouType="bbox", print_function=lambda *_: None)
    evaluation.params.iouThrs = np.array(iou)
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, float("inf")]], ["all"]
    evaluation.params.maxDets = [_MOST_DETECTIONS]
    evaluation.evaluate()
    evaluation.accumulate()
    precision = np.asarray(evaluation.eval["precision"])
    return float(precision[precision > -1].mean())


def _thresholds(iou: float | Sequence[float]) -> tuple[float, ...]:
    try:
        values = np.asarray(iou, np.float64).ravel()
    except (TypeError, ValueError):
        values = np.empty(0)
    if not (values.size and ((values > 0) & (values <= 1)).all()):
        raise CalibrationDataError(
            f"{Argument('iou')} is {iou!r}; give one threshold or more, above 0 and up to 1"
        )
    return tuple(values.tolist())


def _ends(iou: Sequence[float]) -> str:
    """The ends of thresholds, as the name of a metric has them."""
    return f"{iou[0]:.2f}" + (f":{iou[-1]:.2f}" if len(iou) > 1 else "")


def _check_has_boxes(truth: Sequence[Floats]) -> None:
    if not sum(map(len, truth)):
        raise CalibrationDataError(
            f"there are no boxes in the truth of {counted(len(truth), 'image')}, so there is no precision; "
            "give labels, or a truth, with boxes"
        )


def _annotations(tables: Sequence[Floats]) -> list[dict[str, Any]]:
    """Entries in COCO's form: boxes as x, y, width, height, and ids from 1, as 0 means "no match" there."""
    entries: list[dict[str, Any]] = []
    for image, table in enumerate(tables, start=1):
        for x1, y1, x2, y2, label, *score in table.tolist():
            entry = {
                "id": len(entries) + 1,
                "image_id": image,
                "category_id": int(label),
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
            }
            entries.append(entry | ({"score": score[0]} if score else {}))
    return entries


def has_library() -> bool:
    """Whether the package that computes mean average precision is installed."""
    return importlib.util.find_spec("faster_coco_eval") is not None


def require_library() -> ModuleType:
    """The package that computes mean average precision.

    Raises:
        UnsupportedError: It is not installed.
    """
    try:
        return importlib.import_module("faster_coco_eval")
    except ImportError as error:
        raise UnsupportedError(
            f"mean average precision needs faster-coco-eval; install it with {install_command('detection')}"
        ) from error


@dataclass(frozen=True)
class DetectionAgreement:
    """The share of detections that a model and the float model have in common, whatever their order.

    The model's detections of an image are matched from the highest score to the lowest. Each is matched with
    a detection of the float model of the same class: of those not matched yet, the one that it overlaps most,
    if the intersection over union is above ``iou``. The value is 2 matches / (detections of the model +
    detections of the float model) over all images: the F1 score, with the float model's detections as the
    truth. If neither model has detections, it is NaN, with a warning.

    If the labels are true boxes, they replace the float model's detections, and the float model is measured
    too. Their shape is (samples, n, 5): x1, y1, x2, y2 and class, in the unit of the detections. Rows with
    the class -1 hold no box. There must be at least one box.

    Attributes:
        decode: Turns a batch's outputs into one :class:`Detections`, or a tuple of the same fields, per
            image; it applies anchors and non-maximum suppression. The outputs are copies, which it may
            change. The name of a layout, such as ``grid``, reads outputs that are boxes, scores and classes.
            None reads them in the layout that they suggest; see
            :func:`trtint8.validation.detection.layouts.suggested_layout`.
        score: Only detections with a score above this count.
        iou: The intersection over union above which two detections match.
        name: The metric's name in results, ``detections``.

    Raises:
        CalibrationDataError: ``score`` or ``iou`` is not in [0, 1), or there is no layout of that name.

    Examples:
        >>> def decode(outputs):  # boxes, scores and classes of each image
        ...     return [(rows[:, :4], rows[:, 4], rows[:, 5]) for rows in outputs["rows"]]
        >>> found = trtint8.DetectionAgreement(decode, score=0.5)
        >>> accuracy = trtint8.validate("boxes.int8.onnx", "boxes.npz", reference="boxes.onnx", metrics=found)
        >>> accuracy.measures[0].value
        1.0
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
            decode, classes = reading_of(form, self.decode)
        else:
            decode = self.decode
        with_labels = has_true_boxes(form)
        source = "true" if with_labels else "FP32's"
        nothing = f"metric '{self.name}' has nothing to judge by"
        start = partial(
            CountedSumsMeter,
            share,
            1,
            f"{nothing}, as neither model finds anything with scores above {self.score:g}; check the "
            "preprocessing, or give other samples",
            is_refused=False,
        )
        if with_labels:
            nothing = f"the labels have no boxes, so {nothing}; check the labels"
            start = partial(CountedSumsMeter, share, 2, nothing)

        def measure(batch: Batch) -> SumsMeter:
            found = self._tables(decode, batch.outputs, batch)
            if with_labels:
                wanted = truth_tables(batch, classes)
            else:
                wanted = self._tables(decode, batch.reference, batch)
            if len(found) != len(wanted):
                others = f"{len(wanted)} {'have labels' if with_labels else 'for the float model'}"
                raise CalibrationDataError(
                    f"decode returns {counted(len(found), 'image')} for a model and {others}; return one "
                    "entry per image"
                )
            sums = [
                (2 * match_detections(own, other, self.iou), len(own) + len(other), len(other))
                for own, other in zip(found, wanted, strict=True)
            ]
            return SumsMeter(share, [np.array(sums, np.float64).reshape(-1, 3)], batch.rows)

        return Measurand(
            self.name,
            not with_labels,
            start,
            measure,
            title=f"detections that are {source} (F1)",
            unit=PERCENT,
            perfect=None if with_labels else 1.0,
            check_labels=partial(_check_truth, classes),
            answers=NOTHING_FOUND,
        )

    def _tables(self, decode: Decode, outputs: NamedArrays, batch: Batch) -> list[Floats]:
        """One table per image of the detections that count."""
        own = copied(outputs) if callable(self.decode) else outputs
        tables = found_tables(self.name, decode, own, batch.feeds)
        if callable(self.decode):
            warn_of_no_boxes(self.name, tables)
        return [table[table[:, 5] > self.score] for table in tables]


def match_detections(found: Floats, wanted: Floats, iou: float) -> int:
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


def _by_box(table: Floats) -> Floats:
    """The rows of a table sorted by x1, y1, x2, y2 and class."""
    order: Indices = np.lexsort(table[:, 4::-1].T)
    return table[order]


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


def truth_tables(batch: Batch, classes: int | None = None) -> list[Floats]:
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
    rows = enumerate(batch.labels.astype(np.float64), start=batch.first)
    tables = [true_boxes(batch.name_of(number), table) for number, table in rows]
    largest = max((table[:, 4].max(initial=NO_BOX) for table in tables), default=NO_BOX)
    if classes is not None and largest >= classes:
        raise CalibrationDataError(
            f"a true box has the class {largest:g}, which is not one of the network's {classes} classes "
            f"(0 to {classes - 1}, a background left out); check the labels"
        )
    return tables


def _check_truth(classes: int | None, batch: Batch, _form: BatchForm) -> None:
    """Refuses true boxes that :func:`truth_tables` refuses; takes other labels.

    Args:
        classes: How many classes the network knows; None where its outputs do not tell.
        batch: The batch, which need not have been run.
    """
    if has_true_boxes(_form_of(batch)):
        truth_tables(batch, classes)


def _form_of(batch: Batch) -> BatchForm:
    """The form of a batch that has no outputs."""
    labels = batch.labels
    return BatchForm({}, None if labels is None else ArrayForm(labels.dtype, labels.shape), batch.rows)


def _check_are_boxes(name: str, form: BatchForm) -> None:
    if not has_true_boxes(form):
        found = "there are none" if form.labels is None else f"they are {form.labels}"
        raise CalibrationDataError(
            f"metric '{name}' compares with true boxes as labels, and {found}; give a folder 'images' with a "
            f"folder 'labels' beside it, or as {Argument('labels')} COCO's file of instances, or an array of "
            "shape (samples, n, 5): x1, y1, x2, y2 and class"
        )


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
    _check_are_boxes(name, form)
    require_library()
    thresholds = PRECISIONS[name]
    decode, classes = reading_of(form, layout)

    def measure(batch: Batch) -> _PrecisionMeter:
        found = found_tables(name, decode, batch.outputs, batch.feeds)
        return _PrecisionMeter(thresholds, [(found, truth_tables(batch, classes))])

    return Measurand(
        name,
        False,
        partial(_PrecisionMeter, thresholds),
        measure,
        title=f"mAP@{_ends(thresholds)} by the labels",
        unit=PERCENT,
        check_labels=partial(_check_truth, classes),
        answers=NOTHING_FOUND,
    )


class _PrecisionMeter(PartsMeter[tuple[list[Floats], list[Floats]]]):
    """Detections and true boxes of all images.

    Args:
        thresholds: The intersections over union of which the mean is taken.
        parts: For each batch, one table per image of detections, and one of true boxes.
    """

    def __init__(
        self,
        thresholds: Sequence[float],
        parts: Sequence[tuple[list[Floats], list[Floats]]] = (),
    ) -> None:
        super().__init__(parts)
        self._thresholds = thresholds

    def value(self) -> float:
        """The mean average precision, in [0, 1].

        Raises:
            CalibrationDataError: The labels have no boxes.
        """
        found, truth = (list(chain(*tables)) for tables in zip(*self._parts, strict=True))
        return mean_average_precision(found, truth, self._thresholds)
