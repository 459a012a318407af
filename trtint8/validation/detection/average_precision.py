"""Mean average precision of object detectors, as COCO defines it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.errors import Argument, CalibrationDataError, UnsupportedError
from calibrators.words import counted
from trtint8.validation.detection.boxes import Decode, found_tables, given_tables

#: COCO's thresholds, 0.50 to 0.95 in steps of 0.05.
COCO_IOU = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))

#: Detections per class and image that count, those of the highest scores: COCO's limit.
_MOST_DETECTIONS = 100


class MeanAveragePrecision:
    """Mean average precision (mAP) over classes and IoU thresholds.

    Precision is interpolated at 101 recalls, as in Lin et al., "Microsoft COCO: Common Objects in Context",
    2014, and its evaluation code; the arithmetic is faster-coco-eval's. Classes that the truth does not have
    do not count. Boxes and scores of all images are kept until :meth:`value`, outputs are not. The truth is
    not pickled, because workers do not need it.

    Args:
        decode: Turns a batch's outputs into detections; it applies score thresholds, anchors and non-maximum
            suppression.
        truth: The objects in each image, in the order of the data: :class:`Truth`, or tuples of the same
            fields.
        iou: The intersection over union from which a detection counts as right; with several, the mean over
            them is taken.

    Attributes:
        name: ``mAP@`` and the thresholds, such as ``mAP@0.50:0.95``.

    Raises:
        CalibrationDataError: A threshold is not in (0, 1], an image's truth is not boxes and as many classes,
            or there is no box in the truth.
        UnsupportedError: faster-coco-eval is not installed.
    """

    def __init__(
        self,
        decode: Decode,
        truth: Sequence[tuple[ArrayLike, ArrayLike]],
        *,
        iou: float | Sequence[float] = COCO_IOU,
    ) -> None:
        require_library()  # before the run, not after it
        self._iou = _thresholds(iou)
        self._decode, self._truth = decode, tuple(given_tables(truth))
        _check_has_boxes(self._truth)
        self._found: list[NDArray[np.float64]] = []
        ends = f"{self._iou[0]:.2f}" + (f":{self._iou[-1]:.2f}" if len(self._iou) > 1 else "")
        self.name = f"mAP@{ends}"

    def fresh(self) -> MeanAveragePrecision:
        """Makes the same metric without data."""
        other = object.__new__(type(self))
        vars(other).update(
            vars(self), _found=[]
        )  # a worker's metric has no truth that could be checked again
        return other

    def update(
        self,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
        labels: NDArray[Any] | None,  # noqa: ARG002  # named as in the protocol
    ) -> None:
        """Adds one batch.

        Args:
            feeds: The model's inputs, which tell how many images there are.
            outputs: The model's outputs, which ``decode`` is called with.
            labels: Not used.

        Raises:
            CalibrationDataError: ``decode`` does not return one entry per image, or an entry is not of boxes,
                scores and classes of equal lengths.
        """
        self._found += found_tables(self.name, self._decode, outputs, feeds)

    def merge(self, other: MeanAveragePrecision) -> None:
        """Adds the detections that another metric has decoded from later batches.

        Args:
            other: The other metric.

        Raises:
            CalibrationDataError: The truth has fewer images than there are detections of.
        """
        self._found += other._found
        self._check_length()

    def value(self) -> float:
        """The mean average precision, in [0, 1].

        Raises:
            CalibrationDataError: The truth has fewer images than the data, or no boxes in those of the data.
        """
        self._check_length()
        return mean_average_precision(self._found, self._truth[: len(self._found)], self._iou)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: everything except the truth."""
        return {**vars(self), "_truth": ()}

    def _check_length(self) -> None:
        if len(self._found) > len(self._truth):
            raise CalibrationDataError(
                f"the truth has {counted(len(self._truth), 'image')} but the data has more; give one entry "
                "per image"
            )


def mean_average_precision(
    found: Sequence[NDArray[np.float64]], truth: Sequence[NDArray[np.float64]], iou: Sequence[float]
) -> float:
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


def _check_has_boxes(truth: Sequence[NDArray[np.float64]]) -> None:
    if not sum(map(len, truth)):
        raise CalibrationDataError("the truth has no boxes, so there is no precision; give the truth")


def _annotations(tables: Sequence[NDArray[np.float64]]) -> list[dict[str, Any]]:
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
            "mean average precision needs faster-coco-eval; install it with pip install 'trtint8[detection]'"
        ) from error
