"""Boxes: how much two overlap, and non-maximum suppression.

Detections and true boxes as tables, which checks what decoders return and users give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from calibrators.checks import warn_user
from calibrators.data.feeds import Flags, Floats, Indices, NamedArrays, batch_rows
from calibrators.data.images.true_boxes import NO_BOX
from calibrators.data.inputs import shape_text
from calibrators.errors import Argument, CalibrationDataError, counted, failures_named

#: The most boxes of an image that are kept, those of the highest scores: ultralytics' limit.
MOST_BOXES = 300


def box_overlaps(boxes: Floats, others: Floats) -> Floats:
    """The intersection over union of every pair of boxes.

    Args:
        boxes: Corners x1, y1, x2, y2, shape (n, 4).
        others: Corners, shape (m, 4).

    Returns:
        float64 of shape (n, m), in [0, 1]; 0 where both boxes are empty.
    """
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(axis=2)
    own, other = (np.clip(side[:, 2:] - side[:, :2], 0, None).prod(axis=1) for side in (boxes, others))
    union = own[:, None] + other[None, :] - common
    return np.where(union > 0, common / np.where(union > 0, union, 1.0), 0.0)


def suppress(boxes: Floats, scores: Floats, classes: Indices, iou: float) -> Indices:
    """Non-maximum suppression within each class.

    Args:
        boxes: Corners x1, y1, x2, y2, shape (n, 4).
        scores: Confidences, shape (n,).
        classes: Class indices, shape (n,).
        iou: A box is left out whose intersection over union with a better one of its class is above this.

    Returns:
        Indices of the boxes that stay, the best first; at most :data:`MOST_BOXES`.
    """
    waiting = np.argsort(-scores, kind="stable")
    kept: list[np.intp] = []
    while len(waiting) and len(kept) < MOST_BOXES:
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        (overlaps,) = box_overlaps(boxes[[best]], boxes[waiting])
        waiting = waiting[(overlaps <= iou) | (classes[waiting] != classes[best])]
    return np.array(kept, np.intp)


class Detections(NamedTuple):
    """What a detector found in one image.

    Attributes:
        boxes: Corners x1, y1, x2, y2 in any unit, shape (n, 4).
        scores: Confidences, shape (n,).
        classes: Class indices, shape (n,).
    """

    boxes: ArrayLike
    scores: ArrayLike
    classes: ArrayLike


class Truth(NamedTuple):
    """The objects that are in one image.

    Attributes:
        boxes: Corners x1, y1, x2, y2 in the same unit as the detections, shape (n, 4).
        classes: Class indices, shape (n,).
    """

    boxes: ArrayLike
    classes: ArrayLike


#: Turns a batch's outputs into one entry per image: :class:`Detections`, or a tuple of the same fields.
Decode = Callable[[NamedArrays], Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]]]


def found_tables(metric: str, decode: Decode, outputs: NamedArrays, feeds: NamedArrays) -> list[Floats]:
    """The detections of each image of a batch.

    Args:
        metric: The name of the metric, for messages.
        decode: Turns the outputs into detections.
        outputs: The model's outputs, by name.
        feeds: The model's inputs, by name, which tell how many images there are.

    Returns:
        One table per image, float64 of shape (n, 6): x1, y1, x2, y2, class and score.

    Raises:
        CalibrationDataError: ``decode`` fails or does not return one entry per image, or an entry is not of
            boxes, scores and classes of equal lengths.
    """
    with failures_named(f"metric '{metric}': decode failed on a batch"):
        entries = _listed(f"metric '{metric}': what decode returns", decode(outputs), Detections._fields)
    images = batch_rows(feeds)
    if images is not None and len(entries) != images and not (len(entries) == 1 and _is_one_image(feeds)):
        found = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
        raise CalibrationDataError(
            f"metric '{metric}': decoding gives {found} for a batch of {counted(images, 'image')}; let "
            "decode return one entry per image, with empty arrays where there are no detections, or "
            f"validate with {Argument('batch_size', '1')}"
        )
    tables = []
    for number, entry in enumerate(entries):
        source = f"metric '{metric}': the detections of image {number} of a batch"
        boxes, scores, classes = _fields(source, entry, Detections._fields)
        tables.append(_table(source, boxes, classes, scores))
    return tables


def warn_of_no_boxes(metric: str, tables: Sequence[Floats]) -> None:
    """Warns where most boxes of a batch of a user's ``decode`` have their corners in the wrong order.

    It is no error: a network that learns corners may give such boxes, and one that is not trained gives many.
    """
    if 2 * sum(_reversed(table).sum() for table in tables) > sum(map(len, tables)):
        warn_user(
            f"metric '{metric}': most boxes that are detected have their second corner before the first; "
            "decode has to return x1, y1, x2 and y2, not x, y, width and height"
        )


def given_tables(truth: object) -> list[Floats]:
    """The true boxes of each image.

    Args:
        truth: One :class:`Truth`, or a tuple of the same fields, per image.

    Returns:
        One table per image, float64 of shape (n, 5): x1, y1, x2, y2 and class.

    Raises:
        CalibrationDataError: An entry is not of boxes and classes of equal lengths, or :func:`true_boxes`
            refuses one.
    """
    tables = []
    for number, entry in enumerate(_listed("the truth", truth, Truth._fields)):
        source = f"the true boxes of image {number}"
        boxes, classes = _fields(source, entry, Truth._fields)
        tables.append(true_boxes(f"image {number}", _table(source, boxes, classes)))
    return tables


def true_boxes(sample: str, table: Floats) -> Floats:
    """The true boxes of an image.

    Args:
        sample: The image, in words.
        table: One row per box: x1, y1, x2, y2 and class; rows with the class -1 hold no box. Shape (n, 5).

    Returns:
        The rows that hold boxes.

    Raises:
        CalibrationDataError: A box has a value that is not finite, a second corner before the first, or a
            class that is no class index.
    """
    boxes: Floats = table[table[:, 4] != NO_BOX]
    if not np.isfinite(boxes).all():
        raise CalibrationDataError(
            f"a true box of {sample} holds values that are NaN or infinite; give finite values, or the class "
            "-1 where there is no box"
        )
    if (reversed_ones := boxes[_reversed(boxes)]).size:
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
    return boxes


def _reversed(table: Floats) -> Flags:
    """Which boxes have their second corner before the first."""
    return (table[:, 2] < table[:, 0]) | (table[:, 3] < table[:, 1])


def _is_one_image(feeds: NamedArrays) -> bool:
    """Whether a feed is one image, 3 x height x width: torchvision's detectors have no batch axis."""
    return all(array.ndim == 3 and len(array) == 3 for array in feeds.values())


