"""The accuracy of INT8: what is compared with the FP32 model, what was found, and what that says of a budget.

The results show themselves in words and tables, in a terminal, in a notebook and as a data frame.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from calibrators.data.feeds import Array, FeedDict
from calibrators.display.cards import html_table
from calibrators.display.picture import data_frame
from calibrators.errors import counted
from calibrators.records import PositiveCount, Result
from trtint8.arithmetic.simulation import InIntegers
from trtint8.arithmetic.storage import InnerTensor
from trtint8.validation.fidelity import FIGURES, Fidelity, PicksChanged, picks_text
from trtint8.validation.meters import DECIBELS, PERCENT
from trtint8.validation.significance import Comparison, Interval, SameAnswer, Share, as_number
from trtint8.validation.tensors import ComparedTensors

#: Runs a model: a feed to the list of its outputs, in the order of the output names.
Runner = Callable[[FeedDict], list[Array]]


@dataclass(frozen=True)
class ValidatedModel:
    """A model that is compared with the reference.

    Attributes:
        name: The model's name in results, such as INT8.
        run: Runs the model; its outputs are the reference's, in the reference's order, and ``further`` comes
            behind them.
        description: How the model is run, in words, such as "the engine on NVIDIA T1000".
        further: Names of the values that are given behind the outputs: the tensors that outputs are picked
            from, all of them or none, and then tensors inside the model.
        inside: Names of the tensors inside the model that are compared, to where they are: among what it
            gives or is fed.
        absent: Why it lacks other tensors that are compared, in words.
        half: Names of the tensors that the model holds in FP16, where ONNX Runtime runs it on a CPU.
        in_integers: Tells what was computed in integers so far, where the model is run in an arithmetic.
    """

    name: str
    run: Runner
    description: str
    further: tuple[str, ...] = ()
    inside: Mapping[str, InnerTensor] = field(default_factory=dict)
    absent: str = "the model has no tensor of this name"
    half: tuple[str, ...] = ()
    in_integers: Callable[[], InIntegers] | None = None


#: The name of the reference in results.
REFERENCE = "FP32"

#: The name in results of the model that a comparison describes.
VALIDATED = "INT8"

#: What tables call that model where no layer of it is in INT8.
NOT_IN_INT8 = "float"


@dataclass(frozen=True)
class SeenSamples(Result):
    """What FP32's outputs say of the samples that models are compared on.

    Attributes:
        different: How many samples there are of which no two have the same outputs.
        repeats: How often there is a sample with the same outputs, at least.
        broken: Names of outputs that hold NaN, to the number of samples for which they do.
    """

    different: PositiveCount
    repeats: PositiveCount
    broken: Mapping[str, PositiveCount]


@dataclass(frozen=True, repr=False)
class Accuracy(Result):
    """A model, usually in INT8, compared with FP32.

    Attributes:
        judged: How the model was run, in words.
        samples: Number of samples that the models were run on.
        top1: Share of samples whose largest logit is the label's; None where it was not measured.
        top5: Share of samples whose label is among the five largest logits; None where it was not measured.
        reference_top1: The same share as ``top1`` for FP32.
        reference_top5: The same share as ``top5`` for FP32.
        agreement: Share of samples where the model and FP32 give the same class; None where it was not
            measured.
        outputs: How close each output is to FP32's; empty where that was not asked for.
        measures: All metrics except those of single outputs, in the order in which they were asked for.
        also: The results of the other models on the same samples, by name.
        chosen: What was chosen by default, and why, in words: metrics, by the shapes of the outputs, and the
            layout of detections. None if nothing was chosen by default.
        judgement: Whether the samples meet the budget; None if there is no budget.
        judged_fingerprint: Identifies the model that was judged; of an engine its Q/DQ model, or its plan
            where it has none. None for other models beside it, for a float model with a table, for what
            :func:`tune` found, and for a model in results of version 0.2 and older.
        reference_fingerprint: Identifies the FP32 model, or the model before its weights were changed. None
            if no model says from which model it was made, and in results of trtint8 0.1.
        in_integers: What a backend computes in integers, with ``arithmetic``; else None.
        tensors: How close tensors inside the network are to FP32's; None where that was not asked for.
        warnings: What the calibration, the build and the comparison warned of; empty in results of version
            0.2 and older.
        picks_changed: How many picks of the network, such as those of ArgMax and TopK, differ from FP32's.
            There is one entry for each tensor that shows picks and that the model returns; an engine returns
            only its outputs. Empty if ``outputs`` is.
        name: The name of the model in tables: INT8, or float if no layer of it is in INT8.
        seen: What FP32's outputs say of the samples; None in results of version 0.2 and older.
    """

    judged: str
    samples: PositiveCount
    top1: Share | None
    top5: Share | None
    reference_top1: Share | None
    reference_top5: Share | None
    agreement: Share | None
    outputs: tuple[Fidelity, ...]
    measures: tuple[Measure, ...] = ()
    also: Mapping[str, Accuracy] = field(default_factory=dict)
    chosen: str | None = None
    judgement: Judgement | None = None
    judged_fingerprint: str | None = None
    reference_fingerprint: str | None = None
    in_integers: InIntegers | None = None
    tensors: ComparedTensors | None = None
    warnings: tuple[str, ...] = ()
    picks_changed: tuple[PicksChanged, ...] = ()
    name: str = VALIDATED
    seen: SeenSamples | None = None

    def __repr__(self) -> str:
        parts = (counted(self.samples, "sample"), accuracy_summary(self))
        return f"<Accuracy: {', '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        title = f"{counted(self.samples, 'sample')}; {self.name} is {self.judged}"
        return accuracy_html(title, self, self.name, (self.chosen,) if self.chosen else ())

    def to_pandas(self) -> Any:
        """Returns the metrics as a data frame.

        Returns:
            A ``pandas.DataFrame`` with one row per metric, the column ``metric``, and one column per model.
            Shares are in [0, 1]; the metrics of single outputs have the output's name behind a colon.

        Raises:
            UnsupportedError: pandas is not installed.

        Examples:
            >>> accuracy = trtint8.validate("int8.onnx", "heldout.npz", reference="model.onnx")
            >>> accuracy.to_pandas().columns.tolist()
            ['metric', 'FP32', 'INT8']
        """
        return accuracy_frame(self)


class InMetricUnit(Result):
    """A value of a metric and what it drops from FP32's, in the metric's unit, and of a share in per cent."""

    _also_in_json: ClassVar[tuple[str, ...]] = ("value_percent", "drop_percent")

    value: float | None
    drop: float | None
    is_share: bool

    @property
    def value_percent(self) -> float | None:
        """The metric of the model in per cent; None where the metric is no share."""
        return self.value if self.is_share else None

    @property
    def drop_percent(self) -> float | None:
        """The metric of FP32 minus the model's, in percentage points; None where the metric is no share."""
        return self.drop if self.is_share else None


