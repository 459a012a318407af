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
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.checks import warn_user
from calibrators.data.batches import Batches, LabelledFeed, observed
from calibrators.data.feeds import FeedDict, batch_rows, is_float
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import CalibratedInputs, DataOptions, InputSpec
from calibrators.data.opening import DataSource, open_data
from calibrators.data.samples import DataFingerprint, check_feed, numbered
from calibrators.data.sources.arrays import first_labels
from calibrators.errors import Argument, CalibrationDataError, ModelError, TrtInt8Error
from calibrators.files import is_file
from calibrators.host.session import in_thread
from calibrators.host.work import results_here
from calibrators.operators import operator_of
from calibrators.progress import VALIDATING
from calibrators.tables.table import CalibrationTable
from trtint8.arithmetic.simulation import InIntegers, Integers
from trtint8.arithmetic.storage import further_outputs
from trtint8.engine.file import read_engine_info, read_engine_table, sidecar_path
from trtint8.interop.integer_models import integer_operators
from trtint8.models.model import FLOAT_MODEL, Model, calibration_of, inputs_of, warnings_of
from trtint8.models.outputs.joined import OutputPart, split_outputs
from trtint8.models.outputs.picked import find_shown_picks, picks_of_plugins, runnable_part
from trtint8.models.session import ModelSession, StoppableRuns
from trtint8.models.states import with_recorded_states
from trtint8.validation.accuracy import (
    NOT_IN_INT8,
    REFERENCE,
    VALIDATED,
    Accuracy,
    Measure,
    Runner,
    SeenSamples,
    ValidatedModel,
)
from trtint8.validation.batch import Batch, BatchForm, Outputs, by_sample, count_rows
from trtint8.validation.budget import Budget, Goal, judged
from trtint8.validation.class_scores import check_class_folders
from trtint8.validation.detection.decoding import may_hold_rows
from trtint8.validation.detection.layouts import SeenLayouts
from trtint8.validation.fidelity import OUTPUT_METRICS, FidelityMeter, PicksMeter
from trtint8.validation.meters import Answers, Measurand
from trtint8.validation.metrics import (
    Choice,
    Metric,
    check_metrics,
    layout_note,
    measurands,
    reads_layouts,
    usual_metrics,
)
from trtint8.validation.output_shapes import (
    DeclaredOutputs,
    check_comparable,
    differing_outputs,
    outputs_without_samples,
)
from trtint8.validation.significance import SameAnswer, Share, as_number
from trtint8.validation.tensors import TensorMeter, pick_tensors, reasons_for_absence, values_per_sample


