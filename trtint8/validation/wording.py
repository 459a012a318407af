"""A comparison in words and tables, for people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Protocol

from trtint8.validation.fidelity import Fidelity
from trtint8.validation.judgement import Judgement
from trtint8.validation.measurand import DECIBELS, PERCENT
from trtint8.validation.measure import REFERENCE, Measure
from trtint8.validation.significance import Comparison, Share


class Compared(Protocol):
    """What is shown of a comparison; see :class:`trtint8.validation.accuracy.Accuracy`."""

    @property
    def samples(self) -> int:
        """Number of samples that the models were run on."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All metrics except those of single outputs."""

    @property
    def outputs(self) -> tuple[Fidelity, ...]:
        """How close each output is to FP32's."""

    @property
    def also(self) -> Mapping[str, Compared]:
        """The results of the other models, by name."""

    @property
    def judgement(self) -> Judgement | None:
        """Whether a budget is kept; None where there is none."""


def percent(share: Share | None) -> str:
    """A share with its 95 % interval, in per cent; a dash where there is none."""
    if share is None:
        return "-"
    low, high = share.interval
    return f"{100 * share.value:.2f} % ({100 * low:.1f}-{100 * high:.1f})"


def accuracy_rows(accuracy: Compared) -> list[tuple[str, ...]]:
    """The rows of a table: the metric, then its value for FP32, for the model and for each other model."""
    sides = (accuracy, *accuracy.also.values())
    rows = []
    for index, measure in enumerate(accuracy.measures):
        values = [_value(side.measures[index].value, measure.unit) for side in sides]
        rows.append((_title(measure), _value(measure.reference, measure.unit), *values))
    for index, output in enumerate(accuracy.outputs):
        columns = [side.outputs[index] for side in sides]
        name = f"'{output.name}'"
        rows.append((f"SQNR of {name}", "", *(_figure(column.sqnr_db, ".2f", " dB") for column in columns)))
        rows.append((f"cosine of {name}", "", *(_figure(column.cosine, ".6f") for column in columns)))
        rows.append(
            (f"largest error of {name}", "", *(_figure(column.max_error, ".4g") for column in columns))
        )
        if output.token_cosine is not None:
            cosines = (f"{column.token_cosine:.6f}" for column in columns)
            rows.append((f"token cosine of {name}", "", *cosines))
    return rows


def _figure(value: float, digits: str, unit: str = "") -> str:
    """A figure of an output; outputs of different shapes, and values that are no numbers, have none."""
    return "not comparable" if math.isnan(value) else f"{value:{digits}}{unit}"


def verdicts(accuracy: Compared, name: str) -> list[str]:
    """One sentence per comparison: how large the difference is, and whether it is more than chance.

    What the samples say of a budget follows, where there is one.

    Args:
        accuracy: The result of the model called ``name``, with those of the others in ``also``.
        name: The model's name.
    """
    compared = [
        f"{_title(measure)}: {_verdict(model, comparison, _unit(measure))}"
        for model, side in {name: accuracy, **accuracy.also}.items()
        for measure in side.measures
        for comparison in measure.comparisons
    ]
    return [*compared, *(accuracy.judgement.notes if accuracy.judgement else ())]


def _unit(measure: Measure) -> str:
    """The unit of a metric's differences: points, dB, or none."""
    is_share = measure.unit == PERCENT or isinstance(measure.value, Share)
    return "points" if is_share else measure.unit


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


def _title(measure: Measure) -> str:
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
    if unit == PERCENT:
        return f"{100 * value:.2f} %"
    return f"{value:.2f} dB" if unit == DECIBELS else f"{value:.6g}"