#: What samples say of a budget.
Verdict: TypeAlias = Literal["kept", "uncertain", "missed", "unjudged"]


@dataclass(frozen=True)
class Judgement(InMetricUnit):
    """Whether the samples of a comparison keep a budget.

    Attributes:
        goal: What has to be kept, in words.
        fits: Whether these samples keep it; False where they cannot judge, and where it has to be certain and
            is not.
        value: The metric of the model, in its unit. Of a share it is in per cent, as ``value_percent`` is.
            None where the samples cannot judge.
        drop: The metric of FP32 minus the model's, in its unit; for ``max_error`` the error itself. Of a
            share it is in points, as ``drop_percent`` is. None for a metric that is infinite where outputs
            equal FP32's.
        step: The same as ``step_percent``.
        too_fine: Whether the largest drop is a part of a sample, which these samples cannot show.
        notes: The same as sentences.
        is_share: Whether the metric is a share; then ``value``, ``drop`` and ``step`` are in per cent. False
            in results of version 0.2 and older.
        unjudged: Why these samples cannot judge, as a sentence; None where they can.
        verdict: ``kept`` where the interval of the figure lies within the budget; ``uncertain`` where only
            the figure does; ``missed``; or ``unjudged``. None in results of version 0.2 and older.
        interval: The ends of the 95 % interval of ``value``; None where the samples do not tell.
        drop_interval: The ends of the 95 % interval of ``drop``; None where the samples do not tell.
        needed: About how many samples would decide; None where that is not known, or the figure is the limit
            itself.
    """

    _also_in_json: ClassVar[tuple[str, ...]] = (*InMetricUnit._also_in_json, "step_percent")

    goal: str
    fits: bool
    value: float | None
    drop: float | None
    step: float | None
    too_fine: bool
    notes: tuple[str, ...]
    is_share: bool = False
    unjudged: str | None = None
    verdict: Verdict | None = None
    interval: Interval | None = None
    drop_interval: Interval | None = None
    needed: PositiveCount | None = None

    @property
    def step_percent(self) -> float | None:
        """How many percentage points one sample is; None for a metric that counts no samples."""
        return self.step


