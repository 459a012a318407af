"""Metrics of classifiers, whose output is one row of class scores per sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.array_files import is_class_indices
from calibrators.data.inputs import shape_text
from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import ArrayForm, Batch, BatchForm
from trtint8.validation.measurand import PERCENT, Measurand
from trtint8.validation.meters import HitMeter


def agreement(name: str, output: str) -> Measurand:
    """The share of samples where the model and the reference give the same class.

    Args:
        name: The metric's name in results.
        output: The output that has the class scores.
    """
    measure = partial(_hits, partial(_agrees, name, output))
    return Measurand(name, True, HitMeter, measure, unit=PERCENT, perfect=1.0, output=output)


def top_k(name: str, output: str, k: int) -> Measurand:
    """The share of samples whose label is among the k largest scores.

    Args:
        name: The metric's name in results.
        output: The output that has the class scores.
        k: How many scores count.
    """
    measure = partial(_hits, partial(_in_top, name, output, k))
    check = partial(_check_labels, name, output)
    return Measurand(name, False, HitMeter, measure, unit=PERCENT, check_labels=check)


def rank_in(name: str) -> int | None:
    """The number in the name ``topK`` of a metric; None for other names."""
    match = re.fullmatch(r"top([1-9][0-9]*)", name)
    return int(match[1]) if match else None


def check_class_folders(folders: Sequence[str] | None, form: BatchForm, metrics: Iterable[str]) -> None:
    """Refuses folders as classes where there are more or fewer of them than classes: all labels would be off.

    Args:
        folders: Names of the sub-folders whose order gives the class indices; None for other labels.
        form: The form of the first batch.
        metrics: Names of the metrics that are measured.

    Raises:
        CalibrationDataError: Labels are compared with the classes of an output that has another number.
    """
    if folders is None:
        return
    for base, _, output_name in (metric.partition(":") for metric in metrics):
        if rank_in(base) is None:
            continue
        name = output_name or form.first_output
        output = form.outputs[name]
        if form.is_class_scores(name) and output.shape[1] != len(folders):
            raise CalibrationDataError(
                f"the data has {len(folders)} sub-folders, which are classes in the order of their names, "
                f"from '{folders[0]}' to '{folders[-1]}', and output '{name}' has {output.shape[1]} classes; "
                "give each class a sub-folder, an empty one where it has no images, and nothing else one"
            )


def _hits(find: Callable[[Batch], NDArray[np.bool_]], batch: Batch) -> HitMeter:
    return HitMeter([find(batch)])


def _agrees(name: str, output: str, batch: Batch) -> NDArray[np.bool_]:
    """Whether the model and the reference give the same class, for each sample."""
    wanted = _scores(batch.reference[output], batch.rows, name, output)
    return within(_scores(batch.outputs[output], batch.rows, name, output), wanted.argmax(axis=1), 1)


def _in_top(name: str, output: str, k: int, batch: Batch) -> NDArray[np.bool_]:
    """Whether the label is among the k largest scores, for each sample."""
    scores = _scores(batch.outputs[output], batch.rows, name, output)
    count = scores.shape[1]
    if k >= count:
        raise CalibrationDataError(
            f"metric '{name}' is always right with {count} classes; leave it out or take a smaller number"
        )
    return within(scores, _class_indices(name, batch, count), k)


def _check_labels(name: str, output: str, batch: Batch, form: BatchForm) -> None:
    if form.is_class_scores(output):  # what is wrong with others is said where they are measured
        _class_indices(name, batch, form.outputs[output].shape[1])


def _class_indices(name: str, batch: Batch, count: int) -> NDArray[np.int64]:
    """The labels of a batch, as classes of a model that has so many."""
    labels = batch.labels
    if labels is None:
        raise CalibrationDataError(
            f"metric '{name}' needs labels and the data has none; give them, or leave it out"
        )
    if not is_class_indices(labels):
        raise CalibrationDataError(
            f"metric '{name}' needs one class index per sample as label, but the labels are {labels.dtype} "
            f"of shape {shape_text(labels.shape)}; give class indices, or leave it out"
        )
    check_classes(labels, count)
    return labels


def check_classes(labels: NDArray[np.integer[Any]], count: int) -> None:
    """Refuses labels that are not classes of the model.

    Args:
        labels: One class index per sample, shape (samples,).
        count: How many classes the model has.

    Raises:
        CalibrationDataError: A label is no class of the model.
    """
    bad = labels[(labels < 0) | (labels >= count)]
    if len(bad):
        raise CalibrationDataError(
            f"label {bad[0]} is not one of the model's {count} classes (0 to {count - 1}); check the labels"
        )


def within(scores: NDArray[Any], classes: NDArray[np.integer[Any]], k: int) -> NDArray[np.bool_]:
    """Whether fewer than k classes rank before the given one.

    Args:
        scores: Scores, shape (samples, classes). Of equal scores the lower index ranks first.
        classes: One class index per sample, shape (samples,).
        k: The number of ranks that count.

    Returns:
        bool, shape (samples,); False where the score of the class is not a number.
    """
    own = np.take_along_axis(scores, classes[:, None], axis=1)
    earlier = np.arange(scores.shape[1]) < classes[:, None]
    before = (scores > own) | ((scores == own) & earlier)
    hits: NDArray[np.bool_] = (before.sum(axis=1) < k) & (own[:, 0] == own[:, 0])  # a NaN is never right
    return hits


def _scores(scores: NDArray[Any], rows: int, metric: str, output: str) -> NDArray[Any]:
    if not BatchForm({output: ArrayForm(scores.dtype, scores.shape)}, None, rows).is_class_scores(output):
        raise CalibrationDataError(
            f"metric '{metric}' needs one row of class scores per sample, but the output '{output}' is "
            f"{scores.dtype} of shape {scores.shape} for {rows} samples; leave it out"
        )
    return scores
