"""How much accuracy may be lost: the budget as it was asked for, and the goal that it is for a network.

The score of a candidate: one metric's value, how far it is below FP32's, and the SQNR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from calibrators.checks import is_number, warn_user
from calibrators.errors import Argument, CalibrationDataError, counted
from trtint8.validation.accuracy import (
    REFERENCE,
    Accuracy,
    InMetricUnit,
    Judgement,
    Measure,
    Verdict,
    is_share,
    not_beaten,
    nothing_shown,
    reference_value,
)
from trtint8.validation.batch import BatchForm
from trtint8.validation.fidelity import FIGURES, Figure, figure_of
from trtint8.validation.meters import DECIBELS, PERCENT, HitMeter, Measurand, PartsMeter
from trtint8.validation.metrics import (
    Metric,
    check_metrics,
    layout_note,
    measurands,
    metric_name,
    usual_metrics,
)
from trtint8.validation.significance import (
    FEWEST_UNITS,
    Interval,
    Share,
    paired_interval,
    share_interval,
)

#: The largest drop where no limit is given, by the metric's unit: percentage points, or decibels.
_USUAL_DROP = {PERCENT: 1.0, DECIBELS: 0.5}

#: The least value in decibels where no limit is given and that of equal outputs is infinite.
_USUAL_MINIMUM_DB = 20.0

#: The part of a figure, or of a limit, that is taken for rounding: 0.8 - 0.79 is more than 0.01 in float64.
_ROUNDING = 1e-9

#: How many times as wide as the room an interval may be to say how many samples would decide.
_WIDEST = 10

#: The largest share, in per cent.
_MOST_PERCENT = 100


@dataclass(frozen=True)
class Goal:
    """What the search has to keep, by a metric that fits the network.

    Attributes:
        metric: What accuracy is measured by.
        name: The metric's name.
        unit: The unit of the metric: ``%``, ``dB``, or empty for its own.
        max_drop: The largest drop from FP32's value, in points where the unit is ``%``; None for no limit.
        minimum: The least value, in the metric's unit; None for no limit.
        chosen: Which metric was chosen by the shapes of the outputs, and why, in words; None where it was
            asked for.
        layout: In which layout detections are read that nobody has named, in words; None where none are.
        is_usual: Whether nobody has asked for the limits, so that samples may be too few for them.
        certain: Whether the 95 % interval of the metric has to lie within the limits.
    """

    metric: Metric
    name: str
    unit: str
    max_drop: float | None
    minimum: float | None
    chosen: str | None = None
    layout: str | None = None
    is_usual: bool = False
    certain: bool = False

    def fits(self, score: Score) -> bool:
        """Whether a score is within the limits, for certain where that is asked for."""
        return self._keeps(score.at_worst if self.certain else score)

    def _keeps(self, score: Score) -> bool:
        drop, value = score.drop, score.value
        # A drop is rounded as the values are that it is the difference of.
        rounding = _ROUNDING * abs(value or 0.0)
        dropped = self.max_drop is not None and not (
            drop is not None and _at_most(drop, self.max_drop, rounding)
        )
        low = self.minimum is not None and not (value is not None and _at_most(self.minimum, value))
        return not (dropped or low)

    def check_reachable(self, score: Score) -> None:
        """Refuses a least value that FP32 itself does not have, and a model does not have by chance.

        Args:
            score: The score of the model.

        Raises:
            CalibrationDataError: No layer in float would bring the model there.
        """
        if self.minimum is None or score.value is None or score.drop is None or self.fits(score):
            return
        reference = score.value + score.drop
        if reference < self.minimum and not _at_most(self.minimum, reference):
            has, least = (_figure(value, self.unit) for value in (reference, self.minimum))
            raise CalibrationDataError(
                f"FP32 itself has {self.name} {has} on the samples to tune on, and the least value is "
                f"{least}; give a lower one as {Argument('minimum')}, or a drop from FP32's value as "
                f"{Argument('max_drop')}"
            )

    def __str__(self) -> str:
        unit = self.unit and f" {self.unit}"
        parts = []
        if self.max_drop is not None:
            most = _points(self.max_drop) if self.unit == PERCENT else f"{self.max_drop:g}{unit}"
            drop = "at most" if is_error(self.metric) else "a drop of at most"
            parts.append(f"{drop} {most}")
        if self.minimum is not None:
            parts.append(f"at least {self.minimum:g}{unit}")
        return f"{self.name}: {' and '.join(parts)}{', for certain' if self.certain else ''}"

    def judge(
        self, accuracy: Accuracy, interval: Interval | None = None, decided: Score | None = None
    ) -> Judgement:
        """What the samples of a comparison say of the goal.

        Args:
            accuracy: The comparison of the model with FP32, by this metric among others.
            interval: The ends of the 95 % interval of the metric; None where the samples do not tell.
            decided: The score of the model on other samples, by which it was chosen; None where there are
                none.
        """
        score = score_of(accuracy, self.metric, interval)
        kept, samples = self._keeps(score), counted(accuracy.samples, "sample")
        step = self._step(accuracy)
        finer = self._finer_than(step, accuracy.samples)
        budget = replace(self, certain=False)
        if why := self._why_unjudged(accuracy, score) or (finer if kept and not self.is_usual else None):
            note = f"on {samples} the budget ({budget}) cannot be judged: {why}"
            too_fine = why == finer
            return Judgement(
                str(self), False, None, None, step, too_fine, (note,), score.is_share, why, "unjudged"
            )
        verdict: Verdict = "missed"
        if kept:
            verdict = "kept" if self._keeps(score.at_worst) else "uncertain"
        needed = self._needed(accuracy.samples, score) if verdict == "uncertain" else None
        word = "kept, but not for certain" if verdict == "uncertain" else verdict
        found = f"on {samples} the budget ({budget}) is {word}: {self.describe(score)}"
        if verdict == "uncertain":
            found += f"; about {needed:,} samples would decide" if needed else "; more samples may decide"
        notes = [found]
        if finer:
            notes.append(finer)
        if decided is not None and not kept and self._keeps(decided):
            notes.append(f"the samples that decided keep it ({self.describe(decided)})")
        return Judgement(
            str(self),
            self.fits(score),
            score.value,
            score.drop,
            step,
            finer is not None,
            tuple(notes),
            score.is_share,
            None,
            verdict,
            score.interval,
            score.drop_interval,
            needed,
        )

    def _needed(self, samples: int, score: Score) -> int | None:
        """About how many samples have an interval within the limits around the same figure.

        The width of an interval falls with the root of the number of samples. Where it is far too wide, these
        say nothing of its root.
        """
        limits = []
        if self.max_drop is not None:
            limits.append((self.max_drop, score.drop, score.at_worst.drop))
        if self.minimum is not None:
            limits.append((self.minimum, score.value, score.at_worst.value))
        ratios = []
        for limit, figure, worst in limits:
            if figure is None or worst is None or figure == limit or not math.isfinite(worst - figure):
                return None
            ratios.append(abs((worst - figure) / (limit - figure)))
        if max(ratios) > _WIDEST:
            return None
        needed = samples * max(ratios) ** 2
        step = int(10 ** max(0, math.floor(math.log10(needed)) - 1))  # two digits count
        return math.ceil(needed / step * (1 - _ROUNDING)) * step

    def check_samples(self, samples: int, form: BatchForm) -> None:
        """Refuses samples to judge by that are too few for the largest drop, before long work begins.

        Args:
            samples: How many there are.
            form: The form of a batch of them.

        Raises:
            CalibrationDataError: One of them is more than the largest drop.
        """
        if self.is_usual:
            return
        counts = any(isinstance(one.start(), HitMeter) for one in measurands([self.metric], form))
        if counts and (finer := self._finer_than(100 / samples, samples)):
            raise CalibrationDataError(f"{finer}, or allow a larger drop as {Argument('max_drop')}")

    def check_certain(self, samples: int, form: BatchForm) -> None:
        """Refuses what no network can keep for certain on so many samples, before a search in vain.

        Args:
            samples: How many there are to decide or to judge by.
            form: The form of a batch of them.

        Raises:
            CalibrationDataError: The metric has no interval, or that of a network that loses nothing goes
                beyond the limits.
        """
        if not self.certain:
            return
        otherwise = f"or leave {Argument('certain')} out"
        asked = measurands([self.metric], form)  # none for a metric of single outputs
        if is_error(self.metric) or not all(isinstance(one.start(), PartsMeter) for one in asked):
            raise CalibrationDataError(
                f"nothing tells how far '{self.name}' of other samples may be from that of these, so it is "
                f"never certain; take another metric, {otherwise}"
            )
        enough = samples >= FEWEST_UNITS
        for one in asked:
            if isinstance(one.start(), HitMeter):
                # Most is known of a difference where FP32 is right on one half.
                half, lost = samples / 2, 1 - share_interval(1.0, samples)[0]
                dropped = lost if one.relative else -paired_interval(half, 0, 0, half)[0]
                best = Score(100 * dropped, math.inf, 100 - 100 * lost)
                enough = self._keeps(best)
        if not enough:
            have = counted(samples, "sample")
            raise CalibrationDataError(
                f"{have} cannot show that the budget ({self}) is kept, even if nothing is lost; give more "
                f"samples, a wider budget, {otherwise}"
            )

    def _finer_than(self, step: float | None, samples: int) -> str | None:
        """That the largest drop is a part of a sample, as a sentence; None where it is not.

        Args:
            step: How many points one sample is; None for a metric that counts no samples.
            samples: How many samples there are.
        """
        if step is None or self.max_drop is None or not 0 < self.max_drop < step:
            return None
        return (
            f"the budget of {_points(self.max_drop)} is finer than {counted(samples, 'sample')} can show, as "
            f"one sample is {_points(step, '.3g')}; judge by {math.ceil(100 / self.max_drop):,} different "
            "samples or more"
        )

    def _why_unjudged(self, accuracy: Accuracy, score: Score) -> str | None:
        """Why samples cannot judge the goal, as a sentence; None where they can.

        They have to be such that a network that gives every sample the same answer misses the goal.
        """
        measure = _measure_of(accuracy, self.metric)
        if why := nothing_shown(accuracy, [measure]):
            return why
        if score.value is not None and math.isnan(score.value):
            return (
                f"{self.name} has no value on them, as values are not numbers, shapes differ from FP32's, or "
                "nothing is detected; give other samples, or name another metric"
            )
        if accuracy.seen and accuracy.seen.different == 1:
            return "one sample does not show what others lose; give more samples"
        same = measure.same_answer
        if same is None:
            return None
        reference = reference_value(measure)
        if not same.is_beaten and reference is not None:
            return not_beaten(measure, same, reference)
        its_own = replace(measure, value=same.value)
        # The intervals are those of the network that is judged.
        its_score = Score(_drop(its_own), math.nan, _value(its_own), score.is_share)
        if self._keeps(its_score):
            return (
                "a network that gives every sample the same answer keeps it too, with "
                f"{self.describe(its_score)}; give a stricter budget, or samples with other answers"
            )
        return None

    def _step(self, accuracy: Accuracy) -> float | None:
        """How many points one sample is; None for a metric that counts no samples."""
        value = _measure_of(accuracy, self.metric).value
        repeats = accuracy.seen.repeats if accuracy.seen else 1
        return 100 * repeats / value.total if isinstance(value, Share) else None

    def describe(self, score: Score) -> str:
        """A score in words, with the intervals of what is limited."""
        value = "" if score.value is None else f"{self.name} {_figure(score.value, self.unit)}"
        value += _interval(score.interval, self.unit) if self.minimum is not None else ""
        if score.drop is None or is_error(self.metric):
            return value
        drop = _figure(score.drop, "points" if self.unit == PERCENT else self.unit)
        drop += _interval(score.drop_interval, self.unit) if self.max_drop is not None else ""
        return f"drop {drop}, {value}"

    def limit_of_value(self, score: Score) -> float | None:
        """The limit of the metric itself, beside a score of the same samples; None where none is known."""
        if is_error(self.metric):
            return self.max_drop
        limits = [] if self.minimum is None else [self.minimum]
        if self.max_drop is not None and score.drop is not None and score.value is not None:
            limits.append(score.value + score.drop - self.max_drop)
        return max(limits, default=None)


def judged(
    accuracy: Accuracy,
    goal: Goal | None,
    interval: Interval | None = None,
    decided: Score | None = None,
) -> Accuracy:
    """A comparison with what its samples say of a goal, where there is one.

    Args:
        accuracy: The comparison.
        goal: The goal; None for none.
        interval: See :meth:`Goal.judge`.
        decided: See :meth:`Goal.judge`.

    Warns:
        UserWarning: The samples do not show what INT8 costs, or cannot judge the goal.
    """
    doubt = nothing_shown(accuracy, accuracy.measures[:1])
    judgement = goal.judge(accuracy, interval, decided) if goal else None
    if doubt:
        warn_user(doubt)
    if judgement and judgement.unjudged not in (None, doubt):
        warn_user(judgement.notes[0])
    return replace(accuracy, judgement=judgement)


@dataclass(frozen=True)
class Budget:
    """How much accuracy may be lost.

    Attributes:
        max_drop: The largest drop from FP32's value, in the metric's unit: percentage points for shares; for
            ``max_error`` the largest error.
        metric: What accuracy is measured by, the larger the better (except for ``max_error``). None takes
            what fits the network: top-1 or agreement for class scores, mean average precision for detections
            with true boxes as labels, else SQNR.
        minimum: The least value, in the metric's unit: per cent for shares.
        certain: Whether the 95 % interval of the metric has to lie within the limits.

    Raises:
        CalibrationDataError: ``max_drop`` is negative or not a number, ``minimum`` is not a number, or the
            metric is unknown or none.
    """

    max_drop: float | None = None
    metric: Metric | None = None
    minimum: float | None = None
    certain: bool = False

    def __post_init__(self) -> None:
        if self.max_drop is not None and not (is_number(self.max_drop) and self.max_drop >= 0):
            raise CalibrationDataError(f"{Argument('max_drop')} is {self.max_drop!r}; give 0 or more")
        if self.minimum is not None and not (is_number(self.minimum) and not math.isnan(self.minimum)):
            raise CalibrationDataError(
                f"the least value is not a number but {self.minimum!r}; give a number or leave it out"
            )
        if self.metric is not None:
            check_metrics([self.metric])

    def goal(self, form: BatchForm) -> Goal:
        """What the budget means for a network.

        Where neither limit was given, a share may drop by one point, and a level by half a decibel where FP32
        has one, else it has to be 20 dB.

        Args:
            form: The form of a batch.

        Returns:
            The goal.

        Raises:
            CalibrationDataError: The metric does not apply to the outputs or the labels, or the limits do
                not apply to the metric.
        """
        metric, chosen = self.metric, None
        if metric is None:
            choice = usual_metrics(form)
            metric, chosen = choice.budget, choice.reason
        measured = figure_of(metric) or measurands([metric], form)[0]
        has_drop = measured.perfect is None or math.isfinite(measured.perfect)
        if chosen and self.max_drop is not None and not has_drop:
            raise CalibrationDataError(
                f"{chosen}; SQNR has no drop, because it is infinite where outputs equal FP32's: give its "
                f"least value in decibels as {Argument('minimum')}, such as 30, or name a metric that has one"
            )
        limits = self._limits(metric, measured, has_drop=has_drop)
        layout, is_usual = layout_note([metric], form), self.max_drop is None and self.minimum is None
        return Goal(metric, measured.name, measured.unit, *limits, chosen, layout, is_usual, self.certain)

    def _limits(
        self, metric: Metric, measured: Figure | Measurand, *, has_drop: bool
    ) -> tuple[float | None, float | None]:
        name, unit = measured.name, measured.unit
        if self.minimum is not None and is_error(metric):
            raise CalibrationDataError(
                f"metric '{name}' is better the smaller it is, so it has no least value; give the largest "
                f"error as {Argument('max_drop')}"
            )
        if self.minimum is not None and unit == PERCENT:
            given = f"metric '{name}' is a share, and the least value is {self.minimum:g} per cent; give"
            if self.minimum > _MOST_PERCENT:
                raise CalibrationDataError(f"{given} at most {_MOST_PERCENT} as {Argument('minimum')}")
            if 0 < self.minimum <= 1:
                percent = f"{100 * self.minimum:g}"
                raise CalibrationDataError(f"{given} per cent as {Argument('minimum')}, such as {percent}")
        if self.max_drop is not None and not has_drop:
            raise CalibrationDataError(
                f"metric '{name}' has no drop, because it is infinite where outputs equal FP32's; give its "
                f"least value in decibels as {Argument('minimum')}, such as 30, or another metric"
            )
        if self.max_drop is not None or self.minimum is not None:
            return self.max_drop, self.minimum
        if not has_drop:
            return None, _USUAL_MINIMUM_DB
        if is_error(metric):
            raise CalibrationDataError(
                f"metric '{name}' has the unit of the outputs; give the largest error allowed as "
                f"{Argument('max_drop')}"
            )
        if unit not in _USUAL_DROP:
            raise CalibrationDataError(
                f"metric '{name}' has a unit of its own; say what is enough in it, with "
                f"{Argument('max_drop')} or {Argument('minimum')}"
            )
        return _USUAL_DROP[unit], None


def _at_most(number: float, limit: float, rounding: float = 0.0) -> bool:
    """Whether a number is at most a limit, but for rounding."""
    return number <= limit or math.isclose(number, limit, rel_tol=_ROUNDING, abs_tol=rounding)


def _figure(value: float, unit: str) -> str:
    if not unit:
        return f"{value:.6g}"
    return f"{value:.2f} {unit}"


def _interval(ends: Interval | None, unit: str) -> str:
    """The ends of an interval behind a figure, without their unit; empty where there are none."""
    form = ".2f" if unit else ".6g"
    return f" (95 %: {ends[0]:{form}} to {ends[1]:{form}})" if ends else ""


def _points(number: float, form: str = "g") -> str:
    return f"{number:{form}} point{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Score(InMetricUnit):
    """How accurate a candidate is on the samples that are tuned on.

    Attributes:
        drop: The metric of FP32 minus the candidate's, in the metric's unit; for ``max_error`` the error
            itself. Of a share it is in points, as ``drop_percent`` is. A metric that compares with FP32 drops
            from the value of equal outputs. None where that is infinite, or was not written by an earlier
            version. Zero where the candidate and FP32 have the same value, even if it is infinite; infinite
            where only FP32's is.
        sqnr_db: Signal to quantization noise in decibels of the output where it is lowest; NaN where it was
            not measured.
        value: The metric of the candidate, in its unit. Of a share it is in per cent, as ``value_percent``
            is. None where an earlier version has not written it.
        is_share: Whether the metric is a share; then ``value`` and ``drop`` are in per cent. False where
            version 0.2 or an older one has written the score.
        interval: The ends of the 95 % interval of ``value``; None where the samples do not tell.
        drop_interval: The ends of the 95 % interval of ``drop``; None where the samples do not tell.
    """

    drop: float | None
    sqnr_db: float
    value: float | None = None
    is_share: bool = False
    interval: Interval | None = None
    drop_interval: Interval | None = None

    def raised(self, by: float) -> Score:
        """The score with a value that is so much higher, and intervals of the same widths."""
        value = None if self.value is None else self.value + by
        ends = self.interval and (self.interval[0] + by, self.interval[1] + by)
        drop = None if self.drop is None else self.drop - by
        lost = self.drop_interval and (self.drop_interval[0] - by, self.drop_interval[1] - by)
        return replace(self, value=value, drop=drop, interval=ends, drop_interval=lost)

    @property
    def at_worst(self) -> Score:
        """The score at the worse ends of its intervals; without those figures that have none."""
        value = self.interval[0] if self.interval else None
        drop = self.drop_interval[1] if self.drop_interval else None
        return replace(self, value=value, drop=drop)


def _measure_of(accuracy: Accuracy, metric: Metric) -> Measure:
    """The result of one metric; one of single outputs is that of the output where it is worst."""
    if figure := figure_of(metric):
        worst = figure.worst(accuracy.outputs)
        return Measure(figure.name, worst, title=figure.title, unit=figure.unit, perfect=figure.perfect)
    name = metric_name(metric)
    return next(measure for measure in accuracy.measures if measure.name == name)


def score_of(accuracy: Accuracy, metric: Metric, interval: Interval | None = None) -> Score:
    """The score of a model by one metric.

    Args:
        accuracy: The comparison of the model with FP32, by this metric among others.
        metric: The metric. One of single outputs is taken from the output where it is worst.
        interval: The ends of the 95 % interval of the metric; None where the samples do not tell.
    """
    measure = _measure_of(accuracy, metric)
    drop, factor = _drop(measure), _factor(measure)
    if drop is not None and is_error(metric):
        drop = abs(drop)
    perfect = math.inf if measure.perfect is None else measure.perfect
    ends = drop_ends = None
    if interval is not None:
        most = min(perfect, 1.0) if factor > 1 else perfect
        ends = factor * interval[0], factor * min(interval[1], most)
        against = [one.interval for one in measure.comparisons if one.against == REFERENCE]
        if math.isfinite(perfect):
            drop_ends = factor * perfect - ends[1], factor * perfect - ends[0]
        elif against and against[0][0] < against[0][1]:  # no difference at all tells nothing of others
            drop_ends = -factor * against[0][1], -factor * against[0][0]
    worst = FIGURES["sqnr"].worst(accuracy.outputs)
    return Score(drop, worst, _value(measure), is_share(measure), ends, drop_ends)


def is_error(metric: Metric) -> bool:
    """True if a metric is better the smaller it is."""
    figure = figure_of(metric)
    return figure is not None and figure.smaller_is_better


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
    return 100.0 if is_share(measure) else 1.0
