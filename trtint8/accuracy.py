"""What INT8 costs: engines' or Q/DQ models' outputs beside those of the FP32 model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.batches import Batches, FeedDict
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.feeds import batch_rows
from calibrators.inputs import InputSpec
from calibrators.onnx_session import first_line, open_session
from calibrators.preflight import Preflight
from calibrators.progress import progress_bar
from trtint8.fidelity import OUTPUT_METRICS, Fidelity, FidelityMeter
from trtint8.metrics import Batch, Measurand, Meter, Metric, Outputs, measurands, usual_metrics
from trtint8.significance import Comparison, Share

#: Feeds to outputs, in the order of the output names.
Runner = Callable[[FeedDict], list[NDArray[Any]]]

#: What the reference is called in results.
REFERENCE = "FP32"

#: What the model is called that it is about.
JUDGED = "INT8"


@dataclass(frozen=True)
class Judged:
    """A model to judge.

    Attributes:
        name: What it is called in results, such as INT8.
        run: Runs it, with the reference's outputs in the reference's order.
        description: What stands for it, in words.
    """

    name: str
    run: Runner
    description: str


@dataclass(frozen=True)
class Measure:
    """One metric of one model.

    Attributes:
        name: The metric.
        value: The model's: a share for ``topK`` and ``agreement``, else a number.
        reference: FP32's; None for ``agreement``, which FP32 has no value of.
        comparisons: The model less FP32; for ``agreement`` the first model less each other one. Empty where
            nothing can be paired.
    """

    name: str
    value: Share | float
    reference: Share | float | None = None
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True)
class Accuracy:
    """A model, mostly INT8, beside FP32.

    Attributes:
        judged: What stood for the model, in words.
        samples: How many samples were fed.
        top1: Share of samples whose largest logit is the label's; None where it was not measured.
        top5: The same for the five largest.
        reference_top1: FP32's.
        reference_top5: FP32's.
        agreement: Share of samples where the model and FP32 give the same class; None where it was not
            measured.
        outputs: How close each output is; empty where that was not asked for.
        measures: The metrics but those of single outputs, in the order in which they were asked for.
        also: The other models that were judged on the same samples, by name.
    """

    judged: str
    samples: int
    top1: Share | None
    top5: Share | None
    reference_top1: Share | None
    reference_top5: Share | None
    agreement: Share | None
    outputs: tuple[Fidelity, ...]
    measures: tuple[Measure, ...] = ()
    also: Mapping[str, Accuracy] = field(default_factory=dict)


def onnx_runner(model: bytes | Path, *, optimize: bool) -> tuple[Runner, list[str]]:
    """Runs a model in ONNX Runtime on the CPU.

    Args:
        model: Serialized, or a path.
        optimize: False runs a Q/DQ model as true fake quantization.

    Returns:
        The runner and the names of the outputs.
    """
    session = open_session(model, optimize=optimize)

    def run(feed: FeedDict) -> list[NDArray[Any]]:
        try:
            outputs: list[NDArray[Any]] = session.run(None, feed)
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a batch: {first_line(error)}") from error
        return outputs

    return run, [output.name for output in session.get_outputs()]


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
    asked = measurands(metrics or ())  # refuses an unknown name before the run
    sides: list[_Side] = []
    fed = 0
    preflight = Preflight(inputs)
    with progress_bar("Validating", batches.num_samples, enabled=progress) as advance:
        for feed in batches:
            before = preflight.samples
            preflight.observe(feed)
            wanted = dict(zip(output_names, reference(feed), strict=True))
            first_output = wanted[output_names[0]]
            rows = batch_rows(feed) or (len(first_output) if first_output.ndim else 1)
            labels = _labels(batches.labels, fed, rows)
            if not sides:
                if metrics is None:
                    metrics = usual_metrics(first_output, labelled=labels is not None)
                    asked = measurands(metrics)
                own = [one for one in asked if not one.relative]
                sides = [_Side(own, None), *(_Side(asked, _fidelity(metrics, output_names)) for _ in judged)]
            sides[0].add(Batch(feed, wanted, wanted, labels, rows))
            for side, model in zip(sides[1:], judged, strict=True):
                got = dict(zip(output_names, model.run(feed), strict=True))
                _check_shapes(got, wanted)
                side.add(Batch(feed, got, wanted, labels, rows))
            fed += rows
            advance(preflight.samples - before)
    preflight.finish()
    results = [
        _accuracy(model, side, sides[0], asked, preflight.samples)
        for model, side in zip(judged, sides[1:], strict=True)
    ]
    rivals = dict(zip((model.name for model in judged[1:]), sides[2:], strict=True))
    others = dict(zip(rivals, results[1:], strict=True))
    return replace(_with_rivals(results[0], sides[1], rivals, asked), also=others)


class _Side:
    """The meters of one model."""

    def __init__(self, asked: Sequence[Measurand], fidelity: FidelityMeter | None) -> None:
        self.meters: dict[str, Meter] = {one.name: one.start() for one in asked}
        self.fidelity = fidelity

    def add(self, batch: Batch) -> None:
        for meter in self.meters.values():
            meter.add(batch)
        if self.fidelity:
            self.fidelity.add(batch.outputs, batch.reference)

    @cached_property
    def values(self) -> dict[str, Share | float]:
        return {name: meter.value() for name, meter in self.meters.items()}


def _labels(labels: NDArray[np.int64] | None, fed: int, rows: int) -> NDArray[np.int64] | None:
    if labels is not None and len(labels) < fed + rows:
        raise CalibrationDataError(f"there are {len(labels)} labels but more samples; give one a sample")
    return None if labels is None else labels[fed : fed + rows]


def _fidelity(metrics: Sequence[Metric], output_names: Sequence[str]) -> FidelityMeter | None:
    asked = {metric for metric in metrics if isinstance(metric, str)}.intersection(OUTPUT_METRICS)
    return FidelityMeter(output_names, tokens="token_cosine" in asked) if asked else None


def _accuracy(
    model: Judged, side: _Side, reference: _Side, asked: Sequence[Measurand], samples: int
) -> Accuracy:
    """What the meters say of one model."""
    measures = {}
    for one in asked:
        compared = None
        if not one.relative:
            compared = side.meters[one.name].against(reference.meters[one.name], REFERENCE)
        measures[one.name] = Measure(
            one.name,
            side.values[one.name],
            reference.values.get(one.name),
            () if compared is None else (compared,),
        )
    return Accuracy(
        model.description,
        samples,
        _share(measures, "top1"),
        _share(measures, "top5"),
        _share(measures, "top1", of_reference=True),
        _share(measures, "top5", of_reference=True),
        _share(measures, "agreement"),
        side.fidelity.value() if side.fidelity else (),
        tuple(measures.values()),
    )


def _with_rivals(
    accuracy: Accuracy, side: _Side, rivals: Mapping[str, _Side], asked: Sequence[Measurand]
) -> Accuracy:
    """Compares what FP32 has no value of with the other models."""
    relative = {one.name for one in asked if one.relative}
    measures = []
    for measure in accuracy.measures:
        if measure.name in relative:
            compared = [
                side.meters[measure.name].against(rival.meters[measure.name], name)
                for name, rival in rivals.items()
            ]
            measure = replace(measure, comparisons=tuple(filter(None, compared)))
        measures.append(measure)
    return replace(accuracy, measures=tuple(measures))


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
