"""The worst samples: those where INT8's answer differs from FP32's, and those with the largest errors.

Images among them become pictures for the page.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from calibrators.data.batches import Batches
from calibrators.data.feeds import Array, FeedDict, Floats, Ints, NamedArrays, is_float
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import InputSpec
from calibrators.data.samples import check_feed
from calibrators.data.sources.arrays import is_class_indices
from calibrators.errors import Argument, CalibrationDataError, ModelError, counted
from calibrators.progress import progress_bar
from trtint8.models.outputs.joined import OutputPart, split_outputs
from trtint8.validation.accuracy import VALIDATED, Runner, ValidatedModel
from trtint8.validation.batch import BatchForm, count_rows

#: Longest side of a picture in a page, in pixels; larger pictures are reduced.
LONGEST = 160


def pixels(array: Array, preprocessing: Preprocessing | None) -> NDArray[np.uint8] | None:
    """Converts a model's input back to pictures, by undoing its preprocessing.

    Args:
        array: A batch of shape (N, C, H, W) or (N, H, W, C), with C of 1 or 3.
        preprocessing: The preprocessing of the images. None where it is not known; then the values of each
            picture are scaled linearly to the range 0 to 255.

    Returns:
        RGB or grey pictures, uint8 of shape (N, H, W, C); None where the array is no batch of images.
    """
    if array.ndim != 4:
        return None
    images = _channels_last(array, preprocessing)
    if images is None:
        return None
    if images.dtype == np.uint8:
        return images
    if preprocessing is None or not is_float(images.dtype):
        return _scale_to_bytes(images.astype(np.float64))
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    values = (images.astype(np.float64) * std + mean) / preprocessing.scale
    if preprocessing.channels == "BGR":
        values = values[..., ::-1]
    return _round_to_bytes(values)


def data_uri(picture: NDArray[np.uint8]) -> str:
    """Encodes a picture as a PNG in a ``data:`` URI.

    Args:
        picture: The picture, uint8 of shape (H, W, 1) or (H, W, 3).
    """
    from PIL import Image  # of an extra, which pages without images do not need

    image = Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture)
    image.thumbnail((LONGEST, LONGEST))
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _channels_last(array: Array, preprocessing: Preprocessing | None) -> Array | None:
    if preprocessing is not None:
        first = preprocessing.layout == "NCHW" and array.dtype != np.uint8
    else:
        first = array.shape[1] in (1, 3)
    images = array.transpose(0, 2, 3, 1) if first else array
    return images if images.shape[3] in (1, 3) else None


def _scale_to_bytes(images: Floats) -> NDArray[np.uint8]:
    low = images.min(axis=(1, 2, 3), keepdims=True)
    width = images.max(axis=(1, 2, 3), keepdims=True) - low
    return _round_to_bytes(255 * (images - low) / np.where(width == 0, 1, width))


def _round_to_bytes(values: Floats) -> NDArray[np.uint8]:
    integers: NDArray[np.uint8] = np.rint(values).clip(0, 255).astype(np.uint8)
    return integers


#: How many samples are kept.
COUNT = 20


@dataclass(frozen=True)
class Answers:
    """The outputs of both models for two classes of one sample.

    Attributes:
        classes: FP32's answer, and INT8's answer or, where both are the same, FP32's second choice.
        reference: FP32's outputs for these classes.
        int8: INT8's outputs for these classes.
        flipped: Whether INT8's answer differs from FP32's.
    """

    classes: tuple[int, int]
    reference: tuple[float, float]
    int8: tuple[float, float]
    flipped: bool

    @property
    def margin(self) -> float:
        """FP32's output for its own answer minus that for the other class."""
        return self.reference[0] - self.reference[1]


@dataclass(frozen=True)
class WorstSample:
    """One sample.

    Attributes:
        index: Position of the sample in the data, from 0.
        error: |FP32 - INT8| / |FP32| (Euclidean norms) of the output where that is largest.
        answers: The answers of both models; None for models that are no classifiers.
        label: The right class; None where it is not known.
        picture: The sample as a picture, uint8 of shape (H, W, C); None where the inputs are no images.
    """

    index: int
    error: float
    answers: Answers | None = None
    label: int | None = None
    picture: NDArray[np.uint8] | None = field(default=None, compare=False, repr=False)

    @property
    def flipped(self) -> bool:
        """Whether INT8's class differs from FP32's."""
        return self.answers is not None and self.answers.flipped

    @property
    def rank(self) -> tuple[bool, float, float, int]:
        """Sorts the worst first: flipped samples by falling margin, then the others by falling error."""
        margin = self.answers.margin if self.answers and self.flipped else 0.0
        return not self.flipped, -margin, -self.error, self.index


