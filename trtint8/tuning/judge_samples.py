"""Whether the samples to judge by can show what the search has to keep, before it begins."""

from __future__ import annotations

from calibrators.data.array_files import first_labels
from calibrators.data.batches import Batches
from calibrators.data.feeds import batch_rows
from calibrators.data.preflight import check_feed
from calibrators.errors import CalibrationDataError
from trtint8.models.model import Model
from trtint8.tuning.first_form import first_form
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.budget import Goal
from trtint8.validation.class_scores import rank_in
from trtint8.validation.metrics import measurands, usual_metrics


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
    judged = first_form(model, Batches.of_shard(first, judge.source))
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
        CalibrationDataError: A sample does not fit the model, or a label is one that the metrics which the
            result is judged by cannot take, such as a class that the model does not have.
    """
    metrics = usual_metrics(form).names if goal.chosen else [goal.metric]
    found, batches = measurands(metrics, form), 0
    for batch in judge.labelled():
        check_feed(batch.feed, model.inputs, batch.first, judge.name_of)
        rows = batch_rows(batch.feed) or 1
        labels = first_labels(batch.labels, rows, batch.first)
        for one in found:
            one.check_labels(Batch(batch.feed, {}, {}, labels, rows, batch.first, judge.name_of), form)
        batches += 1
    return batches
