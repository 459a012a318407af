"""Whether the samples to judge by can show what the search has to keep, before it begins."""

from __future__ import annotations

from calibrators.data.batches import Batches
from calibrators.errors import CalibrationDataError
from trtint8.models.model import Model
from trtint8.tuning.candidates import Scorer
from trtint8.validation.batch import BatchForm
from trtint8.validation.budget import Goal
from trtint8.validation.metrics import measurands


def begin_judging(model: Model, goal: Goal, form: BatchForm, judge: Batches) -> Batches:
    """Refuses samples to judge by for which the goal means nothing, or not the same as in the search.

    Metrics compare with labels or with FP32, by what the samples have, so samples with labels and others
    without them would be measured differently. The float model is compared with itself on the first batch.

    Args:
        model: The float model.
        goal: What the search has to keep.
        form: The form of a batch of the samples tuned on.
        judge: The samples to judge by.

    Returns:
        The same samples for the one pass that has begun, which is the only one of a generator.

    Raises:
        CalibrationDataError: There are no samples, the metric does not apply to them, or what it compares
            with is something else.
    """
    first, begun = judge.begun()
    if first is None:
        raise CalibrationDataError("there are no samples to judge by; pass at least one")
    scorer = Scorer(model, Batches.of_shard(first, judge.reader), goal.metric)
    try:
        accuracy = scorer.compare(model.graph_model, None if goal.chosen else [goal.metric])
    except CalibrationDataError as error:
        raise CalibrationDataError(
            f"the samples to judge by cannot show whether the budget ({goal}) is kept: {error}"
        ) from error
    titles = {measure.name: measure.title for measure in accuracy.measures}
    for own in measurands([goal.metric], form):  # none for a metric of single outputs
        if own.name not in titles:
            raise CalibrationDataError(
                f"metric '{own.name}' was chosen for the samples tuned on and does not apply to those to "
                f"judge by ({accuracy.chosen}); give both labels, or neither, or name a metric that applies "
                "to both"
            )
        if own.title != titles[own.name]:
            raise CalibrationDataError(
                f"metric '{own.name}' means '{own.title}' for the samples tuned on and '{titles[own.name]}' "
                "for those to judge by; give both labels, or neither"
            )
    return begun
