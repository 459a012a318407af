"""The score of a candidate: one metric's value, how far it is below FP32's, and the SQNR."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtint8.validation.accuracy import Accuracy
from trtint8.validation.fidelity import OUTPUT_METRICS, Fidelity
from trtint8.validation.measurand import PERCENT
from trtint8.validation.measure import Measure
from trtint8.validation.metrics import Metric
from trtint8.validation.significance import Share

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
            outputs. None where that is infinite, or was not written by an earlier version.
        sqnr_db: Signal to quantization noise in decibels of the output where it is lowest.
        value: The metric of the candidate: in per cent for a share, else in the metric's unit. None where an
            earlier version has not written it.
    """

    drop: float | None
    sqnr_db: float
    value: float | None = None


def score_of(accuracy: Accuracy, metric: Metric) -> Score:
    """The score of a model by one metric.

    Args:
        accuracy: The comparison of the model with FP32, by this metric and ``sqnr``.
        metric: The metric. One of single outputs is taken from the output where it is worst.
    """
    sqnr_db = _worst(accuracy.outputs, "sqnr")
    if isinstance(metric, str) and metric in OUTPUT_METRICS:
        value, reference, factor = _worst(accuracy.outputs, metric), EQUAL_OUTPUTS[metric], 1.0
    else:
        (measure,) = accuracy.measures
        value, reference = _number(measure.value), _reference(measure)
        factor = 100.0 if measure.unit == PERCENT else 1.0
    drop = factor * (value - reference if metric == LARGEST_ERROR else reference - value)
    return Score(drop if math.isfinite(reference) else None, sqnr_db, factor * value)


def _worst(outputs: tuple[Fidelity, ...], metric: str) -> float:
    """The value of the output where a metric of single outputs is worst.

    An output whose value is not a number is the worst one.
    """
    attribute = "sqnr_db" if metric == "sqnr" else metric
    values = [value for output in outputs if (value := getattr(output, attribute)) is not None]
    if any(math.isnan(value) for value in values):
        return math.nan
    return float(max(values) if metric == LARGEST_ERROR else min(values))


def _reference(measure: Measure) -> float:
    """The value that a metric drops from."""
    return _number(measure.reference) if measure.perfect is None else measure.perfect


def _number(value: Share | float | None) -> float:
    if value is None:
        return math.nan
    return value.value if isinstance(value, Share) else value
