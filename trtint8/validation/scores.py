"""The score of a candidate: one metric's value, how far it is below FP32's, and the SQNR."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtint8.validation.fidelity import OUTPUT_METRICS, Fidelity
from trtint8.validation.measurand import PERCENT
from trtint8.validation.measure import Measure
from trtint8.validation.metrics import Metric, metric_name
from trtint8.validation.significance import Share
from trtint8.validation.wording import Compared

#: The metric of single outputs that is better the smaller it is.
LARGEST_ERROR = "max_error"

#: What metrics of single outputs are where outputs equal FP32's.
EQUAL_OUTPUTS = {"sqnr": math.inf, "cosine": 1.0, LARGEST_ERROR: 0.0, "token_cosine": 1.0}


@dataclass(frozen=True)
class Score:
    """How accurate a candidate is on the samples that are tuned on.

    Attributes:
        drop: The metric of FP32 minus the candidate's: percentage points for a share, else the metric's unit;
            for ``max_error`` the error itself. A metric that compares with FP32 drops from the value of equal
            outputs. None where that is infinite, or was not written by an earlier version. Zero where the
            candidate and FP32 have the same value, even if it is infinite; infinite where only FP32's is.
        sqnr_db: Signal to quantization noise in decibels of the output where it is lowest; NaN where it was
            not measured.
        value: The metric of the candidate: in per cent for a share, else in the metric's unit. None where an
            earlier version has not written it.
    """

    drop: float | None
    sqnr_db: float
    value: float | None = None


def measure_of(accuracy: Compared, metric: Metric) -> Measure:
    """The result of one metric, which is none of single outputs."""
    name = metric_name(metric)
    return next(measure for measure in accuracy.measures if measure.name == name)


def score_of(accuracy: Compared, metric: Metric) -> Score:
    """The score of a model by one metric.

    Args:
        accuracy: The comparison of the model with FP32, by this metric among others.
        metric: The metric. One of single outputs is taken from the output where it is worst.
    """
    sqnr_db = _worst(accuracy.outputs, "sqnr")
    if not (isinstance(metric, str) and metric in OUTPUT_METRICS):
        measure = measure_of(accuracy, metric)
        return Score(_drop(measure), sqnr_db, _value(measure))
    value, equal = _worst(accuracy.outputs, metric), EQUAL_OUTPUTS[metric]
    drop = value - equal if metric == LARGEST_ERROR else equal - value
    return Score(drop if math.isfinite(equal) else None, sqnr_db, value)


def _worst(outputs: tuple[Fidelity, ...], metric: str) -> float:
    """The value of the output where a metric of single outputs is worst.

    An output whose value is not a number is the worst one.
    """
    attribute = "sqnr_db" if metric == "sqnr" else metric
    values = [value for output in outputs if (value := getattr(output, attribute)) is not None]
    if not values or any(math.isnan(value) for value in values):
        return math.nan
    return float(max(values) if metric == LARGEST_ERROR else min(values))


def _value(measure: Measure) -> float:
    """A metric's value: in per cent for a share, else in the metric's unit."""
    if isinstance(measure.value, Share):
        return 100 * measure.value.count / measure.value.total
    return _factor(measure) * measure.value


def _drop(measure: Measure) -> float | None:
    """The value that a metric drops from minus its value; None where equal outputs have no finite one."""
    reference = measure.reference if measure.perfect is None else measure.perfect
    if reference is None:
        return math.nan
    if isinstance(measure.value, Share):
        # By counts: 0.81 - 0.80 in floating point is more than one point.
        total = measure.value.total
        count = reference.count if isinstance(reference, Share) else reference * total
        return 100 * (count - measure.value.count) / total
    if measure.perfect is not None and not math.isfinite(measure.perfect):
        return None
    number = reference.value if isinstance(reference, Share) else reference
    # Where both are infinite, their difference is not a number.
    return 0.0 if number == measure.value else _factor(measure) * (number - measure.value)


def _factor(measure: Measure) -> float:
    return 100.0 if measure.unit == PERCENT else 1.0