def compare_models(
    models: OpenModels,
    batches: Batches,
    budget: Budget | None = None,
    *,
    description: str = VALIDATING,
    progress: bool = True,
) -> Accuracy:
    """Runs all models on every batch and compares their outputs with the reference's.

    Args:
        models: The models and the reference.
        batches: The data, with labels where there are some.
        budget: What the samples are to keep, by one of the metrics; None for nothing.
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
        return merge_results(results, models.metrics, batches.class_names, budget)


def merge_results(
    results: Iterable[BatchResult],
    metrics: Sequence[Metric] | None,
    class_folders: Sequence[str] | None = None,
    budget: Budget | None = None,
) -> Accuracy:
    """Merges the results of batches.

    Args:
        results: The result of each batch, in the order of the data.
        metrics: The metrics that were asked for; None where the usual ones were measured.
        class_folders: Names of the sub-folders whose order gives the class indices, where there are some.
        budget: What the samples are to keep, by one of the metrics; None for nothing.

    Returns:
        The comparison over all batches.

    Raises:
        CalibrationDataError: There is no batch, a metric does not apply to one, there are more or fewer
            folders than classes, or the budget does not apply to the metric.
        ModelError: A model was not run in the same way on all batches.

    Warns:
        UserWarning: The samples do not show what INT8 costs, or cannot judge the budget.
    """
    totals: _Totals | None = None
    goal: Goal | None = None
    for result in results:
        if totals is None:
            check_class_folders(class_folders, result.form, result.reference.meters)
            goal = budget.goal(result.form) if budget else None
            totals = _Totals(result, metrics)
        totals.add(result)
    if totals is None:
        raise CalibrationDataError("the data has no samples; pass at least one")
    return judged(totals.accuracy(), goal)


@dataclass(frozen=True)
class ModelMeters:
    """What was measured on one model.

    Attributes:
        meters: The meter of each metric, by the metric's name.
        fidelity: The meter of the outputs; None where no metric of single outputs was asked for.
        tensors: The meter of tensors inside the network; None where none were asked for.
        picks: The meter of picks that change; None where no metric of single outputs was asked for.
    """

    meters: Mapping[str, Any]
    fidelity: FidelityMeter | None
    tensors: TensorMeter | None = None
    picks: PicksMeter | None = None

    def merge(self, other: ModelMeters) -> None:
        """Adds what was measured on the same model in later batches.

        Raises:
            CalibrationDataError: A metric applies to the earlier batches but not to the later ones.
        """
        for name, meter in self.meters.items():
            if name not in other.meters:
                raise CalibrationDataError(
                    f"metric '{name}' applies to the first batch but not to all, as the outputs or the "
                    "labels change in shape or type; say which metrics to measure"
                )
            meter.merge(other.meters[name])
        if self.fidelity and other.fidelity:
            self.fidelity.merge(other.fidelity)
        if self.tensors and other.tensors:
            self.tensors.merge(other.tensors)
        if self.picks and other.picks:
            self.picks.merge(other.picks)

    # Nothing is merged any more once the values are read.
    @cached_property
    def values(self) -> dict[str, Share | float]:
        """Every metric over all batches."""
        return {name: meter.value() for name, meter in self.meters.items()}


@dataclass(frozen=True)
class _Shown:
    """What the reference's outputs show of the samples of a batch.

    Attributes:
        digests: What tells the outputs of a sample from those of others: uint32, shape (samples,).
        broken: Names of outputs that hold NaN, to the number of samples for which they do.
        answers: The right answers of each metric that has some, by the metric's name.
    """

    digests: NDArray[np.uint32]
    broken: Mapping[str, int]
    answers: Mapping[str, Answers]

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
        answers = {one.name: one.answers(batch) for one in asked if one.answers}
        return cls(np.array(digests, np.uint32), broken, answers)

    def joined(self, later: Sequence[_Shown]) -> _Shown:
        """What this batch and later ones show, in their order."""
        parts = (self, *later)
        broken: Counter[str] = Counter()
        for part in parts:
            broken.update(part.broken)
        answers = {
            name: own.joined([other.answers[name] for other in later]) for name, own in self.answers.items()
        }
        return _Shown(np.concatenate([part.digests for part in parts]), broken, answers)


@dataclass(frozen=True)
class BatchResult:
    """What was measured on one batch.

    Attributes:
        descriptions: The name of each model to how it was run, in words.
        parts: The parts of the outputs that are measured by themselves.
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
    parts: tuple[OutputPart, ...]
    choice: Choice | None
    form: BatchForm
    samples: int
    reference: ModelMeters
    models: tuple[ModelMeters, ...]
    in_integers: InIntegers | None = None
    shown: _Shown | None = None


