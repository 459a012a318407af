"""What `trtint8 tune` tried: the accuracy of every candidate, and the share of the arithmetic in INT8."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtint8.report.text import figure
from trtint8.tuning.tune import TuningLog
from trtint8.validation.measurand import DECIBELS


@dataclass(frozen=True)
class TriedCandidate:
    """One candidate.

    Attributes:
        what: What was tried, in words.
        int8_share: The share of the network's arithmetic that is not left in float, in [0, 1].
        in_float: Number of layers in float.
        value: The metric's value, in the unit of :class:`Tried`; NaN where it is not known.
        shown: The value as a text.
        taken: Whether the search continued from this candidate.
        chosen: Whether this candidate is the result.
    """

    what: str
    int8_share: float
    in_float: int
    value: float
    shown: str
    taken: bool
    chosen: bool


@dataclass(frozen=True)
class Tried:
    """All candidates.

    Attributes:
        metric: The metric's name.
        unit: The unit of its values: ``%``, ``dB``, or empty for its own.
        goal: What the result had to keep, in words; empty where it is not known.
        candidates: The candidates, in the order in which they were tried.
    """

    metric: str
    unit: str
    goal: str
    candidates: tuple[TriedCandidate, ...]

    @property
    def drawn(self) -> tuple[TriedCandidate, ...]:
        """The candidates that have a place in a chart: those whose value is finite."""
        return tuple(candidate for candidate in self.candidates if math.isfinite(candidate.value))

    @property
    def chosen(self) -> TriedCandidate | None:
        """The result; None where the log does not say which it is."""
        return next((candidate for candidate in self.candidates if candidate.chosen), None)


def make_tried(log: TuningLog | None) -> Tried | None:
    """Gathers what was tried; None where there is no log, or nothing was tried.

    Logs of earlier versions have no value of the metric for some candidates; then all are shown by the SQNR.
    """
    if log is None or not log.trials:
        return None
    by_metric = bool(log.metric) and all(trial.score.value is not None for trial in log.trials)
    metric, unit = (log.metric, log.unit) if by_metric else ("sqnr", DECIBELS)
    candidates = []
    for number, trial in enumerate(log.trials):
        value = trial.score.value if by_metric else trial.score.sqnr_db
        assert value is not None  # by_metric says so
        candidates.append(
            TriedCandidate(
                trial.what,
                1.0 - trial.float_cost,
                trial.keep_float,
                value,
                figure(value, unit),
                trial.taken,
                number == log.chosen,
            )
        )
    return Tried(metric, unit, log.goal, tuple(candidates))
