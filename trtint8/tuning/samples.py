"""The samples of tuning: some to tune on, others to validate the result with.

Of those to tune on, some find remedies, and the others decide what is taken.

Before anything long begins, the first batch says what a budget means, and whether the samples can show it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrators.checks import warn_user
from calibrators.data.batches import Batches, labelled_alike
from calibrators.data.feeds import Indices, batch_rows, first_feeds
from calibrators.data.inputs import DataOptions
from calibrators.data.samples import check_feed, numbered
from calibrators.data.sources.arrays import first_labels
from calibrators.errors import Argument, CalibrationDataError, counted
from trtint8.models.model import Model
from trtint8.models.session import open_graph_model
from trtint8.validation.batch import Batch, BatchForm, count_rows
from trtint8.validation.budget import Goal
from trtint8.validation.class_scores import rank_in
from trtint8.validation.metrics import measurands, usual_metrics
from trtint8.validation.output_shapes import DeclaredOutputs, outputs_without_samples


def split(batches: Batches) -> tuple[Batches, Batches]:
    """Splits batches alternately: the first is tuned on, the second is held out, and so on.

    Samples that are sorted in any way, such as by class, should be shuffled before. Groups of samples are
    split as a whole.

    Args:
        batches: The data, which must be iterable more than once.

    Returns:
        The batches to tune on, and the held-out batches.

    Raises:
        CalibrationDataError: There is only one batch, or one group, or the data has labels but no batch size
            to divide them by.
    """
    if batches.groups is not None:
        if parts := _by_groups(batches, batches.groups):
            return parts
        raise CalibrationDataError(
            f"all samples are of one group by {Argument('groups')}, which cannot be both tuned on and judged "
            "by; give samples of other groups, or other samples to judge by"
        )
    if batches.labels is not None and batches.batch_size is None:
        raise CalibrationDataError(f"labelled data needs a {Argument('batch_size')} to be split; give one")
    if batches.num_samples == 1:
        raise CalibrationDataError(
            "the data has a single sample, which cannot be both tuned on and judged by; give more samples, "
            "or other samples to judge by"
        )
    if batches.num_samples is not None and batches.num_samples <= (batches.batch_size or 0):
        raise CalibrationDataError(
            f"the data's {batches.num_samples} samples are one batch, which cannot be split into samples to "
            f"tune on and samples to judge by; give more samples, a smaller {Argument('batch_size')}, or "
            "other samples to judge by"
        )
    return _every_other(batches, 0), _every_other(batches, 1)


def smaller_batch_size(batches: Batches, options: DataOptions, parts: int) -> int | None:
    """The batch size with which data can be split that has too few batches by default.

    Args:
        batches: The data as it was opened.
        options: The options that it was opened with.
        parts: How many batches there have to be at least.

    Returns:
        The size of so many batches that share the samples; None where the data has as many, has a single
        sample, or has a batch size that was asked for.
    """
    samples, size = batches.num_samples, batches.batch_size
    if options.batch_size is not None or samples is None or size is None or samples < 2:
        return None
    fitting = -(-samples // parts)
    return fitting if fitting < size else None


#: Of fewer samples to tune on, all find remedies and decide: one odd sample among three would decide alone.
_FEWEST_DIVIDED = 8


def divide(batches: Batches) -> tuple[Batches, Batches]:
    """Divides the samples to tune on alternately by batches, or by whole groups.

    What was found with some samples fits them better than others, so others decide whether it is taken.

    Args:
        batches: The samples to tune on, which must be iterable more than once.

    Returns:
        The samples that remedies are found with, and those that decide; all of them for both where there are
        too few.

    Warns:
        UserWarning: There are too few samples.
    """
    samples, size = batches.num_samples, batches.batch_size
    unlabelled = batches.labels is None or size is not None
    enough = samples is None or samples >= _FEWEST_DIVIDED
    if batches.groups is not None:
        if enough and (parts := _by_groups(batches, batches.groups)):
            return parts
    elif unlabelled and enough and _are_several(batches):
        return _every_other(batches, 0), _every_other(batches, 1)
    have = f"{counted(samples, 'sample')} to tune on" if samples is not None else "the samples to tune on"
    warn_user(
        f"{have} cannot be divided into some that remedies are found with and others that decide, so that "
        f"what is found may fit these samples better than others; give at least {_FEWEST_DIVIDED} samples, "
        "and two batches or groups"
    )
    return batches, batches


def _by_groups(batches: Batches, groups: Indices) -> tuple[Batches, Batches] | None:
    """Two parts of whole groups with about as many samples; None where all samples are of one group.

    Each group, in the order of the samples, goes to the part that has fewer samples.
    """
    _, first, numbers, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    if len(sizes) == 1:
        return None
    is_second, taken = np.zeros(len(sizes), bool), [0, 0]
    for group in np.argsort(first):
        is_second[group] = taken[1] < taken[0]
        taken[int(is_second[group])] += int(sizes[group])
    chosen = is_second[numbers]
    parts = (batches.source.taken(np.flatnonzero(chosen == part)) for part in (False, True))
    own, other = (replace(batches, source=source) for source in parts)
    return own, other


def _are_several(batches: Batches) -> bool:
    """True if there are two batches or more; they are read only where nothing says how many there are."""
    if batches.num_batches is not None:
        return batches.num_batches > 1
    return sum(1 for _ in itertools.islice(batches.start(), 2)) > 1


def _every_other(batches: Batches, first: int) -> Batches:
    """Every second batch with its labels, from the batch with index ``first`` on."""

    def start() -> Iterator[Any]:
        # One half may have all the labels.
        return itertools.islice(labelled_alike(batches.start(), batches.source), first, None, 2)

    size = batches.batch_size
    count = len(batches.labels) if batches.labels is not None else batches.num_samples
    if size is None or count is None:
        return batches.passing(start, count=None, labels=None, name_of=numbered)
    chosen = np.arange(count)[np.arange(count) // size % 2 == first]
    return batches.passing(start, **batches.source.of_some(chosen))


def head(batches: Batches, samples: int) -> Batches:
    """The first batches, until they hold a given number of samples.

    Args:
        batches: The data.
        samples: The least number of samples; the last batch is not cut.

    Returns:
        The first batches, or all where there are fewer samples.
    """
    return Batches.of_feeds(
        partial(first_feeds, batches, samples), labels=batches.labels, class_names=batches.class_names
    )


def begin_judging(model: Model, goal: Goal, form: BatchForm, judge: Batches) -> tuple[BatchForm, Batches]:
    """Refuses samples to judge by for which the goal means nothing, or not the same as in the search.

    Metrics compare with labels or with FP32, by what the samples have, so samples with labels and others
    without them would be measured differently. The form of the first batch tells; its values do not matter,
    because a metric may have none on a part of the samples.

    Args:
        model: The float model.
        goal: What the search has to keep.
        form: The form of a batch of the samples tuned on.
        judge: The samples to judge by.

    Returns:
        The form of a batch of them, and the same samples for the one pass that has begun, which is the only
        one of a generator.

    Raises:
        CalibrationDataError: There are no samples, the metric does not apply to them, or what it compares
            with is something else.
    """
    first, begun = judge.begun()
    if first is None:
        raise CalibrationDataError("there are no samples to judge by; pass at least one")
    judged = first_form(model, Batches.of_shard(first, judge.source)).read_like(form)
    choice = usual_metrics(judged) if goal.chosen else None
    try:
        found = measurands([goal.metric] if choice is None else choice.names, judged)
    except CalibrationDataError as error:
        raise CalibrationDataError(
            f"the samples to judge by cannot show whether the budget ({goal}) is kept: {error.template}"
        ) from error
    ranked = isinstance(goal.metric, str) and rank_in(goal.metric.partition(":")[0]) is not None
    if ranked and not goal.chosen and not judged.has_class_indices:
        raise CalibrationDataError(
            f"the samples to judge by cannot show whether the budget ({goal}) is kept: metric "
            f"'{goal.metric}' needs one class index per sample as label; give labels, or take another metric"
        )
    titles = {one.name: one.title for one in found}
    reason = choice.reason if choice else str(goal)
    for own in measurands([goal.metric], form):  # none for a metric of single outputs
        if own.name not in titles:
            raise CalibrationDataError(
                f"metric '{own.name}' was chosen for the samples tuned on and does not apply to those to "
                f"judge by ({reason}); give both labels, or neither, or name a metric that applies to both"
            )
        if own.title != titles[own.name]:
            raise CalibrationDataError(
                f"metric '{own.name}' means '{own.title}' for the samples tuned on and '{titles[own.name]}' "
                "for those to judge by; give both labels, or neither"
            )
    return judged, begun


def check_judging(model: Model, goal: Goal, form: BatchForm, judge: Batches) -> int:
    """Reads all samples to judge by, and refuses what would end the work only after the search.

    Args:
        model: The float model.
        goal: What the search has to keep.
        form: The form of a batch of the samples to judge by.
        judge: These samples, which must be iterable more than once.

    Returns:
        How many batches there are.

    Raises:
        CalibrationDataError: A sample does not fit the model, there are too few for the goal, or a label is
            one that the metrics which the result is judged by cannot take, such as a class that the model
            does not have.
    """
    metrics = usual_metrics(form).names if goal.chosen else [goal.metric]
    found, batches, samples = measurands(metrics, form), 0, 0
    for batch in judge.labelled():
        check_feed(batch.feed, model.inputs, batch.first, judge.name_of)
        rows = batch_rows(batch.feed) or 1
        labels = first_labels(batch.labels, rows, batch.first)
        for one in found:
            one.check_labels(Batch(batch.feed, {}, {}, labels, rows, batch.first, judge.name_of), form)
        batches, samples = batches + 1, samples + rows
    if samples:
        goal.check_samples(samples, form)
    return batches


def first_form(model: Model, batches: Batches) -> BatchForm:
    """Runs the float model on the first batch.

    Args:
        model: The float model.
        batches: The data, which must be iterable more than once.

    Returns:
        The form of the batch, with the outputs.

    Raises:
        CalibrationDataError: There is no batch, or it does not fit the model.
    """
    for batch in batches.labelled():
        check_feed(batch.feed, model.inputs, name_of=batches.name_of)
        session = open_graph_model(model.graph_model)
        outputs = dict(zip(session.output_names, session.run(batch.feed), strict=True))
        rows = count_rows(batch.feed, outputs)
        labels = first_labels(batch.labels, rows, 0)
        declared = DeclaredOutputs.of(model.graph_model)
        without_samples = outputs_without_samples(declared.shapes, model.inputs)
        return declared.form_of(outputs, labels, rows, without_samples)
    raise CalibrationDataError("the data has no samples; pass at least one")