@dataclass(frozen=True)
class Worst:
    """The worst samples of a data set.

    Attributes:
        samples: Number of samples that were compared.
        flips: Number of samples with another class in INT8; None where the model is no classifier.
        description: How the model was run, in words.
        worst: The worst samples, the worst first.
        class_names: The name of each class; empty where they are not known.
        name: What the model is called: INT8, or float where no layer of it is in INT8.
    """

    samples: int
    flips: int | None
    description: str
    worst: tuple[WorstSample, ...]
    class_names: tuple[str, ...] = ()
    name: str = VALIDATED

    @property
    def flips_text(self) -> str:
        """How many samples get another class; empty where the model is no classifier."""
        if self.flips is None:
            return ""
        verb = "gets" if self.flips == 1 else "get"
        return f"{self.flips:,} of {counted(self.samples, 'sample', ',')} {verb} another class in {self.name}"

    @property
    def flipped(self) -> tuple[WorstSample, ...]:
        """Those with another class in INT8, by falling margin."""
        return tuple(sample for sample in self.worst if sample.flipped)

    @property
    def others(self) -> tuple[WorstSample, ...]:
        """Those with the same class, or without classes, by falling error."""
        return tuple(sample for sample in self.worst if not sample.flipped)

    def class_name(self, index: int) -> str:
        """The name of a class, or its index where it has none."""
        name = self.class_names[index] if index < len(self.class_names) else ""
        return name or str(index)


def find_worst(
    int8: ValidatedModel,
    reference: Runner,
    output_names: Sequence[str],
    parts: Sequence[OutputPart],
    inputs: Sequence[InputSpec],
    batches: Batches,
    *,
    preprocessing: Preprocessing | None = None,
    class_names: Sequence[str] = (),
) -> Worst:
    """Runs both models on every batch and keeps the samples that differ most.

    Args:
        int8: The INT8 model.
        reference: Runs the FP32 model, which has the same outputs.
        output_names: Names of the outputs, in order.
        parts: The parts of the outputs whose errors are measured by themselves.
        inputs: The inputs of both models.
        batches: The data.
        preprocessing: The preprocessing of the data's images, which is undone for the pictures.
        class_names: The name of each class.

    Returns:
        The worst samples.

    Raises:
        CalibrationDataError: The data does not fit the model, or an output has no row for each sample.
        ModelError: The outputs differ in shape.
    """
    worst: list[WorstSample] = []
    fed, flips, is_classifier = 0, 0, False
    with progress_bar("Worst samples", batches.num_samples) as advance:
        for feed in batches:
            check_feed(feed, inputs, fed, batches.name_of)
            wanted, got = (
                split_outputs(parts, dict(zip(output_names, run(feed), strict=True)))
                for run in (reference, int8.run)
            )
            rows = count_rows(feed, wanted)
            labels = batches.labels[fed : fed + rows] if is_class_indices(batches.labels) else None
            if not fed:
                # Decided once, because a batch of one sample does not tell embeddings from class scores.
                name, scores = next(iter(wanted.items()))
                is_classifier = name in BatchForm.of(wanted, labels, rows).class_outputs
                if is_classifier and class_names and len(class_names) != scores.shape[-1]:
                    raise CalibrationDataError(
                        f"{Argument('class_names')} has {counted(len(class_names), 'name')}, and output "
                        f"'{name}' {scores.shape[-1]} classes; give the names of all of them"
                    )
            measured = measure_batch(wanted, got, labels, rows, is_classifier=is_classifier, first=fed)
            flips += sum(sample.flipped for sample in measured)
            kept = sorted(measured, key=lambda sample: sample.rank)[:COUNT]
            worst += _with_pictures(kept, feed, fed, preprocessing)
            worst = sorted(worst, key=lambda sample: sample.rank)[:COUNT]
            fed += rows
            advance(rows)
    names = tuple(class_names) or batches.class_names or ()
    return Worst(fed, flips if is_classifier else None, int8.description, tuple(worst), names, int8.name)