def _listed(source: str, value: object, names: Sequence[str]) -> list[object]:
    """The entries of all images."""
    entries = _unpacked(value)
    if entries is None:
        raise CalibrationDataError(
            f"{source} is {_kind(value)}; give a list with one tuple ({', '.join(names)}) per image"
        )
    return entries


def _fields(source: str, entry: object, names: Sequence[str]) -> list[object]:
    """The parts of the entry of one image."""
    fields = _unpacked(entry)
    if fields is None or len(fields) != len(names):
        kind = _kind(entry) + ("" if fields is None else f" of length {len(fields)}")
        raise CalibrationDataError(f"{source} are {kind}; give a tuple ({', '.join(names)})")
    return fields


def _unpacked(value: Any) -> list[object] | None:
    """What a sequence or an iterator holds; None for what is neither, and for the keys of a dict."""
    if isinstance(value, (str, bytes, Mapping)):
        return None
    try:
        iterator = iter(value)
    except TypeError:
        return None
    return list(iterator)


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _table(source: str, boxes: object, classes: object, scores: object = None) -> Floats:
    """Boxes, classes and, where there are some, scores as the columns of one table."""
    corners = _numbers(source, "boxes", boxes)
    if corners.size and corners.shape[-1:] != (4,):
        raise CalibrationDataError(
            f"{source} have boxes of shape {shape_text(corners.shape)}; give x1, y1, x2 and y2 of each, of "
            "shape (n, 4)"
        )
    columns = [corners.reshape(-1, 4), _numbers(source, "classes", classes).reshape(-1, 1)]
    if scores is not None:
        columns.append(_numbers(source, "scores", scores).reshape(-1, 1))
    if len({len(column) for column in columns}) != 1:
        raise CalibrationDataError(
            f"{source} have {', '.join(str(len(column)) for column in columns)} boxes, "
            f"classes{' and scores' if scores is not None else ''}; give the same number of each"
        )
    if not np.isfinite(columns[1]).all():
        raise CalibrationDataError(f"{source} have classes that are NaN or infinite; give class indices")
    if np.isnan(columns[-1]).any():
        raise CalibrationDataError(f"{source} have scores that are NaN; give numbers")
    return np.concatenate(columns, axis=1)


def _numbers(source: str, what: str, values: Any) -> Floats:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # the last is PyTorch's
        raise CalibrationDataError(
            f"{source} have {what} that are no array of numbers ({error}); give numbers"
        ) from error
