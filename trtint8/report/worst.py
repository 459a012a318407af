"""The samples that INT8 hurts most: where its answer is another than FP32's, and where it is furthest off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.batches import Batches, FeedDict
from calibrators.data.feeds import batch_rows, is_float
from calibrators.data.inputs import InputSpec
from calibrators.data.preflight import check_feed
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.progress import progress_bar
from trtint8.report.pictures import pixels
from trtint8.validation.accuracy import Runner, ValidatedModel

#: How many samples are kept.
COUNT = 20

_Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Answers:
    """What both sides say of two classes of one sample.

    Attributes:
        classes: FP32's answer; and INT8's, or FP32's second choice where both answer the same.
        reference: FP32's outputs for these.
        judged: INT8's.
        flipped: Whether INT8's answer is another than FP32's.
    """

    classes: tuple[int, int]
    reference: tuple[float, float]
    judged: tuple[float, float]
    flipped: bool

    @property
    def margin(self) -> float:
        """By how much FP32's output for its own class is above that for the other."""
        return self.reference[0] - self.reference[1]


@dataclass(frozen=True)
class WorstSample:
    """One sample.

    Attributes:
        index: Its place in the data, from 0.
        error: |FP32 - INT8| over |FP32| (Euclidean norms), of the output where that is largest.
        answers: Of a classifier; None for other models.
        label: The right class, where it is known.
        picture: uint8, shape (H, W, C); None where the inputs are no images.
    """

    index: int
    error: float
    answers: Answers | None = None
    label: int | None = None
    picture: NDArray[np.uint8] | None = field(default=None, compare=False, repr=False)

    @property
    def flipped(self) -> bool:
        """Whether INT8's class is another than FP32's."""
        return self.answers is not None and self.answers.flipped

    @property
    def rank(self) -> tuple[bool, float, float, int]:
        """Flipped ones first, those with the widest margin leading; then by error."""
        margin = self.answers.margin if self.answers and self.flipped else 0.0
        return not self.flipped, -margin, -self.error, self.index


@dataclass(frozen=True)
class Worst:
    """The worst samples of a data set.

    Attributes:
        samples: How many were looked at.
        flips: How many have another class in INT8; None where the model is no classifier.
        judged: What stood for INT8, in words.
        worst: The worst of them, in order.
        class_names: By class; empty where they are not known.
    """

    samples: int
    flips: int | None
    judged: str
    worst: tuple[WorstSample, ...]
    class_names: tuple[str, ...] = ()

    def class_name(self, index: int) -> str:
        """What to call a class."""
        return self.class_names[index] if index < len(self.class_names) else str(index)


def find_worst(
    judged: ValidatedModel,
    reference: Runner,
    output_names: Sequence[str],
    inputs: Sequence[InputSpec],
    batches: Batches,
    *,
    preprocessing: Preprocessing | None = None,
    class_names: Sequence[str] = (),
    count: int = COUNT,
    progress: bool = True,
) -> Worst:
    """Feeds both sides every batch and keeps the samples that differ most.

    Args:
        judged: The INT8 model.
        reference: The FP32 side, with the same outputs.
        output_names: Names of the outputs, in order.
        inputs: What both are fed.
        batches: The data.
        preprocessing: What its images went through, to undo it for the pictures.
        class_names: By class.
        count: How many to keep.
        progress: Show a progress bar on a terminal.

    Returns:
        The worst.

    Raises:
        CalibrationDataError: The data does not fit the model, or an output has no row for each sample.
        ModelError: The outputs differ in shape.
    """
    worst: list[WorstSample] = []
    fed, flips, classes = 0, 0, False
    with progress_bar("Worst samples", batches.num_samples, enabled=progress) as advance:
        for feed in batches:
            check_feed(feed, inputs, fed)
            wanted = dict(zip(output_names, reference(feed), strict=True))
            got = dict(zip(output_names, judged.run(feed), strict=True))
            rows = batch_rows(feed) or len(wanted[output_names[0]])
            labels = None if batches.labels is None else batches.labels[fed : fed + rows]
            found = rank_batch(wanted, got, labels, first=fed)
            flips += sum(sample.flipped for sample in found)
            classes = any(sample.answers for sample in found)
            kept = sorted(found, key=lambda sample: sample.rank)[:count]
            worst += _with_pictures(kept, feed, fed, preprocessing)
            worst = sorted(worst, key=lambda sample: sample.rank)[:count]
            fed += rows
            advance(rows)
    names = tuple(class_names) or batches.class_names or ()
    return Worst(fed, flips if classes else None, judged.description, tuple(worst), names)