#: What tables say of a metric that has no value on the samples.
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Measure(Result):
    """One metric of one model.

    Attributes:
        name: The name of the metric.
        value: The model's value: a share for ``topK`` and ``agreement``, else a number, which is in [0, 1]
            where the unit is ``%``.
        reference: The value of FP32; None for metrics that compare with FP32, such as ``agreement``.
        comparisons: The model's value minus that of FP32; for a metric that compares with FP32 the first
            model's value minus that of each other model. Empty where samples cannot be paired.
        title: What tables call the metric, with the output and what it is compared with; empty where the name
            says it.
        unit: The unit in which tables show the metric: ``%`` for a share and for another value in [0, 1],
            ``dB``, or empty where the unit is the metric's own.
        perfect: For a metric that compares with FP32, the value of a model whose outputs are FP32's; None for
            other metrics.
        same_answer: What the metric would be for a network that gives every sample the same answer; None
            where nothing tells.
    """

    name: str
    value: Share | float
    reference: Share | float | None = None
    comparisons: tuple[Comparison, ...] = ()
    title: str = ""
    unit: str = ""
    perfect: float | None = None
    same_answer: SameAnswer | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; an infinite value is the text ``inf`` or ``-inf``.

        None stands for a value that is not a number, and for a metric that FP32 has no value of.
        """
        values = {"value": self.value, "reference": self.reference}
        infinite = {name: str(value) for name, value in values.items() if value in (math.inf, -math.inf)}
        return {**super().to_json(), **infinite}


#: Fewer different samples show of no metric that FP32 is better than chance, as their intervals say. So many
#: show it of every network that has learned something.
_FEWEST_SAMPLES, _ENOUGH_SAMPLES = 6, 50


def nothing_shown(accuracy: Accuracy, measures: Sequence[Measure]) -> str | None:
    """Why samples do not show what a model loses, as a sentence; None where they may.

    A network that gives every sample the same answer has lost everything. Samples on which it does as well
    as FP32 show nothing.

    Args:
        accuracy: The comparison.
        measures: The metrics that matter.
    """
    seen = accuracy.seen
    if seen is None:
        return None
    for output, samples in seen.broken.items():
        return (
            f"{REFERENCE}'s output '{output}' has values that are not numbers for {samples:,} of "
            f"{counted(accuracy.samples, 'sample', ',')}, so nothing can be compared with it there; mend the "
            "network or its preprocessing, or leave these samples out"
        )
    if accuracy.samples == 1:
        return None
    if seen.different == 1:
        return (
            f"{REFERENCE} gives the same outputs for all {accuracy.samples:,} samples, so they do not show "
            "what INT8 costs; check the samples and how they are preprocessed"
        )
    for measure in measures:
        same, reference = measure.same_answer, reference_value(measure)
        if same is None or reference is None or same.is_beaten or seen.different < _FEWEST_SAMPLES:
            continue
        if reference <= same.value or seen.different >= _ENOUGH_SAMPLES:
            return not_beaten(measure, same, reference)
    return None


def not_beaten(measure: Measure, same: SameAnswer, reference: float) -> str:
    """That FP32 is no better than a network that gives every sample the same answer, as a sentence."""
    has, would_have = (_value(value, measure.unit) for value in (reference, same.value))
    found = (
        f"{measure_title(measure)}: a network that gives every sample the same answer would have {would_have}"
    )
    if measure.perfect is None:
        found += f", and {REFERENCE} has {has}"
    if reference > same.value:
        return f"{found}, which may be chance; give more samples, or check labels and preprocessing"
    return (
        f"{found}, so the samples do not show what INT8 costs; give samples with other answers, or check "
        "labels and preprocessing"
    )


def reference_value(measure: Measure) -> float | None:
    """What FP32 has of a metric: the value of equal outputs where the metric compares with FP32."""
    return as_number(measure.reference) if measure.perfect is None else measure.perfect


def percent(share: Share | None) -> str:
    """A share with its 95 % interval, in per cent; a dash where there is none."""
    return "-" if share is None else str(share)


def accuracy_rows(accuracy: Accuracy) -> list[tuple[str, ...]]:
    """The rows of a table: the metric, then its value for FP32, for the model and for each other model."""
    sides = (accuracy, *accuracy.also.values())
    rows = []
    for index, measure in enumerate(accuracy.measures):
        values = [_value(side.measures[index].value, measure.unit) for side in sides]
        rows.append((measure_title(measure), _value(measure.reference, measure.unit), *values))
    for index, output in enumerate(accuracy.outputs):
        rows += [
            (f"{figure.title} of '{output.name}'", "", *(figure.text(side.outputs[index]) for side in sides))
            for figure in FIGURES.values()
            if figure.in_output(output) is not None
        ]
    by_tensor = [{picks.tensor: picks for picks in side.picks_changed} for side in sides]
    for tensor, picks in {tensor: one for found in by_tensor for tensor, one in found.items()}.items():
        texts = (picks_text(found[tensor]) if tensor in found else "not comparable" for found in by_tensor)
        title = f"changed picks of {picks.operator} '{tensor}'"
        rows.append((title, f"{picks.picks:,}", *texts))
    return rows


def verdicts(accuracy: Accuracy, name: str) -> list[str]:
    """One sentence per comparison: how large the difference is, and whether it is more than chance.

    There is none of a metric of which the samples show nothing. What they say of a budget follows, where
    there is one.

    Args:
        accuracy: The result of the model called ``name``, with those of the others in ``also``.
        name: The model's name.
    """
    compared = [
        f"{measure_title(measure)}: {_verdict(model, comparison, measure_unit(measure))}"
        for model, side in {name: accuracy, **accuracy.also}.items()
        for measure in side.measures
        if not nothing_shown(accuracy, [measure])
        for comparison in measure.comparisons
    ]
    return [*compared, *(accuracy.judgement.notes if accuracy.judgement else ())]


def is_share(measure: Measure) -> bool:
    """True if a metric is a share, which is shown in per cent."""
    return measure.unit == PERCENT or isinstance(measure.value, Share)


def measure_unit(measure: Measure) -> str:
    """The unit of a metric's differences: points, dB, or none."""
    return "points" if is_share(measure) else measure.unit


