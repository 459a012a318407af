"""Metrics of classifiers, whose output is one row of class scores per sample.

Metrics of the class at each position: segmentation of images, and other maps of classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.data.feeds import Array, Flags, Floats, Indices, Ints
from calibrators.data.inputs import shape_text
from calibrators.data.sources.arrays import is_class_indices
from calibrators.errors import Argument, CalibrationDataError, advice, counted, enumerated
from trtint8.validation.batch import ArrayForm, Batch, BatchForm, DeclaredShape, by_sample
from trtint8.validation.meters import PERCENT, Answers, CountedSumsMeter, HitMeter, Measurand, SumsMeter
from trtint8.validation.significance import SameAnswer, compare_hits

#: The metric of all outputs of classes at once.
AGREEMENT_ALL = "agreement_all"


def agreement(name: str, output: str) -> Measurand:
    """The share of samples where the model and the reference give the same class.

    Args:
        name: The metric's name in results.
        output: The output that has the class scores.
    """
    return _agreement(name, (output,), output=output)


def agreement_all(form: BatchForm) -> Measurand:
    """The share of samples where the model and the reference give the same class in every output of classes.

    Args:
        form: The form of a batch.

    Raises:
        CalibrationDataError: No output is taken for class scores.
    """
    if not form.class_outputs:
        raise CalibrationDataError(
            f"metric '{AGREEMENT_ALL}' needs outputs of class scores, and none is taken for such; name the "
            "output as in agreement:OUTPUT"
        )
    titles = enumerated([f"'{name}'" for name in form.class_outputs])
    title = f"same class as FP32 in all of {titles}"
    return _agreement(AGREEMENT_ALL, form.class_outputs, title=title)


def _agreement(name: str, outputs: Sequence[str], *, title: str = "", output: str = "") -> Measurand:
    def classes(batch: Batch) -> Ints:
        scores = [_scores(batch.reference[one], batch.rows, name, one) for one in outputs]
        return np.stack([one.argmax(axis=1) for one in scores], axis=1)

    def agree(batch: Batch) -> Flags:
        hits: Flags = np.all(
            [
                within(_scores(batch.outputs[one], batch.rows, name, one), wanted, 1)
                for one, wanted in zip(outputs, classes(batch).T, strict=True)
            ],
            axis=0,
        )
        return hits

    measurand = _of_hits(name, agree, classes, 1)
    return replace(measurand, relative=True, perfect=1.0, title=title, output=output)


def top_k(name: str, output: str, k: int) -> Measurand:
    """The share of samples whose label is among the k largest scores.

    Args:
        name: The metric's name in results.
        output: The output that has the class scores.
        k: How many scores count.
    """

    def in_top(batch: Batch) -> Flags:
        scores = _scores(batch.outputs[output], batch.rows, name, output)
        count = scores.shape[1]
        if k >= count:
            raise CalibrationDataError(
                f"metric '{name}' is always right with {count} classes; leave it out or take a smaller number"
            )
        return within(scores, _class_indices(name, batch, count), k)

    def check_labels(batch: Batch, form: BatchForm) -> None:
        if form.is_class_scores(output):  # what is wrong with others is said where they are measured
            _class_indices(name, batch, form.outputs[output].shape[1])

    def labels(batch: Batch) -> Ints:
        assert batch.labels is not None
        return batch.labels.astype(np.int64)[:, None]

    return replace(_of_hits(name, in_top, labels, k), check_labels=check_labels)


def _of_hits(
    name: str,
    find: Callable[[Batch], Flags],
    classes: Callable[[Batch], Ints],
    most: int,
) -> Measurand:
    """A share of samples.

    Args:
        name: The metric's name in results.
        find: Whether a model is right on each sample of a batch.
        classes: The right classes, int64 of shape (samples, outputs).
        most: How many classes a network may name for a sample.
    """

    def same_for_all(parts: Sequence[Sequence[Array]], _reference: float, different: Indices) -> SameAnswer:
        """How often the most frequent classes are right, and whether the reference is right more often."""
        wanted, hits = (np.concatenate(arrays)[different] for arrays in zip(*parts, strict=True))
        _, kinds, counts = np.unique(wanted, axis=0, return_inverse=True, return_counts=True)
        frequent = np.argsort(-counts, kind="stable")[:most]
        same: Flags = np.isin(kinds.ravel(), frequent)
        found = compare_hits(hits, same, "")
        return SameAnswer(float(same.mean()), found.significant and found.difference > 0)

    answers = Answers(lambda batch: (classes(batch), find(batch)), same_for_all)
    return Measurand(
        name, False, HitMeter, lambda batch: HitMeter([find(batch)]), unit=PERCENT, answers=answers
    )


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
                f"the data has {counted(len(folders), 'sub-folder')}, classes in the order of their names, "
                f"from '{folders[0]}' to '{folders[-1]}', and output '{name}' has {output.shape[1]} classes; "
                + advice(
                    f"without labels, judge by {Argument('metrics', 'agreement')}",
                    f"without labels, judge by {Argument('metric', 'agreement')}",
                    "give each class a sub-folder, an empty one where it has no images, and nothing else one",
                )
            )


def _class_indices(name: str, batch: Batch, count: int) -> Ints:
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


def within(scores: Array, classes: NDArray[np.integer[Any]], k: int) -> Flags:
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
    hits: Flags = (before.sum(axis=1) < k) & (own[:, 0] == own[:, 0])  # a NaN is never right
    return hits


def _scores(scores: Array, rows: int, metric: str, output: str) -> Array:
    if not BatchForm({output: ArrayForm(scores.dtype, scores.shape)}, None, rows).is_class_scores(output):
        raise CalibrationDataError(
            f"metric '{metric}' needs one row of class scores per sample, but the output '{output}' is "
            f"{scores.dtype} of shape {scores.shape} for {rows} samples; leave it out, or name another "
            f"output as in {metric.partition(':')[0]}:OUTPUT"
        )
    return scores


def pixels(name: str, output: str, form: BatchForm) -> Measurand:
    """The share of positions with the right class; see :func:`class_map`.

    The right class is the label's where the labels are one map of classes per sample, else the reference's.

    Args:
        name: The metric's name in results.
        output: The output.
        form: The form of a batch.

    Raises:
        CalibrationDataError: The output has no classes of positions, or the maps have another shape.
    """
    titles = (f"positions of '{output}' with the label's class", f"positions of '{output}' with FP32's class")
    return _of_maps(name, output, form, share, _count_hits, titles, _most_frequent)


def mean_iou(name: str, output: str, form: BatchForm) -> Measurand:
    """The mean over classes of the intersection over union of the positions that have this class.

    Classes that neither side has do not count. The other side is the labels where these are one map of
    classes per sample, else the reference's classes; see :func:`class_map`.

    Args:
        name: The metric's name in results.
        output: The output.
        form: The form of a batch.

    Raises:
        CalibrationDataError: The output has no classes of positions, or the maps have another shape.
    """
    titles = (f"mean IoU of '{output}' with the labels", f"mean IoU of '{output}' with FP32")
    return _of_maps(name, output, form, mean_overlap, _count_overlaps, titles, _overlap_of_most_frequent)


def _of_maps(
    name: str,
    output: str,
    form: BatchForm,
    value: Callable[[Floats], Floats],
    count: Callable[[_Maps], ArrayLike],
    titles: tuple[str, str],
    of_one_class: Callable[[Ints], float],
) -> Measurand:
    """A metric of maps of classes.

    Args:
        name: The metric's name in results.
        output: The output.
        form: The form of a batch.
        value: The metric's value from totals.
        count: The sums of each row of the maps.
        titles: The titles with labels and without.
        of_one_class: The metric of one class everywhere, by how many positions have each class.
    """
    with_labels, own = _has_label_maps(name, output, form), form.outputs[output]
    start: Callable[[], SumsMeter] = partial(SumsMeter, value)
    if with_labels:
        start = partial(CountedSumsMeter, value, 1, _no_position(name, own))

    def maps(batch: Batch) -> _Maps:
        return _maps(output, own.declared, with_labels, batch)

    def positions(batch: Batch) -> Ints:
        """How many positions have each class, shape (classes,)."""
        found = maps(batch)
        return np.bincount(found.wanted[found.valid])

    def same_for_all(parts: Sequence[Ints], reference: float, _different: Indices) -> SameAnswer:
        """The metric where the most frequent class is everywhere."""
        most = max(map(len, parts))
        same = of_one_class(np.sum([np.pad(part, (0, most - len(part))) for part in parts], axis=0))
        return SameAnswer(same, reference > same)

    return Measurand(
        name,
        not with_labels,
        start,
        lambda batch: SumsMeter(value, [np.asarray(count(maps(batch)), np.float64)], batch.rows),
        title=titles[0] if with_labels else titles[1],
        unit=PERCENT,
        perfect=None if with_labels else 1.0,
        output=output,
        answers=Answers(positions, same_for_all),
    )


def _most_frequent(counts: Ints) -> float:
    return float(counts.max(initial=0)) / max(1, int(counts.sum()))


def _overlap_of_most_frequent(counts: Ints) -> float:
    """The mean over classes: the most frequent one is in the union everywhere, the others are never found."""
    return _most_frequent(counts) / max(1, int(np.count_nonzero(counts)))


def _no_position(name: str, output: ArrayForm) -> str:
    """What is wrong where labels give no position of an output a class, as a sentence."""
    classes = f"a class from 0 on, other than {_VOID}"
    if output.is_float:
        last = output.shape[class_axis(output.shape, output.declared)] - 1
        classes = f"one of the output's classes (0 to {last})"
    return (
        f"metric '{name}' has nothing to judge by, as the labels give no position {classes}; check the labels"
    )


def class_axis(shape: tuple[int, ...], declared: DeclaredShape = None) -> int:
    """The axis of class scores in an output.

    Args:
        shape: The output's shape, of rank 3 or more.
        declared: The shape that the model declares.

    Returns:
        Axis 1 or the last axis, where the model fixes its length and no other besides the number of samples.
        Else axis 1, as in (N, classes, height, width); or the last axis, where axes 1 and 2 are equal and the
        last is not, or where the last is the shortest and axis 2 is not equal to it.
    """
    last = len(shape) - 1
    if declared is not None and len(declared) == len(shape):
        fixed = [axis for axis in range(1, len(shape)) if declared[axis] is not None]
        if fixed in ([1], [last]):
            return fixed[0]
    if last == 3 and shape[2] == shape[3]:
        return 1
    if last == 3 and shape[1] == shape[2]:
        return last
    return last if last < 4 and shape[last] < min(shape[1:last]) else 1


def class_map(output: Array, declared: DeclaredShape = None) -> Ints:
    """The class of each position.

    Args:
        output: Class scores, of a floating-point type and of rank 3 or more, with their axis as in
            :func:`class_axis`; or class indices, of an integer type. An axis 1 of length 1 is left out where
            the rank is 4.
        declared: The shape that the model declares.

    Returns:
        int64, without the axis of the scores; -1 where the largest score is not a number.
    """
    if not np.issubdtype(output.dtype, np.floating):
        return _without_channel(output).astype(np.int64)
    axis = class_axis(output.shape, declared)
    classes = output.argmax(axis=axis)
    largest = np.take_along_axis(output, np.expand_dims(classes, axis), axis=axis).squeeze(axis)
    return np.where(np.isnan(largest), -1, classes)


def share(totals: Floats) -> Floats:
    """A share of a number of things.

    Args:
        totals: How many have the property, and how many there are, float64 of shape (..., 2).

    Returns:
        The share, shape (...); 1 where there are none.
    """
    some, all_of_them = totals[..., 0], totals[..., 1]
    return np.where(all_of_them == 0, 1.0, some / np.where(all_of_them == 0, 1.0, all_of_them))


def mean_overlap(totals: Floats) -> Floats:
    """The mean over classes of intersection over union.

    Args:
        totals: The sizes of intersection and union of each class in turn, float64 of shape (..., 2 classes).

    Returns:
        The mean, shape (...), over classes whose union is not empty; 1 where there is none.
    """
    intersections, unions = totals[..., ::2], totals[..., 1::2]
    present = unions > 0
    overlaps = np.where(present, intersections / np.where(present, unions, 1.0), 0.0).sum(axis=-1)
    count = present.sum(axis=-1)
    return np.where(count == 0, 1.0, overlaps / np.where(count == 0, 1, count))


def overlap_sums(wanted: Ints, found: Ints, classes: int) -> Floats:
    """The sizes of intersection and union of each class.

    Args:
        wanted: The right class of each position, shape (positions,), in [0, classes).
        found: The model's class of each position, of the same shape; -1 for none.
        classes: Number of classes.

    Returns:
        Intersection and union of each class in turn, float64 of shape (2 classes,).
    """
    intersections = np.bincount(wanted[wanted == found], minlength=classes)
    sizes = np.bincount(wanted, minlength=classes) + np.bincount(found[found >= 0], minlength=classes)
    return np.stack([intersections, sizes - intersections], axis=1).astype(np.float64).ravel()


#: The label of positions without a class, where the number of classes is not known. For a network it is a
#: class like others.
_VOID = 255


class _Maps(NamedTuple):
    """Classes of positions: one row per sample, or one row where axis 0 is not the samples.

    Attributes:
        wanted: The right classes, int64 of shape (rows, positions).
        found: The model's classes, of the same shape; -1 where a score is not a number.
        valid: Whether a position counts, bool of the same shape.
        classes: Number of classes.
    """

    wanted: Ints
    found: Ints
    valid: Flags
    classes: int


def _maps(output: str, declared: DeclaredShape, with_labels: bool, batch: Batch) -> _Maps:
    scores = batch.outputs[output]
    found = by_sample(class_map(scores, declared), batch.rows)
    if with_labels and batch.labels is not None:
        wanted = by_sample(_without_channel(batch.labels).astype(np.int64), batch.rows)
    else:
        wanted = by_sample(class_map(batch.reference[output], declared), batch.rows)
    # Labels often have a number beyond the classes, mostly 255, where nobody knows the class.
    if np.issubdtype(scores.dtype, np.floating):
        classes = scores.shape[class_axis(scores.shape, declared)]
        valid = (wanted >= 0) & (wanted < classes)
    else:
        valid = (wanted >= 0) & (wanted != _VOID) if with_labels else wanted >= 0
        classes = int(max(wanted[valid].max(initial=0), found[valid].max(initial=0))) + 1
    return _Maps(wanted, found, valid, classes)


def _count_hits(maps: _Maps) -> ArrayLike:
    hits = (maps.wanted == maps.found) & maps.valid
    return np.stack([hits.sum(axis=1), maps.valid.sum(axis=1)], axis=1)


def _count_overlaps(maps: _Maps) -> ArrayLike:
    return [
        overlap_sums(wanted[valid], found[valid], maps.classes)
        for wanted, found, valid in zip(maps.wanted, maps.found, maps.valid, strict=True)
    ]


def _has_label_maps(name: str, output: str, form: BatchForm) -> bool:
    """Whether the labels are maps of classes that the output can be compared with.

    Raises:
        CalibrationDataError: The output has no classes of positions, or the maps have another shape.
    """
    own, labels = form.outputs[output], form.labels
    shape = _map_shape(own)
    if shape is None:
        raise CalibrationDataError(
            f"metric '{name}' needs class scores of each position, of rank 3 or more and with two classes or "
            f"more, or class indices, but output '{output}' is {own}; leave it out, or name another output "
            f"as in {name.partition(':')[0]}:OUTPUT"
        )
    if labels is None or form.has_class_indices:
        return False
    maps = _without_channel_shape(labels.shape)
    if labels.is_float and maps == shape:
        raise CalibrationDataError(
            f"metric '{name}' compares with maps of classes, which are integers, and the labels have the "
            f"shape of such maps but are {labels.dtype}; give integers, or no labels to compare with the "
            "float model"
        )
    if not labels.is_integer:
        return False
    if maps != shape:
        raise CalibrationDataError(
            f"metric '{name}' cannot compare labels of shape {shape_text(labels.shape)} with the classes of "
            f"output '{output}', of shape {shape_text(shape)}; give labels of this shape, or none to compare "
            "with the float model"
        )
    return True


def _map_shape(form: ArrayForm) -> tuple[int, ...] | None:
    """The shape of the map of classes of an output; None where it has none."""
    if form.is_integer:
        return _without_channel_shape(form.shape) if len(form.shape) > 1 else None
    if not form.is_float or len(form.shape) < 3:
        return None
    axis = class_axis(form.shape, form.declared)
    return form.shape[:axis] + form.shape[axis + 1 :] if form.shape[axis] > 1 else None


def _without_channel_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:]) if len(shape) == 4 and shape[1] == 1 else shape


def _without_channel(array: Array) -> Array:
    return array.reshape(_without_channel_shape(array.shape))