def rank_batch(
    wanted: _Outputs, got: _Outputs, labels: NDArray[np.int64] | None, *, first: int = 0
) -> list[WorstSample]:
    """Measures every sample of a batch.

    Args:
        wanted: FP32's outputs by name.
        got: INT8's.
        labels: Right classes, shape (rows,), or None.
        first: Index of the first sample in the data.

    Returns:
        One a sample, in their order, without pictures.

    Raises:
        CalibrationDataError: An output has no row for each sample.
        ModelError: The outputs differ in shape.
    """
    rows = {array.shape[0] if array.ndim else None for array in wanted.values()}
    if len(rows) != 1 or None in rows:
        shapes = ", ".join(f"'{name}' {array.shape}" for name, array in wanted.items())
        raise CalibrationDataError(
            f"the worst samples cannot be told: the outputs have no common number of rows ({shapes}); leave "
            "--data out"
        )
    for name, array in wanted.items():
        if got[name].shape != array.shape:
            raise ModelError(
                f"output '{name}' has shape {got[name].shape}, FP32's {array.shape}; give the model that the "
                "engine was made from"
            )
    errors = np.max([relative_errors(wanted[name], got[name]) for name in _floats(wanted)], axis=0)
    scores, other = next(iter(wanted.values())), next(iter(got.values()))
    is_classes = scores.ndim == 2 and scores.shape[1] > 1
    return [
        WorstSample(
            first + row,
            float(error),
            answers(scores[row], other[row]) if is_classes else None,
            None if labels is None else int(labels[row]),
        )
        for row, error in enumerate(errors)
    ]


def relative_errors(wanted: NDArray[Any], got: NDArray[Any]) -> NDArray[np.float64]:
    """|wanted - got| / |wanted| of every sample, by Euclidean norms.

    Args:
        wanted: Shape (rows, ...).
        got: The same shape.

    Returns:
        float64, shape (rows,); infinite where ``wanted`` is zero and ``got`` is not, and for NaNs.
    """
    rows = len(wanted)
    signal, noise = (
        np.linalg.norm(part.astype(np.float64).reshape(rows, -1), axis=1) for part in (wanted, wanted - got)
    )
    nothing = np.where(noise == 0, 0.0, math.inf)
    errors = np.where(signal == 0, nothing, noise / np.where(signal == 0, 1, signal))
    return np.where(np.isnan(errors), math.inf, errors)


def answers(wanted: NDArray[Any], got: NDArray[Any]) -> Answers:
    """Both sides' answers for one sample.

    Args:
        wanted: FP32's output, shape (classes,).
        got: INT8's.
    """
    own, theirs = int(np.argmax(wanted)), int(np.argmax(got))
    flipped = own != theirs
    if not flipped:
        others = wanted.astype(np.float64)
        others[own] = -math.inf
        theirs = int(np.argmax(others))
    first, second = ((float(side[own]), float(side[theirs])) for side in (wanted, got))
    return Answers((own, theirs), first, second, flipped)


def _floats(outputs: _Outputs) -> list[str]:
    return [name for name, array in outputs.items() if is_float(array.dtype)] or list(outputs)


def _with_pictures(
    samples: Sequence[WorstSample], feed: FeedDict, first: int, preprocessing: Preprocessing | None
) -> list[WorstSample]:
    rows = [sample.index - first for sample in samples]
    shown = (pixels(array[rows], preprocessing) for array in feed.values())
    pictures = next((found for found in shown if found is not None), None)
    if pictures is None:
        return list(samples)
    # Copies: a view would keep the pictures of the whole batch.
    return [replace(sample, picture=one.copy()) for sample, one in zip(samples, pictures, strict=True)]