class OpenModels:
    """Models and their reference, open and ready to run.

    Args:
        models: The validated models, with different names.
        reference: Runs the FP32 model, which has the same outputs; the tensors that outputs are picked from
            come behind them, where ``declared`` names some.
        output_names: Names of the outputs, in order.
        inputs: The inputs of all models.
        metrics: What to measure. None measures the usual metrics that apply to the model and the data.
        declared: What the reference declares of its outputs; where None all shapes are fixed, and no output
            is measured in parts.
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
        output_names: Sequence[str],
        inputs: Sequence[InputSpec],
        metrics: Sequence[Metric] | None,
        declared: DeclaredOutputs | None = None,
        *,
        shows: bool = True,
    ) -> None:
        check_metrics(metrics or ())  # before the run
        self.metrics = metrics
        self._models, self._reference, self._shows = tuple(models), reference, shows
        self._outputs, self._inputs = tuple(output_names), tuple(inputs)
        whole = tuple(OutputPart(name, name) for name in output_names)
        self._declared = declared or DeclaredOutputs({}, whole)
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
                outputs = self._by_name(self._reference(batch.feed), self._declared.further)[0]
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
        labels: NDArray[Any] | None,
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
        wanted, wanted_further = self._by_name(self._reference(feed), self._declared.further)
        samples, rows = batch_rows(feed), count_rows(feed, wanted)
        own_labels = first_labels(labels, rows, first)
        form = self._declared.form_of(wanted, own_labels, rows, self._without_samples)
        self._first = self._first or form
        form = self._layouts.applied_to(form.read_like(self._first))
        choice = usual_metrics(form) if self.metrics is None else None
        metrics = _metrics(self.metrics, choice)
        asked = measurands(metrics, form)
        batch = Batch(feed, wanted, wanted, own_labels, rows, first, name_of)
        reference = _measured(_on_reference(asked), batch)
        models = []
        for model in self._models:
            got, further = self._by_name(model.run(feed), model.further)
            check_comparable(asked, differing_outputs(got, wanted, self._declared.shapes), got)
            fidelity = _fidelity_meter(metrics, self._declared.parts)
            if fidelity:
                fidelity.add(self._split({**got, **further}), self._split({**wanted, **wanted_further}))
            tensors = TensorMeter.of(self._declared.inside, model.inside, self._declared.absent, model.absent)
            if tensors:
                tensors.add({**feed, **got, **further}, {**feed, **wanted, **wanted_further})
            picks = PicksMeter(self._declared.shown) if fidelity else None
            if picks:
                picks.add({**got, **further}, {**wanted, **wanted_further}, rows)
            measured = _measured(asked, replace(batch, outputs=got))
            models.append(ModelMeters(measured, fidelity, tensors, picks))
        tells = self._models[0].in_integers
        return BatchResult(
            {model.name: model.description for model in self._models},
            self._declared.parts,
            choice,
            form,
            1 if samples is None else samples,
            ModelMeters(reference, None),
            tuple(models),
            tells() if tells else None,
            _Shown.of(batch, asked) if self._shows else None,
        )

    def _by_name(self, arrays: Sequence[NDArray[Any]], further: Sequence[str]) -> tuple[Outputs, Outputs]:
        """What a model gives: its outputs, and what comes behind them."""
        found = dict(zip((*self._outputs, *further), arrays, strict=True))
        return (
            {name: found[name] for name in self._outputs},
            {name: found[name] for name in further},
        )

    def _split(self, outputs: Outputs) -> Outputs:
        """The parts that a model gives."""
        return split_outputs([part for part in self._declared.parts if part.output in outputs], outputs)


class _Totals:
    """Everything measured on the batches so far."""

    def __init__(self, first: BatchResult, metrics: Sequence[Metric] | None) -> None:
        """Starts empty; the first batch only decides which models and metrics there are."""
        chosen = _metrics(metrics, first.choice)
        self._metrics, self._choice = chosen, first.choice
        self._asked = measurands(chosen, first.form)
        self._descriptions, self._samples, self._form = first.descriptions, 0, first.form
        self._reference = ModelMeters(_empty_meters(_on_reference(self._asked)), None)
        self._models = [
            ModelMeters(
                _empty_meters(self._asked),
                _fidelity_meter(chosen, first.parts),
                model.tensors.empty() if model.tensors else None,
                PicksMeter(model.picks.shown) if model.picks else None,
            )
            for model in first.models
        ]
        self._in_integers = first.in_integers
        self._seen: SeenSamples | None = None
        self._same_answers: dict[str, SameAnswer] = {}
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
        self._reference.merge(result.reference)
        if self._in_integers and result.in_integers:
            self._in_integers = self._in_integers.joined(result.in_integers)
        for total, measured in zip(self._models, result.models, strict=True):
            total.merge(measured)

    def _check_alike(self, result: BatchResult) -> None:
        """Refuses a batch on which a metric compares with something else than on the first one."""
        for measurand, other in zip(self._asked, measurands(self._metrics, result.form), strict=True):
            if measurand.title != other.title:
                raise CalibrationDataError(
                    f"metric '{measurand.name}' means '{measurand.title}' for the first batch and "
                    f"'{other.title}' for another; give labels that fit the outputs of all batches"
                )

    def accuracy(self) -> Accuracy:
        self._look()
        results = {
            name: self._of_model(description, meters)
            for (name, description), meters in zip(self._descriptions.items(), self._models, strict=True)
        }
        main, *others = self._descriptions
        return replace(
            self._with_comparisons(results[main], dict(zip(others, self._models[1:], strict=True))),
            also={name: results[name] for name in others},
            in_integers=self._in_integers,
        )

    def _look(self) -> None:
        """Finds what all batches show of the samples."""
        if not self._shown:
            return
        shown = self._shown[0].joined(self._shown[1:])
        _, different, repeats = np.unique(shown.digests, return_index=True, return_counts=True)
        self._seen = SeenSamples(len(different), int(repeats.min()), dict(shown.broken))
        for measurand in self._asked:
            if answers := shown.answers.get(measurand.name):
                own = self._reference.values.get(measurand.name, measurand.perfect)
                assert own is not None
                self._same_answers[measurand.name] = answers.same_for_all(as_number(own), different)

    @property
    def _chosen(self) -> str | None:
        """What nobody has asked for, in words: the metrics, and how detections are read."""
        reason = self._choice.reason if self._choice else None
        return "; ".join(filter(None, (reason, layout_note(self._metrics, self._form)))) or None

    def _of_model(self, description: str, meters: ModelMeters) -> Accuracy:
        """The result of one model."""
        measures = {}
        for measurand in self._asked:
            name, compared, reference = measurand.name, None, self._reference.values.get(measurand.name)
            perfect = as_number(reference) if measurand.perfect is None else measurand.perfect
            if not measurand.relative:
                compared = meters.meters[name].against(self._reference.meters[name], REFERENCE)
            measures[name] = Measure(
                name,
                meters.values[name],
                None if measurand.relative else reference,
                () if compared is None else (compared,),
                measurand.title,
                measurand.unit,
                perfect if measurand.relative else None,
                self._same_answers.get(name),
            )
        return Accuracy(
            description,
            self._samples,
            _share(measures, "top1"),
            _share(measures, "top5"),
            _share(measures, "top1", of_reference=True),
            _share(measures, "top5", of_reference=True),
            _share(measures, "agreement"),
            meters.fidelity.value() if meters.fidelity else (),
            tuple(measures.values()),
            chosen=self._chosen,
            tensors=meters.tensors.value() if meters.tensors else None,
            picks_changed=meters.picks.value() if meters.picks else (),
            seen=self._seen,
        )

    def _with_comparisons(self, accuracy: Accuracy, others: Mapping[str, ModelMeters]) -> Accuracy:
        """Compares the first model with the others by the metrics that FP32 has no value of."""
        relative = {measurand.name for measurand in self._asked if measurand.relative}
        own = self._models[0].meters
        measures = []
        for measure in accuracy.measures:
            if measure.name in relative:
                compared = [
                    own[measure.name].against(other.meters[measure.name], name)
                    for name, other in others.items()
                ]
                measure = replace(measure, comparisons=tuple(filter(None, compared)))
            measures.append(measure)
        return replace(accuracy, measures=tuple(measures))


def _metrics(metrics: Sequence[Metric] | None, choice: Choice | None) -> Sequence[Metric]:
    """The metrics that were asked for, else those that were chosen."""
    if metrics is None:
        return choice.names if choice else ()
    return metrics


def _on_reference(asked: Sequence[Measurand]) -> list[Measurand]:
    """The metrics that are measured on the reference too."""
    return [measurand for measurand in asked if measurand.on_reference]


def _empty_meters(asked: Sequence[Measurand]) -> dict[str, Any]:
    return {measurand.name: measurand.start() for measurand in asked}


def _measured(asked: Sequence[Measurand], batch: Batch) -> dict[str, Any]:
    return {measurand.name: measurand.measure(batch) for measurand in asked}


def _fidelity_meter(metrics: Sequence[Metric], parts: Sequence[OutputPart]) -> FidelityMeter | None:
    asked = {metric for metric in metrics if isinstance(metric, str)}.intersection(OUTPUT_METRICS)
    return FidelityMeter(parts, tokens="token_cosine" in asked) if asked else None


def _share(measures: Mapping[str, Measure], name: str, *, of_reference: bool = False) -> Share | None:
    if name not in measures:
        return None
    value = measures[name].reference if of_reference else measures[name].value
    return value if isinstance(value, Share) else None


#: Outputs of so many bytes are made before they are asked for; those of the first batch in any case.
_KEPT = 16 << 20


class RunningReference:
    """A reference that runs in another thread until others are ready to be compared with it.

    It is a context manager, and ends that run where the comparison fails before it has begun.

    Args:
        open_session: Opens the model; called at once.
    """

    def __init__(self, open_session: Callable[[], ModelSession]) -> None:
        self._opening = in_thread(open_session)
        self._runs: StoppableRuns | None = None
        self._ahead: Future[None] | None = None
        self._is_asked = False
        self._feeds: dict[int, FeedDict] = {}
        self._outputs: dict[int, list[NDArray[Any]]] = {}

    def __enter__(self) -> RunningReference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_asked = True
        if kind is not None and self._runs is not None:
            self._runs.stop()

    def session(self) -> ModelSession:
        """The open model.

        Raises:
            ModelError: ONNX Runtime refuses the model.
        """
        return self._opening.result()

    def run_ahead(self, feeds: Sequence[FeedDict]) -> None:
        """Begins to run the model on the first batches, in their order.

        Args:
            feeds: The batches, which the same objects will ask for again. What is wrong with them is said
                then.
        """
        self._feeds = {id(feed): feed for feed in feeds}
        self._ahead = in_thread(self._run_ahead)

    def run(self, feed: FeedDict) -> list[NDArray[Any]]:
        """Runs the model on a batch, if that was not done ahead. Nothing is run ahead from then on.

        Args:
            feed: Input name to array.

        Returns:
            The outputs.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch.
        """
        if self._ahead is not None:
            self._is_asked = True
            self._ahead.result()
        self._feeds.pop(id(feed), None)
        outputs = self._outputs.pop(id(feed), None)
        return self.session().run(feed) if outputs is None else outputs

    def _run_ahead(self) -> None:
        session, made = self.session(), 0
        self._runs = StoppableRuns()
        for key, feed in self._feeds.items():
            if self._is_asked or made > _KEPT:
                return
            with contextlib.suppress(CalibrationDataError):
                self._outputs[key] = outputs = session.run(feed, stoppable=self._runs)
                made += sum(output.nbytes for output in outputs)


@dataclass(frozen=True)
class Reference:
    """A float model as others are compared with it.

    Attributes:
        model: The model, without plugins of TensorRT at its end.
        declared: What it declares of its outputs, and which of them plugins compute; and which tensors inside
            are compared.
    """

    model: Model
    declared: DeclaredOutputs

    @classmethod
    def of(cls, whole: Model) -> Reference:
        """A model that may end in plugins.

        Args:
            whole: The model; not changed.

        Raises:
            ModelError: It has plugins elsewhere.
        """
        left_out = picks_of_plugins(whole)
        model = runnable_part(whole, left_out)
        return cls(model, DeclaredOutputs.of(model.graph_model, left_out))

    def with_shown_picks(self) -> Reference:
        """The same with the tensors that show what the model picks, of which changes are counted."""
        declared = replace(self.declared, shown=find_shown_picks(self.model.graph_model))
        return replace(self, declared=replace(declared, further=(*declared.further, *declared.shown_inside)))

    def with_tensors(self, patterns: Sequence[str]) -> Reference:
        """The same with tensors inside, which are compared as well.

        Args:
            patterns: Names of tensors, or patterns with ``*`` and ``?``.

        Raises:
            ModelError: A pattern matches no floating-point tensor.
        """
        if not patterns:
            return self
        inside = pick_tensors(self.model, patterns)
        graph_model = self.model.graph_model
        further = further_outputs(graph_model, self.declared.further, inside)
        absent = reasons_for_absence(graph_model, inside)
        declared = replace(self.declared, inside=inside, further=further, absent=absent)
        return replace(self, declared=declared)

    def open_data(self, data: DataSource, options: DataOptions, threads: int | None = None) -> Batches:
        """Opens data for all models.

        Args:
            data: Samples, or sequences whose states the model records.
            options: How the data is read.
            threads: Threads per operator while states are recorded; ONNX Runtime's choice where None.

        Raises:
            CalibrationDataError: The data does not fit the model.
        """
        inputs, shapes = self.model.inputs, self.model.output_shapes
        if self.declared.inside:
            shapes = (*shapes, (None, values_per_sample(self.model, self.declared.inside)))
        recorded = with_recorded_states(data, self.model, threads)
        return open_data(recorded, inputs, options.on_cpu(inputs, shapes))


#: Types of models that are in half precision, which are worth comparing although they are not quantized.
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    Attributes:
        what: The model in words.
        it: How a message that has named it calls it.
        float_model: The fingerprint of the float model that it was made from; None where that is not known.
        calibration: The fingerprint of the samples that it was calibrated with, and their number; None where
            that is not known.
        engine: What identifies an engine: the fingerprint of its Q/DQ model, or the SHA-256 of its plan where
            it has none; None for a model, and where there is no engine.
        inputs: What it was fed while it was calibrated; None where that is not known.
        warnings: What its calibration and its build warned of.
        in_int8: Whether a layer of it is in INT8, as far as is known.
    """

    what: str
    it: str
    float_model: str | None = None
    calibration: tuple[str, int] | None = None
    engine: str | None = None
    inputs: CalibratedInputs | None = None
    warnings: tuple[str, ...] = ()
    in_int8: bool = True

    @property
    def called(self) -> str:
        """What tables call the model."""
        return VALIDATED if self.in_int8 else NOT_IN_INT8