def measure_batch(
    wanted: NamedArrays,
    got: NamedArrays,
    labels: Ints | None,
    rows: int,
    *,
    is_classifier: bool = False,
    first: int = 0,
) -> list[WorstSample]:
    """Measures every sample of a batch.

    Args:
        wanted: FP32's outputs by name; samples lie along axis 0.
        got: INT8's outputs by name.
        labels: Right classes, int64 of shape (rows,), or None.
        rows: Number of samples in the batch.
        is_classifier: Whether the first output is one row of class scores per sample.
        first: Position of the batch's first sample in the data.

    Returns:
        One entry per sample, in the order of the batch, without pictures.

    Raises:
        CalibrationDataError: An output has no row for each sample.
        ModelError: The outputs differ in shape.
    """
    if any(array.shape[:1] != (rows,) for array in wanted.values()):
        shapes = ", ".join(f"'{name}' {array.shape}" for name, array in wanted.items())
        raise CalibrationDataError(
            f"the worst samples cannot be found: not every output has one row per sample ({shapes} for "
            f"{counted(rows, 'sample')}); leave {Argument('data', '...')} out"
        )
    for name, array in wanted.items():
        if got[name].shape != array.shape:
            raise ModelError(
                f"output '{name}' has shape {got[name].shape}, FP32's {array.shape}; give the model that the "
                "engine was made from"
            )
    errors = np.max([relative_errors(wanted[name], got[name]) for name in _floats(wanted)], axis=0)
    scores, other = next(iter(wanted.values())), next(iter(got.values()))
    return [
        WorstSample(
            first + row,
            float(error),
            compare_answers(scores[row], other[row]) if is_classifier else None,
            None if labels is None else int(labels[row]),
        )
        for row, error in enumerate(errors)
    ]


def relative_errors(wanted: Array, got: Array) -> Floats:
    """|wanted - got| / |wanted| of every sample, by Euclidean norms.

    Args:
        wanted: FP32's output, of shape (rows, ...).
        got: INT8's output, of the same shape.

    Returns:
        float64, shape (rows,); infinite where ``wanted`` is zero and ``got`` is not, and for NaNs.
    """
    rows = len(wanted)
    # Booleans cannot be subtracted, and differences of unsigned integers wrap around.
    exact = wanted.astype(np.float64)
    signal, noise = (
        np.linalg.norm(part.reshape(rows, -1), axis=1) for part in (exact, exact - got.astype(np.float64))
    )
    nothing = np.where(noise == 0, 0.0, math.inf)
    errors = np.where(signal == 0, nothing, noise / np.where(signal == 0, 1, signal))
    return np.where(np.isnan(errors), math.inf, errors)


def compare_answers(wanted: Array, got: Array) -> Answers:
    """Compares the answers of both models for one sample.

    Args:
        wanted: FP32's output, shape (classes,).
        got: INT8's output, shape (classes,).
    """
    own, other = int(np.argmax(wanted)), int(np.argmax(got))
    flipped = own != other
    if not flipped:
        others = wanted.astype(np.float64)
        others[own] = -math.inf
        other = int(np.argmax(others))
    first, second = ((float(scores[own]), float(scores[other])) for scores in (wanted, got))
    return Answers((own, other), first, second, flipped)


def _floats(outputs: NamedArrays) -> list[str]:
    """Names of the outputs of a floating-point type; all names where there are none."""
    return [name for name, array in outputs.items() if is_float(array.dtype)] or list(outputs)


def _with_pictures(
    samples: Sequence[WorstSample], feed: FeedDict, first: int, preprocessing: Preprocessing | None
) -> list[WorstSample]:
    rows = [sample.index - first for sample in samples]
    shown = (pixels(array[rows], preprocessing) for array in feed.values() if array.ndim)
    pictures = next((batch for batch in shown if batch is not None), None)
    if pictures is None:
        return list(samples)
    # Copied, because a view would keep the pictures of the whole batch in memory.
    return [
        replace(sample, picture=picture.copy()) for sample, picture in zip(samples, pictures, strict=True)
    ]