def _verdict(name: str, comparison: Comparison, unit: str) -> str:
    factor, digits = (100, ".2f") if unit == "points" else (1, ".4g")
    size = factor * comparison.difference
    low, high = (f"{factor * end:+{digits}}" for end in comparison.interval)
    unit = unit and f" {unit}"
    where = f"{abs(size):{digits}}{unit} {'below' if size < 0 else 'above'}" if size else "level with"
    # Batches are compared from two on.
    counted = "1 sample" if comparison.pairs == 1 else f"{comparison.pairs:,} {comparison.unit}"
    p = f"{comparison.p_value:.2f}" if comparison.p_value >= 0.1 else f"{comparison.p_value:.2g}"
    meaning = f"more than chance on {counted}"
    if not comparison.significant:
        meaning = f"no difference that {counted} can show"
    return (
        f"{name} is {where} {comparison.against} (95 % interval {low} to {high}): {meaning} "
        f"({comparison.test} p = {p})"
    )


def measure_title(measure: Measure) -> str:
    """What tables call a metric."""
    if measure.title:
        return measure.title
    if measure.name == "agreement":
        return f"same class as {REFERENCE}"
    return re.sub(r"^top(\d+)", r"top-\1", measure.name)


def _value(value: Share | float | None, unit: str) -> str:
    if isinstance(value, Share):
        return percent(value)
    if value is None:
        return ""
    if math.isnan(value):
        return NOT_MEASURED
    if unit == PERCENT:
        return f"{100 * value:.2f} %"
    return f"{value:.2f} dB" if unit == DECIBELS else f"{value:.6g}"


def accuracy_summary(accuracy: Accuracy) -> str:
    """The first metric and the SQNR of the first output, on one line."""
    rows = accuracy_rows(accuracy)
    shown = [*rows[:1], *(row for row in rows[1:] if row[0].startswith(FIGURES["sqnr"].title))][:2]
    return ", ".join(f"{title} {_short(value)}{_beside(reference)}" for title, reference, value, *_ in shown)


def accuracy_html(title: str, accuracy: Accuracy, name: str, notes: tuple[str, ...] = ()) -> str:
    """A table with one row per metric, and what the differences mean.

    Args:
        title: The title above the table.
        accuracy: The comparison.
        name: What the model that is compared is called.
        notes: Sentences below the table, before those on the differences.
    """
    columns = ("metric", REFERENCE, name, *accuracy.also)
    return html_table(title, columns, accuracy_rows(accuracy), (*notes, *verdicts(accuracy, name)))


def accuracy_frame(accuracy: Accuracy) -> Any:
    """A ``pandas.DataFrame`` with one row per metric and one column per model.

    Args:
        accuracy: The comparison.

    Raises:
        UnsupportedError: pandas is not installed.
    """
    names, references = _numbers(accuracy), {one.name: as_number(one.reference) for one in accuracy.measures}
    columns = {REFERENCE: references, VALIDATED: names}
    columns |= {name: _numbers(side) for name, side in accuracy.also.items()}
    values = {model: [numbers.get(name) for name in names] for model, numbers in columns.items()}
    return data_frame({"metric": list(names), **values})


def _numbers(accuracy: Accuracy) -> dict[str, float | None]:
    """All figures of a model without their intervals, by name."""
    return {
        **{measure.name: as_number(measure.value) for measure in accuracy.measures},
        **{
            f"{figure.name}:{output.name}": value
            for figure in FIGURES.values()
            for output in accuracy.outputs
            if (value := figure.in_output(output)) is not None
        },
        **{f"picks_changed:{picks.tensor}": picks.share for picks in accuracy.picks_changed},
    }


def _short(value: str) -> str:
    """A value without its interval."""
    return value.split(" (")[0]


def _beside(reference: str) -> str:
    return f" ({REFERENCE} {_short(reference)})" if reference else ""