def as_calibrated(
    options: DataOptions,
    fed: Sequence[tuple[str, CalibratedInputs | None]],
    integers: Integers | None = None,
) -> DataOptions:
    """Options for data that have the preprocessing of a calibration, where none is given.

    Args:
        options: How the data is read.
        fed: What each model is called, and what it was fed while it was calibrated; None where that is not
            known. The first one with preprocessing decides.
        integers: How the first model is computed in integers; None where it is run as it is.

    Warns:
        UserWarning: Other preprocessing is given, or another model was calibrated with other one; once for
            all models of the same preprocessing.
    """
    known = [(what, inputs) for what, inputs in fed if inputs is not None]
    if integers is not None and integers.table is not None and integers.table.provenance.inputs:
        known.insert(0, ("the table", integers.table.provenance.inputs))
    seen: list[Preprocessing] = []
    for what, inputs in known:
        if inputs.images is None or any(map(inputs.images.is_same, seen)):
            continue
        seen.append(inputs.images)
        if options.applied is None:
            options = options.calibrated(inputs, what)
        else:
            inputs.chosen(options.applied, what)
    return options


def warn_of_models(
    models: Mapping[str, Model | Path], reference: Model, integers: Integers | None = None
) -> list[Origin]:
    """Warns of models that are not what a comparison takes them for, as far as they say where they come from.

    Args:
        models: Models, and paths of engines, by their names in results.
        reference: The float model.
        integers: How the first model is computed in integers; None where it is run as it is.

    Returns:
        Where each of the models comes from.

    Warns:
        UserWarning: The reference holds Q/DQ pairs; the model called INT8 computes in float32; or a model was
            made from another float model than the reference.
    """
    if reference.is_quantized:
        warn_user(
            f"the reference '{reference.name}' holds Q/DQ pairs, so that what the results call {REFERENCE} "
            "is quantized; give the float model"
        )
    validated = models[VALIDATED]
    if integers is None and isinstance(validated, Model) and _is_float32(validated):
        warn_user(
            f"'{validated.name}' holds neither Q/DQ pairs nor integer operators: what is compared is a float "
            "model; give the quantized one"
        )
    origins = [_of_model(one) if isinstance(one, Model) else _of_engine(one) for one in models.values()]
    if integers is not None:
        origins[0] = replace(origins[0], in_int8=True)
    if integers is not None and (table := integers.table) is not None:
        origins[0] = replace(
            origins[0],
            calibration=_calibration(table),
            inputs=table.provenance.inputs,
            warnings=table.warnings,
        )
    for origin in origins:
        _warn_of_another_model(origin, reference)
    return origins


