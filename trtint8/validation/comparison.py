"""Models beside the reference: what each batch shows of them, and what all batches together say.

What a batch shows is kept apart until it is merged, batch after batch. So it makes no difference where, and
when, a batch was run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.batches import Batches, FeedDict
from calibrators.data.feeds import batch_rows
from calibrators.data.inputs import InputSpec
from calibrators.data.preflight import check_feed
from calibrators.data.sources import first_labels
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.progress import progress_bar
from trtint8.validation.accuracy import REFERENCE, Accuracy, Judged, Measure, Runner
from trtint8.validation.fidelity import OUTPUT_METRICS, FidelityMeter
from trtint8.validation.metrics import Batch, Measurand, Metric, Outputs, measurands, usual_metrics
from trtint8.validation.significance import Share


def compare(
    judged: Sequence[Judged],
    reference: Runner,
    output_names: Sequence[str],
    inputs: Sequence[InputSpec],
    batches: Batches,
    *,
    metrics: Sequence[Metric] | None = None,
    progress: bool = True,
) -> Accuracy:
    """Feeds all sides every batch and compares what comes out, batch by batch.

    Args:
        judged: The models, with different names; the first is the one that it is about.
        reference: The FP32 side, with the same outputs.
        output_names: Names of the outputs, in order.
        inputs: What all are fed.
        batches: The data; its labels, where it has some, are class indices.
        metrics: What to measure; what applies of the usual where None.
        progress: Show a progress bar on a terminal.

    Returns:
        The comparison of the first model, with those of the others in ``also``.

    Raises:
        CalibrationDataError: The data does not fit the model, a label is not one of its classes, or a metric
            does not apply to them.
        ModelError: A model's outputs differ from the reference's in shape.
    """
    return compare_on(Panel(judged, reference, output_names, inputs, metrics), batches, progress=progress)


def compare_on(panel: Panel, batches: Batches, *, progress: bool = True) -> Accuracy:
    """:func:`compare` for models that are open."""

    def shown() -> Iterator[Shown]:
        first, labels = 0, batches.labels
        for feed in batches:
            shown = panel.show(feed, None if labels is None else labels[first:], first)
            first += shown.samples
            advance(shown.samples)
            yield shown

    with progress_bar("Validating", batches.num_samples, enabled=progress) as advance:
        return together(shown(), panel.metrics)


def together(shown: Iterable[Shown], metrics: Sequence[Metric] | None) -> Accuracy:
    """What batches say together.

    Args:
        shown: What each showed, in the order of the data.
        metrics: What was asked for; None for what the first batch showed.

    Raises:
        CalibrationDataError: There is no batch, or a metric does not apply to one.
        ModelError: What stood for a model was not the same for all batches.
    """
    tally: _Tally | None = None
    for batch in shown:
        if tally is None:
            tally = _Tally(batch, metrics)
        tally.add(batch)
    if tally is None:
        raise CalibrationDataError("the data has no samples; pass at least one")
    return tally.accuracy()


@dataclass(frozen=True)
class Side:
    """One model.

    Attributes:
        meters: By metric.
        fidelity: Of the outputs; None where that was not asked for.
    """

    meters: Mapping[str, Any]
    fidelity: FidelityMeter | None

    def merge(self, other: Side) -> None:
        """Takes what was seen in batches after its own."""
        for name, meter in self.meters.items():
            if name not in other.meters:
                raise CalibrationDataError(
                    f"metric '{name}' applies to the first batch but not to all, as the number of classes "
                    "changes; say which metrics to measure"
                )
            meter.merge(other.meters[name])
        if self.fidelity and other.fidelity:
            self.fidelity.merge(other.fidelity)

    # Meters do not change any more once they are asked.
    @cached_property
    def values(self) -> dict[str, Share | float]:
        """Every metric over all batches."""
        return {name: meter.value() for name, meter in self.meters.items()}


@dataclass(frozen=True)
class Shown:
    """What one batch showed.

    Attributes:
        models: What stood for each model, in words, by name.
        outputs: Names of the outputs.
        metrics: What applies of the usual; None where metrics were asked for.
        samples: How many there were.
        reference: What belongs to the reference alone.
        sides: The models', in their order.
    """

    models: Mapping[str, str]
    outputs: tuple[str, ...]
    metrics: tuple[str, ...] | None
    samples: int
    reference: Side
    sides: tuple[Side, ...]


class Panel:
    """Models beside the reference, ready to be fed.

    Args:
        judged: The models, with different names.
        reference: The FP32 side, with the same outputs.
        output_names: Names of the outputs, in order.
        inputs: What all are fed.
        metrics: What to measure; what applies of the usual where None.

    Attributes:
        metrics: The same.

    Raises:
        CalibrationDataError: A metric is unknown.
    """

    def __init__(
        self,
        judged: Sequence[Judged],
        reference: Runner,
        output_names: Sequence[str],
        inputs: Sequence[InputSpec],
        metrics: Sequence[Metric] | None,
    ) -> None:
        measurands(metrics or ())  # refuses an unknown name before the run
        self.metrics = metrics
        self._judged, self._reference = tuple(judged), reference
        self._outputs, self._inputs = tuple(output_names), tuple(inputs)

    def show(self, feed: FeedDict, labels: NDArray[np.int64] | None, first: int) -> Shown:
        """Runs all models on a batch.

        Args:
            feed: The batch.
            labels: From the batch's first sample on, or None.
            first: How many samples come before it, for messages.

        Raises:
            CalibrationDataError: The batch does not fit the model, a label is not one of its classes, or a
                metric does not apply to them.
            ModelError: A model's outputs differ from the reference's in shape.
        """
        check_feed(feed, self._inputs, first)
        wanted = dict(zip(self._outputs, self._reference(feed), strict=True))
        output = wanted[self._outputs[0]]
        samples = batch_rows(feed)
        rows = samples or (len(output) if output.ndim else 1)
        own_labels = first_labels(labels, rows, first)
        usual = usual_metrics(output, labelled=labels is not None) if self.metrics is None else None
        metrics: Sequence[Metric] = self.metrics or usual or ()
        asked = measurands(metrics)
        reference = _looked(_absolute(asked), Batch(feed, wanted, wanted, own_labels, rows))
        sides = []
        for model in self._judged:
            got = dict(zip(self._outputs, model.run(feed), strict=True))
            _check_shapes(got, wanted)
            fidelity = _fidelity(metrics, self._outputs)
            if fidelity:
                fidelity.add(got, wanted)
            sides.append(Side(_looked(asked, Batch(feed, got, wanted, own_labels, rows)), fidelity))
        return Shown(
            {model.name: model.description for model in self._judged},
            self._outputs,
            usual,
            1 if samples is None else samples,
            Side(reference, None),
            tuple(sides),
        )


class _Tally:
    """All batches so far."""

    def __init__(self, first: Shown, metrics: Sequence[Metric] | None) -> None:
        """Starts without data; what is to be measured, and of whom, the first batch tells."""
        chosen = first.metrics or () if metrics is None else metrics
        self._asked = measurands(chosen)
        self._models, self._samples = first.models, 0
        self._reference = Side(_started(_absolute(self._asked)), None)
        self._sides = [Side(_started(self._asked), _fidelity(chosen, first.outputs)) for _ in first.sides]

    def add(self, batch: Shown) -> None:
        for name, described in batch.models.items():
            if described != self._models[name]:
                raise ModelError(
                    f"{name} is {self._models[name]} for one worker and {described} for another; let all "
                    "have the same, GPUs with num_gpus"
                )
        self._samples += batch.samples
        self._reference.merge(batch.reference)
        for side, shown in zip(self._sides, batch.sides, strict=True):
            side.merge(shown)

    def accuracy(self) -> Accuracy:
        results = {
            name: self._of_one(described, side)
            for (name, described), side in zip(self._models.items(), self._sides, strict=True)
        }
        _, *others = self._models
        return replace(
            self._with_rivals(next(iter(results.values())), dict(zip(others, self._sides[1:], strict=True))),
            also={name: results[name] for name in others},
        )

    def _of_one(self, described: str, side: Side) -> Accuracy:
        """What the meters say of one model."""
        measures = {}
        for one in self._asked:
            compared = None
            if not one.relative:
                compared = side.meters[one.name].against(self._reference.meters[one.name], REFERENCE)
            measures[one.name] = Measure(
                one.name,
                side.values[one.name],
                self._reference.values.get(one.name),
                () if compared is None else (compared,),
            )
        return Accuracy(
            described,
            self._samples,
            _share(measures, "top1"),
            _share(measures, "top5"),
            _share(measures, "top1", of_reference=True),
            _share(measures, "top5", of_reference=True),
            _share(measures, "agreement"),
            side.fidelity.value() if side.fidelity else (),
            tuple(measures.values()),
        )

    def _with_rivals(self, accuracy: Accuracy, rivals: Mapping[str, Side]) -> Accuracy:
        """Compares what FP32 has no value of with the other models."""
        relative = {one.name for one in self._asked if one.relative}
        own = self._sides[0].meters
        measures = []
        for measure in accuracy.measures:
            if measure.name in relative:
                compared = [
                    own[measure.name].against(rival.meters[measure.name], name)
                    for name, rival in rivals.items()
                ]
                measure = replace(measure, comparisons=tuple(filter(None, compared)))
            measures.append(measure)
        return replace(accuracy, measures=tuple(measures))


def _absolute(asked: Sequence[Measurand]) -> list[Measurand]:
    """Those that the reference has a value of."""
    return [one for one in asked if not one.relative]


def _started(asked: Sequence[Measurand]) -> dict[str, Any]:
    return {one.name: one.start() for one in asked}


def _looked(asked: Sequence[Measurand], batch: Batch) -> dict[str, Any]:
    return {one.name: one.look(batch) for one in asked}


def _fidelity(metrics: Sequence[Metric], output_names: Sequence[str]) -> FidelityMeter | None:
    asked = {metric for metric in metrics if isinstance(metric, str)}.intersection(OUTPUT_METRICS)
    return FidelityMeter(output_names, tokens="token_cosine" in asked) if asked else None


def _share(measures: Mapping[str, Measure], name: str, *, of_reference: bool = False) -> Share | None:
    if name not in measures:
        return None
    value = measures[name].reference if of_reference else measures[name].value
    return value if isinstance(value, Share) else None


def _check_shapes(got: Outputs, wanted: Outputs) -> None:
    for name, array in wanted.items():
        if got[name].shape != array.shape:
            raise ModelError(
                f"output '{name}' has shape {got[name].shape}, the reference's {array.shape}; "
                "compare with the model that it was made from"
            )
