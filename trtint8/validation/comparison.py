"""Compares models with the reference on a data set: batch by batch, then over all batches.

The result of each batch is kept apart until it is merged, in the order of the data. So the comparison does
not depend on where, or when, a batch was run. The reference opens, and runs on the first batches, while other
models are read, checked and opened. Comparisons that do not say what they seem to say are warned of.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.data.batches import Batches, LabelledFeed
from calibrators.data.feeds import Array, FeedDict, Indices, NamedArrays, batch_rows, is_float
from calibrators.data.inputs import InputSpec
from calibrators.data.samples import check_feed, numbered
from calibrators.data.sources.arrays import first_labels
from calibrators.errors import Argument, CalibrationDataError, ModelError, TrtInt8Error
from calibrators.host.work import results_here
from calibrators.progress import VALIDATING
from trtint8.arithmetic.simulation import InIntegers
from trtint8.models.outputs.joined import split_outputs
from trtint8.validation.accuracy import (
    REFERENCE,
    Accuracy,
    Measure,
    Runner,
    SeenSamples,
    ValidatedModel,
)
from trtint8.validation.batch import Batch, BatchForm, by_sample, count_rows
from trtint8.validation.budget import Goal, Score, judged, score_of
from trtint8.validation.class_scores import check_class_folders
from trtint8.validation.detection.decoding import may_hold_rows
from trtint8.validation.detection.layouts import SeenLayouts
from trtint8.validation.fidelity import FidelityMeter, PicksMeter, figure_of
from trtint8.validation.meters import Measurand
from trtint8.validation.metrics import (
    Choice,
    Metric,
    check_metrics,
    layout_note,
    measurands,
    metric_name,
    reads_layouts,
    usual_metrics,
)
from trtint8.validation.output_shapes import (
    DeclaredOutputs,
    check_comparable,
    differing_outputs,
    outputs_without_samples,
)
from trtint8.validation.significance import Comparison, Interval, SameAnswer, Share, as_number
from trtint8.validation.tensors import TensorMeter


def compare_models(
    models: OpenModels,
    batches: Batches,
    goal_of: GoalOf | None = None,
    *,
    decided: Score | None = None,
    description: str = VALIDATING,
    progress: bool = True,
) -> Accuracy:
    """Runs all models on every batch and compares their outputs with the reference's.

    Args:
        models: The models and the reference.
        batches: The data, with labels where there are some.
        goal_of: See :func:`merge_results`.
        decided: See :meth:`trtint8.validation.budget.Goal.judge`.
        description: Text of the progress bar.
        progress: Show a progress bar on a terminal.

    Returns:
        The comparison of the first model, with those of the others in ``also``.

    Raises:
        CalibrationDataError: The data does not fit the model, a label is not one of its classes, or a metric
            or the budget does not apply to them.
        ModelError: A model's outputs differ from the reference's in shape.
    """
    with models.results(batches, description=description, progress=progress) as results:
        return merge_results(results, models.metrics, batches, goal_of, decided)


def merge_results(
    results: Iterable[BatchResult],
    metrics: Sequence[Metric] | None,
    batches: Batches,
    goal_of: GoalOf | None = None,
    decided: Score | None = None,
) -> Accuracy:
    """Merges the results of batches.

    Args:
        results: The result of each batch, in the order of the data.
        metrics: The metrics that were asked for; None where the usual ones were measured.
        batches: The data, which knows its classes and which samples belong together.
        goal_of: Gives what the samples are to keep, by one of the metrics; None for nothing.
        decided: See :meth:`trtint8.validation.budget.Goal.judge`.

    Returns:
        The comparison over all batches.

    Raises:
        CalibrationDataError: There is no batch, a metric does not apply to one, there are more or fewer
            folders than classes, or the budget does not apply to the metric.
        ModelError: A model was not run in the same way on all batches.

    Warns:
        UserWarning: The samples do not show what INT8 costs, or cannot judge the budget.
    """
    totals = _totals(results, metrics, batches, goal_of)
    goal = totals.goal
    return judged(totals.accuracy(), goal, totals.interval(goal.metric) if goal else None, decided)


def score_results(results: Iterable[BatchResult], metric: Metric, batches: Batches) -> Score:
    """Returns the score of the first model by one metric, with its interval.

    Args:
        results: The result of each batch, in the order of the data, for this metric and ``sqnr``.
        metric: The metric.
        batches: The data.

    Raises:
        CalibrationDataError: There is no batch, or the metric does not apply to one.

    Warns:
        UserWarning: The samples do not show what INT8 costs.
    """
    totals = _totals(results, [metric, "sqnr"], batches)
    return score_of(judged(totals.accuracy(), None), metric, totals.interval(metric))


def _totals(
    results: Iterable[BatchResult],
    metrics: Sequence[Metric] | None,
    batches: Batches,
    goal_of: GoalOf | None = None,
) -> _Totals:
    """What all batches have together; a goal that does not apply is refused after the first one."""
    totals: _Totals | None = None
    for result in results:
        if totals is None:
            check_class_folders(batches.class_names, result.form, [str(name) for name in result.reference])
            goal = goal_of(result.form) if goal_of else None
            totals = _Totals(result, metrics, batches.groups, goal)
        totals.add(result)
    if totals is None:
        raise CalibrationDataError("the data has no samples; pass at least one")
    return totals


#: Gives what samples are to keep, for the form of a batch.
GoalOf: TypeAlias = Callable[[BatchForm], Goal]

#: What was measured on one model: the meter of each metric, by the metric's name, and those of outputs, of
#: tensors inside and of picks, by their classes.
Meters: TypeAlias = Mapping[str | type, Any]


def _merge(meters: Meters, later: Meters) -> None:
    """Adds what was measured on the same model in a later batch.

    Raises:
        CalibrationDataError: A metric applies to the earlier batches but not to the later one.
    """
    for name, meter in meters.items():
        if name not in later:
            raise CalibrationDataError(
                f"metric '{name}' applies to the first batch but not to all, as the outputs or the labels "
                "change in shape or type; say which metrics to measure"
            )
        meter.merge(later[name])


@dataclass(frozen=True)
class _Shown:
    """What the reference's outputs show of the samples of a batch.

    Attributes:
        digests: What tells the outputs of a sample from those of others: uint32, shape (samples,).
        broken: Names of outputs that hold NaN, to the number of samples for which they do.
        answers: What the metrics keep of the right answers, by the metric's name.
    """

    digests: NDArray[np.uint32]
    broken: Mapping[str, int]
    answers: Mapping[str, Any]

    @classmethod
    def of(cls, batch: Batch, asked: Sequence[Measurand]) -> _Shown:
        """What a batch of the reference shows.

        Args:
            batch: The reference's outputs.
            asked: The metrics.
        """
        digests, broken = [0] * batch.rows, {}
        for name, output in batch.reference.items():
            rows = by_sample(output, batch.rows)
            shape = f"{output.dtype} {output.shape[1:]} {rows.shape[1]}".encode()
            own = [zlib.crc32(row.tobytes(), zlib.crc32(shape)) for row in rows]
            # What has no row for each sample is taken as a whole.
            own = own if len(own) == batch.rows else own * batch.rows
            digests = [
                zlib.crc32(one.to_bytes(4, "little"), digest)
                for one, digest in zip(own, digests, strict=True)
            ]
            if is_float(output.dtype) and (holding := np.isnan(rows).any(axis=1).sum()):
                broken[name] = int(holding) if len(rows) == batch.rows else batch.rows
        answers = {one.name: one.answers.of(batch) for one in asked if one.answers}
        return cls(np.array(digests, np.uint32), broken, answers)


@dataclass(frozen=True)
class BatchResult:
    """What was measured on one batch.

    Attributes:
        descriptions: The name of each model to how it was run, in words.
        choice: The usual metrics that apply; None where metrics were asked for.
        form: The form of the batch.
        samples: Number of samples in the batch.
        reference: What was measured on the reference alone.
        models: What was measured on each model, in the order of ``descriptions``.
        in_integers: What the first model computed in integers on this batch, and on others before it; None
            where it is not run in an arithmetic.
        shown: What the reference's outputs show of the samples; None where that is known already.
    """

    descriptions: Mapping[str, str]
    choice: Choice | None
    form: BatchForm
    samples: int
    reference: Meters
    models: tuple[Meters, ...]
    in_integers: InIntegers | None = None
    shown: _Shown | None = None


class OpenModels:
    """Models and their reference, open and ready to run.

    Args:
        models: The validated models, with different names.
        reference: Runs the FP32 model, which has the same outputs; the tensors that outputs are picked from
            come behind them, where ``declared`` names some.
        inputs: The inputs of all models.
        metrics: What to measure. None measures the usual metrics that apply to the model and the data.
        declared: What the reference declares of its outputs.
        shows: Whether it is looked for what the reference's outputs show of the samples.

    Attributes:
        metrics: The metrics that were asked for, or None.

    Raises:
        CalibrationDataError: A metric is unknown, or is no metric.
    """

    def __init__(
        self,
        models: Sequence[ValidatedModel],
        reference: Runner,
        inputs: Sequence[InputSpec],
        metrics: Sequence[Metric] | None,
        declared: DeclaredOutputs,
        *,
        shows: bool = True,
    ) -> None:
        check_metrics(metrics or ())  # before the run
        self.metrics = metrics
        self._models, self._reference, self._shows = tuple(models), reference, shows
        self._inputs, self._declared = tuple(inputs), declared
        self._without_samples = outputs_without_samples(self._declared.shapes, self._inputs)
        #: The form of the first batch: what its values say of outputs, those of another may contradict.
        self._first: BatchForm | None = None
        self._layouts = SeenLayouts()

    def results(
        self, batches: Batches, *, description: str = VALIDATING, progress: bool
    ) -> contextlib.AbstractContextManager[Iterator[BatchResult]]:
        """Runs all models on every batch in this process: see :func:`calibrators.host.work.results_here`."""
        return results_here(self.run, batches, description=description, progress=progress)

    @property
    def half(self) -> dict[str, tuple[str, ...]]:
        """Names of models to the tensors that they hold in FP16, where ONNX Runtime runs them on a CPU."""
        return {model.name: model.half for model in self._models if model.half}

    def look(self, batches: Iterable[LabelledFeed]) -> None:
        """Finds how outputs hold detections by several batches, where that matters.

        Without it, the first batch that has detections decides.

        Args:
            batches: The first batches of the data. What is wrong with them is said where they are measured.
        """
        seen = []
        with contextlib.suppress(TrtInt8Error):
            for batch in batches:
                if not reads_layouts(self.metrics, batch.labels, self._declared.picked):
                    return
                check_feed(batch.feed, self._inputs, batch.first)
                outputs, _ = self._by_name(self._reference(batch.feed), self._declared.further)
                # Copied, because what a session returns keeps all of its memory; others may be large.
                rows = {name: array.copy() for name, array in outputs.items() if may_hold_rows(array)}
                if not rows:
                    return
                seen.append(rows)
        if seen:
            self._layouts.look(seen)

    def run(
        self,
        feed: FeedDict,
        labels: Array | None,
        first: int,
        name_of: Callable[[int], str] = numbered,
    ) -> BatchResult:
        """Runs all models on a batch and measures their outputs.

        Args:
            feed: The batch.
            labels: Labels from the batch's first sample on, or None.
            first: Number of samples before this batch, for messages.
            name_of: Returns the name of a sample in messages, by its number in the order of iteration.

        Returns:
            What was measured.

        Raises:
            CalibrationDataError: The batch does not fit the model, a label is not one of its classes, or a
                metric does not apply to them.
            ModelError: A model's outputs differ from the reference's in shape.
        """
        check_feed(feed, self._inputs, first, name_of)
        declared = self._declared
        wanted, all_wanted = self._by_name(self._reference(feed), declared.further)
        samples, rows = batch_rows(feed), count_rows(feed, wanted)
        own_labels = first_labels(labels, rows, first)
        form = declared.form_of(wanted, own_labels, rows, self._without_samples)
        self._first = self._first or form
        form = self._layouts.applied_to(form.read_like(self._first))
        choice = usual_metrics(form) if self.metrics is None else None
        metrics = _metrics(self.metrics, choice)
        asked = measurands(metrics, form)
        figures = [figure.name for figure in map(figure_of, metrics) if figure]
        batch = Batch(feed, wanted, wanted, own_labels, rows, first, name_of)
        models = []
        for model in self._models:
            got, all_got = self._by_name(model.run(feed), model.further)
            check_comparable(asked, differing_outputs(got, wanted, declared.shapes), got)
            meters: dict[str | type, Any] = {}
            if figures:
                fidelity = FidelityMeter(declared.parts, figures)
                fidelity.add(self._split(all_got), self._split(all_wanted), rows)
                picks = PicksMeter(declared.shown)
                picks.add(all_got, all_wanted, rows)
                meters |= {FidelityMeter: fidelity, PicksMeter: picks}
            if declared.inside:
                tensors = TensorMeter(declared.inside, model.inside, declared.absent, model.absent)
                tensors.add({**feed, **all_got}, {**feed, **all_wanted})
                meters[TensorMeter] = tensors
            seen = replace(batch, outputs=got)
            models.append(meters | {one.name: one.measure(seen) for one in asked})
        tells = self._models[0].in_integers
        return BatchResult(
            {model.name: model.description for model in self._models},
            choice,
            form,
            1 if samples is None else samples,
            {one.name: one.measure(batch) for one in asked if one.on_reference},
            tuple(models),
            tells() if tells else None,
            _Shown.of(batch, asked) if self._shows else None,
        )

    def _by_name(self, arrays: Sequence[Array], further: Sequence[str]) -> tuple[NamedArrays, NamedArrays]:
        """The outputs of a model, and all that it gives."""
        found = dict(zip((*self._declared.shapes, *further), arrays, strict=True))
        return {name: found[name] for name in self._declared.shapes}, found

    def _split(self, outputs: NamedArrays) -> NamedArrays:
        """The parts that a model gives."""
        return split_outputs([part for part in self._declared.parts if part.output in outputs], outputs)


class _Totals:
    """Everything measured on the batches so far."""

    def __init__(
        self,
        first: BatchResult,
        metrics: Sequence[Metric] | None,
        groups: Indices | None,
        goal: Goal | None,
    ) -> None:
        """Starts empty; the first batch only decides which models and metrics there are."""
        self._groups, self.goal = groups, goal
        self._metrics, self._choice = _metrics(metrics, first.choice), first.choice
        self._asked = measurands(self._metrics, first.form)
        self._descriptions, self._samples, self._form = first.descriptions, 0, first.form
        self._reference: Meters = {one.name: one.start() for one in self._asked if one.on_reference}
        self._models: list[Meters] = [
            {one.name: one.start() for one in self._asked}
            | {kind: meter.empty() for kind, meter in meters.items() if isinstance(kind, type)}
            for meters in first.models
        ]
        self._in_integers = first.in_integers
        self._shown: list[_Shown] = []

    def add(self, result: BatchResult) -> None:
        for name, description in result.descriptions.items():
            if description != self._descriptions[name]:
                raise ModelError(
                    f"{name} is {self._descriptions[name]} for one worker and {description} for another; "
                    f"give all workers the same, such as GPUs with {Argument('num_gpus')}"
                )
        if self._choice is None:
            self._check_alike(result)
        self._samples += result.samples
        if result.shown:
            self._shown.append(result.shown)
        # The first batch may have no detections, by which others show how they are read.
        self._form = result.form
        if self._in_integers and result.in_integers:
            self._in_integers = self._in_integers.joined(result.in_integers)
        for total, measured in zip(
            (self._reference, *self._models), (result.reference, *result.models), strict=True
        ):
            _merge(total, measured)

    def _check_alike(self, result: BatchResult) -> None:
        """Refuses a batch on which a metric compares with something else than on the first one."""
        for measurand, other in zip(self._asked, measurands(self._metrics, result.form), strict=True):
            if measurand.title != other.title:
                raise CalibrationDataError(
                    f"metric '{measurand.name}' means '{measurand.title}' for the first batch and "
                    f"'{other.title}' for another; give labels that fit the outputs of all batches"
                )

    def accuracy(self) -> Accuracy:
        """The comparison of the first model, with those of the others in ``also``."""
        reference = {str(name): meter.value() for name, meter in self._reference.items()}
        seen, same_answers = self._seen(reference)
        results = [
            self._of_model(index, description, reference, seen, same_answers)
            for index, description in enumerate(self._descriptions.values())
        ]
        _, *others = self._descriptions
        also = dict(zip(others, results[1:], strict=True))
        return replace(results[0], also=also, in_integers=self._in_integers)

    def interval(self, metric: Metric) -> Interval | None:
        """The 95 % interval of a metric of the first model; None where the samples do not tell."""
        own, figure = self._models[0], figure_of(metric)
        if figure is None:
            found: Interval | None = own[metric_name(metric)].interval(self._groups)
            return found
        # The largest error of all says nothing of how much others differ.
        return None if figure.smaller_is_better else own[FidelityMeter].figure_interval(figure, self._groups)

    def _seen(
        self, reference: Mapping[str, Share | float]
    ) -> tuple[SeenSamples | None, dict[str, SameAnswer]]:
        """What all batches show of the samples, and what a network has that always gives the same answer."""
        if not self._shown:
            return None, {}
        digests = np.concatenate([shown.digests for shown in self._shown])
        _, different, repeats = np.unique(digests, return_index=True, return_counts=True)
        broken: Counter[str] = Counter()
        for shown in self._shown:
            broken.update(shown.broken)
        same_answers = {}
        for one in self._asked:
            if one.answers:
                own = reference.get(one.name, one.perfect)
                assert own is not None
                parts = [shown.answers[one.name] for shown in self._shown]
                same_answers[one.name] = one.answers.same_for_all(parts, as_number(own), different)
        return SeenSamples(len(different), int(repeats.min()), dict(broken)), same_answers

    def _of_model(
        self,
        index: int,
        description: str,
        reference: Mapping[str, Share | float],
        seen: SeenSamples | None,
        same_answers: Mapping[str, SameAnswer],
    ) -> Accuracy:
        """The result of one model."""
        meters = self._models[index]
        measures = {}
        for one in self._asked:
            own = reference.get(one.name)
            perfect = as_number(own) if one.perfect is None else one.perfect
            measures[one.name] = Measure(
                one.name,
                meters[one.name].value(),
                None if one.relative else own,
                self._comparisons(index, one),
                one.title,
                one.unit,
                perfect if one.relative else None,
                same_answers.get(one.name),
            )

        def share(name: str, of: str = "value") -> Share | None:
            value = getattr(measures.get(name), of, None)
            return value if isinstance(value, Share) else None

        reason = self._choice.reason if self._choice else None
        chosen = "; ".join(filter(None, (reason, layout_note(self._metrics, self._form))))
        return Accuracy(
            description,
            self._samples,
            share("top1"),
            share("top5"),
            share("top1", "reference"),
            share("top5", "reference"),
            share("agreement"),
            meters[FidelityMeter].value() if FidelityMeter in meters else (),
            tuple(measures.values()),
            chosen=chosen or None,
            tensors=meters[TensorMeter].value() if TensorMeter in meters else None,
            picks_changed=meters[PicksMeter].value() if PicksMeter in meters else (),
            seen=seen,
        )

    def _comparisons(self, index: int, one: Measurand) -> tuple[Comparison, ...]:
        """Compares a model with FP32; where FP32 has no value, the first model with each of the others."""
        sides = dict(zip(self._descriptions, self._models, strict=True))
        own = sides.pop([*sides][index])
        if not one.relative:
            sides = {REFERENCE: self._reference}
        elif index:
            return ()
        found = (own[one.name].against(side[one.name], name, self._groups) for name, side in sides.items())
        return tuple(filter(None, found))


def _metrics(metrics: Sequence[Metric] | None, choice: Choice | None) -> Sequence[Metric]:
    """The metrics that were asked for, else those that were chosen."""
    if metrics is None:
        return choice.names if choice else ()
    return metrics