@contextlib.contextmanager
def warning_of_calibration_samples(origins: Sequence[Origin], batches: Batches) -> Iterator[Batches]:
    """Warns, when the samples were read, of models that were calibrated with them.

    Args:
        origins: Where the models come from.
        batches: The samples.

    Yields:
        The same samples, for one pass in this process.

    Warns:
        UserWarning: A model was calibrated with these samples.
    """
    alike = [one for one in origins if one.calibration and batches.num_samples in (None, one.calibration[1])]
    if not alike:
        yield batches
        return
    seen = DataFingerprint()
    yield observed(batches, seen)
    for origin in alike:
        if origin.calibration == (seen.hexdigest(), seen.samples):
            warn_user(
                f"{origin.what} was calibrated with the samples that it is judged by, so that its accuracy "
                "may look better than it is; give held-out samples"
            )


def _of_model(model: Model) -> Origin:
    graph_model = model.graph_model
    made_from = graph_model.metadata_props.get(FLOAT_MODEL)
    return Origin(
        f"the model '{model.name}'",
        "it",
        made_from,
        calibration_of(graph_model),
        inputs=inputs_of(graph_model, model.name),
        warnings=warnings_of(model),
        in_int8=_is_quantized(model),
    )


def _of_engine(plan: Path) -> Origin:
    what = f"the engine '{plan}'"
    if not (is_file(plan) and is_file(sidecar_path(plan))):
        return Origin(what, "the engine")
    info = read_engine_info(plan)
    identity = info.qdq_fingerprint or info.plan_sha256
    # Without a table, the model that was built had Q/DQ pairs already or a calibrator of the user's.
    if info.table_fingerprint is None:
        return Origin(
            what,
            "the engine",
            engine=identity,
            inputs=info.calibrated_inputs,
            warnings=info.warnings,
            in_int8=info.in_int8,
        )
    try:
        table = read_engine_table(plan, info)
    except TrtInt8Error:  # a table that is not needed for the comparison
        table = None
    calibration = _calibration(table) if table else None
    return Origin(
        what,
        "the engine",
        info.model_fingerprint,
        calibration,
        identity,
        info.calibrated_inputs,
        info.warnings,
        info.in_int8,
    )


def _calibration(table: CalibrationTable) -> tuple[str, int] | None:
    """The samples that a table was made with, as far as it says so."""
    data, samples = table.provenance.data, table.provenance.samples
    return None if data is None or samples is None else (data, samples)


def _is_float32(model: Model) -> bool:
    graph = model.graph_model.graph
    values = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    is_half = any(value.dtype in _HALF for value in values)
    return not (is_half or _is_quantized(model))


def _is_quantized(model: Model) -> bool:
    pairs = any(operator_of(node).half_of_pair for node in model.graph_model.graph)
    return pairs or bool(integer_operators(model.graph_model))


def _warn_of_another_model(origin: Origin, reference: Model) -> None:
    # A float reference may be what another one was equalized to.
    known = None if reference.is_quantized else reference.graph_model.metadata_props.get(FLOAT_MODEL)
    if origin.float_model is None or origin.float_model in (known, reference.fingerprint):
        return
    warn_user(
        f"{origin.what} was not made from the reference '{reference.name}', but from a float model with the "
        f"fingerprint {origin.float_model[:12]} (the reference has {reference.fingerprint[:12]}); give the "
        f"model that {origin.it} was made from"
    )
