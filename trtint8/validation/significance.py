"""Shares with their intervals, and tests whether models differ by more than chance on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, overload

import numpy as np

from calibrators.data.feeds import Flags, Floats, Indices
from calibrators.records import Count, PositiveCount, Probability, Result

#: The 97.5 % quantile of the standard normal distribution, for 95 % intervals.
_Z95 = 1.959963984540054

#: The p-value below which a difference is more than chance.
_SIGNIFICANT = 0.05

#: Resamples per bootstrap: enough for the ends of a 95 % interval, as Efron and Tibshirani advise.
_RESAMPLES = 2000

#: Of fewer samples or groups all resamples may lie on one side of the truth by chance.
FEWEST_UNITS = 6

#: How many numbers of draws are in memory at once.
_MOST_DRAWN = 1 << 22

#: The step of a slope, as a part of the sum that is changed.
_STEP = 1e-6

#: The ends of a 95 % interval.
Interval = tuple[float, float]


@dataclass(frozen=True)
class Share(Result):
    """A share of samples, and what it says about the population.

    Attributes:
        count: Number of samples that have the property.
        total: Number of all samples.

    Raises:
        ValueError: ``count`` is larger than ``total``.
    """

    _also_in_json: ClassVar[tuple[str, ...]] = ("value", "interval")

    count: Count
    total: PositiveCount

    def __post_init__(self) -> None:
        if self.count > self.total:
            raise ValueError(f"{self.count} of {self.total} samples is no share")

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.2f} % ({100 * low:.1f}-{100 * high:.1f})"

    @property
    def value(self) -> float:
        """The share, in [0, 1]."""
        return self.count / self.total

    @property
    def interval(self) -> Interval:
        """The ends of its 95 % interval, in [0, 1]."""
        return share_interval(self.value, self.total)


def share_interval(share: float, samples: float) -> Interval:
    """The ends of the 95 % interval of a share (Wilson's score interval, JASA 22, 1927).

    Args:
        share: The share, in [0, 1].
        samples: Of how many samples; not an integer where these are worth fewer than there are.
    """
    squared = _Z95 * _Z95 / samples
    centre = (share + squared / 2) / (1 + squared)
    half = _Z95 / (1 + squared) * math.sqrt(share * (1 - share) / samples + squared / (4 * samples))
    return max(0.0, centre - half), min(1.0, centre + half)


@overload
def as_number(value: Share | float) -> float: ...


@overload
def as_number(value: None) -> None: ...


@overload
def as_number(value: Share | float | None) -> float | None: ...


def as_number(value: Share | float | None) -> float | None:
    """A value without its interval; None where there is none."""
    return value.value if isinstance(value, Share) else value


def t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution, for 95 % intervals from few samples.

    The expansion in powers of 1 / freedom of Abramowitz and Stegun, Handbook of Mathematical Functions, 1964,
    26.7.5: too small by 11 % for one degree of freedom, by 0.7 % for two, and by at most 0.13 % for more.

    Args:
        freedom: Degrees of freedom, at least 1: one less than there are samples.
    """
    z = _Z95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def by_group(sums: Floats, groups: Indices | None) -> Floats:
    """Sums over each group of samples, in the order in which groups appear.

    Args:
        sums: float64, shape (samples, sums).
        groups: The number of each sample's group; None where each sample stands alone.
    """
    if groups is None:
        return sums
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    totals = np.zeros((len(first), sums.shape[1]))
    np.add.at(totals, numbers, sums)
    return totals[np.argsort(first)]


def independent_samples(values: Floats, groups: Indices | None) -> float:
    """How many samples that stand alone would say as much of a mean as samples in groups.

    Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data", Survey Methodology 24, 1998.

    Args:
        values: A number for each sample, shape (samples,).
        groups: The number of each sample's group; None where each sample stands alone.

    Returns:
        At most the number of samples, and 1 at least; the number of groups where all values are the same.
    """
    samples = len(values)
    deviations = by_group((values - values.mean())[:, None], groups)[:, 0]
    count = len(deviations)
    if count in (samples, 1):
        return float(count)
    own, found = float(np.var(values) * samples / (samples - 1)), float(np.square(deviations).sum())
    if found == 0 or own == 0:
        return float(count)
    worth = samples * own * samples * (count - 1) / (count * found)
    return min(float(samples), max(1.0, worth * (t95(samples - 1) / t95(count - 1)) ** 2))


def totals_interval(sums: Floats, function: Callable[[Floats], Floats]) -> Interval | None:
    """Returns the ends of the 95 % interval of a function of totals, by the bootstrap.

    Samples are drawn with replacement, and each figure counts in its own standard errors (bootstrap-t: Efron
    and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 12). A few samples often make most of the
    noise. Then the figures of resamples alone say too little: of 16 frames of CREPE, one interval in eight
    lay above the truth, and of these intervals one in twenty.

    Args:
        sums: The sums of each sample or group: float64, shape (units, sums).
        function: The figure from totals: float64 of shape (..., sums) to shape (...).

    Returns:
        The ends, between which the figure lies. None for fewer than six units, or where they do not tell, as
        where all are the same or one makes all the noise. Without any noise, a level is infinite for certain.
    """
    units = len(sums)
    if units < FEWEST_UNITS:
        return None
    with np.errstate(all="ignore"):  # differences of infinite figures, and resamples without any error
        value, own = (float(found[0]) for found in _figures(np.ones((1, units)), sums, function))
        found = [_figures(counts, sums, function) for counts in _draws(units)]
        figures, errors = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if math.isinf(value) and (figures == value).all():
            return value, value
        # Where all errors are the same, as in a resample of one sample over and over, nothing scales.
        scaled = np.where(errors > 0, (figures - value) / errors, np.sign(figures - value) * math.inf)
        scaled = np.sort(np.where(figures == value, 0.0, scaled))
        most = len(scaled) - 1
        low = value - own * float(scaled[math.ceil(0.975 * most)])
        high = value - own * float(scaled[math.floor(0.025 * most)])
    tells = own > 0 and math.isfinite(low) and math.isfinite(high)
    return (min(low, value), max(high, value)) if tells else None


def _draws(units: int) -> Iterator[Floats]:
    """How often each unit is drawn in all resamples, in parts of shape (resamples, units)."""
    rng, rows = np.random.default_rng(0), max(1, _MOST_DRAWN // units)
    for start in range(0, _RESAMPLES, rows):
        count = min(rows, _RESAMPLES - start)
        drawn = rng.integers(units, size=(count, units)) + units * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * units).reshape(count, units).astype(np.float64)


def _figures(counts: Floats, sums: Floats, function: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
    """A figure of resamples and its standard errors, by how fast it changes with each of the totals.

    Args:
        counts: How often each unit was drawn, shape (resamples, units).
        sums: The sums of each unit, shape (units, sums).
        function: The figure from totals.
    """
    totals = counts @ sums
    figures = function(totals)
    slopes = np.zeros_like(totals)
    for column in np.flatnonzero(totals.any(axis=0)):
        step = _STEP * np.abs(totals[:, column])
        moved = totals.copy()
        moved[:, column] += step
        slopes[:, column] = np.where(step > 0, (function(moved) - figures) / step, 0.0)
    shares = slopes @ sums.T
    mean = (counts * shares).sum(axis=1) / len(sums)
    spread = (counts * np.square(shares)).sum(axis=1) - len(sums) * np.square(mean)
    return figures, np.sqrt(np.maximum(spread, 0.0))


@dataclass(frozen=True)
class Comparison:
    """One model's metric minus another's, over the same samples.

    Attributes:
        against: Name of the other model.
        difference: The model's value minus the other's: a share in [-1, 1], or in the metric's unit.
        interval: The 95 % interval of the difference; zero lies in it just where the p-value is 0.05 or more.
        p_value: How likely a difference at least as large is where both models are equally good.
        test: ``McNemar`` or ``bootstrap``.
        pairs: Number of pairs that were compared.
        unit: What a pair is: ``samples``, or ``batches`` for a metric with one value per batch.
        gained: Number of samples that only the model has right; None for a bootstrap.
        lost: Number of samples that only the other model has right; None for a bootstrap.
    """

    against: str
    difference: float
    interval: tuple[float, float]
    p_value: Probability
    test: str
    pairs: PositiveCount
    unit: str = "samples"
    gained: Count | None = None
    lost: Count | None = None

    @property
    def significant(self) -> bool:
        """Whether the p-value is below 0.05."""
        return self.p_value < _SIGNIFICANT


@dataclass(frozen=True)
class SameAnswer(Result):
    """What a metric would be for a network that gives every sample the same answer, the best one.

    Attributes:
        value: The metric of such a network, in the unit of the metric.
        is_beaten: Whether FP32 is better by more than chance. Where samples have no answers of their own,
            whether it is better.
    """

    value: float
    is_beaten: bool


def compare_hits(hits: Flags, other: Flags, against: str, groups: Indices | None = None) -> Comparison:
    """Compares two models that were right or wrong on the same samples.

    Args:
        hits: Whether the model is right on each sample: bool, shape (samples,).
        other: Whether the other model is right, in the same form.
        against: The other model's name.
        groups: The number of each sample's group; None where each sample stands alone.

    Returns:
        What :func:`compare_counts` says of them.
    """
    gained = int(np.count_nonzero(hits & ~other))
    lost = int(np.count_nonzero(other & ~hits))
    both = int(np.count_nonzero(hits & other))
    worth = independent_samples(hits.astype(np.float64) - other, groups) / len(hits)
    return compare_counts(both, gained, lost, len(hits) - both - gained - lost, against, worth)


def compare_counts(
    both: int, gained: int, lost: int, neither: int, against: str, worth: float = 1.0
) -> Comparison:
    """Compares two models by how many of the same samples each has right.

    Args:
        both: Number of samples that both models have right.
        gained: Number of samples that only the model has right.
        lost: Number of samples that only the other model has right.
        neither: Number of samples that neither model has right.
        against: The other model's name.
        worth: What a sample counts as, where samples in groups say less than others.

    Returns:
        The difference of the shares, with McNemar's exact test and Newcombe's interval, from which the test
        takes zero away or to which it adds it.
    """
    total = both + gained + lost + neither
    difference = (gained - lost) / total
    p_value = mcnemar(round(worth * gained), round(worth * lost))
    counts = (worth * count for count in (both, gained, lost, neither))
    interval = _as_tested(paired_interval(*counts), difference, p_value)
    return Comparison(against, difference, interval, p_value, "McNemar", total, gained=gained, lost=lost)


def _as_tested(interval: tuple[float, float], difference: float, p_value: float) -> tuple[float, float]:
    """An interval that says the same of zero as a test.

    Newcombe's interval approximates, and for few discordant pairs it often leaves zero out where McNemar's
    exact test cannot: of 100 samples 5 that only the other model has right (p = 0.0625), for example.

    Args:
        interval: The ends of an interval of a difference.
        difference: The difference.
        p_value: How likely it is where there is none.
    """
    low, high = interval
    if p_value >= _SIGNIFICANT:
        return min(low, 0.0), max(high, 0.0)
    if difference < 0:
        return low, min(high, -math.ulp(0.0))
    return max(low, math.ulp(0.0)), high


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test: the two-sided binomial test of the discordant pairs.

    McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12, 1947; exact as in Agresti, Categorical Data Analysis, 2002, section 10.1.

    Args:
        gained: Number of samples that only the first model has right.
        lost: Number of samples that only the second model has right.

    Returns:
        The p-value; 1 where there is no discordant pair.
    """
    n = gained + lost
    # In logarithms: the binomial coefficients of a thousand discordant pairs are beyond the range of float64.
    total = math.lgamma(n + 1) - n * math.log(2)
    tail = math.fsum(
        math.exp(total - math.lgamma(k + 1) - math.lgamma(n - k + 1)) for k in range(min(gained, lost) + 1)
    )
    return min(1.0, 2 * tail)


def paired_interval(both: float, gained: float, lost: float, neither: float) -> Interval:
    """The 95 % interval of the difference between two shares of the same samples.

    Method 10 of Newcombe, "Improved confidence intervals for the difference between binomial proportions
    based on paired data", Statistics in Medicine 17, 1998.

    Args:
        both: Number of samples that both models have right.
        gained: Number of samples that only the first model has right.
        lost: Number of samples that only the second model has right.
        neither: Number of samples that neither model has right.

    Returns:
        The ends of the interval, in [-1, 1].
    """
    n = both + gained + lost + neither
    first, second = (both + gained) / n, (both + lost) / n
    intervals = [share_interval(share, n) for share in (first, second)]
    below = [share - low for share, (low, _) in zip((first, second), intervals, strict=True)]
    above = [high - share for share, (_, high) in zip((first, second), intervals, strict=True)]
    margins = math.prod((both + gained, lost + neither, both + lost, gained + neither))
    excess = both * neither - gained * lost
    if excess > 0:
        excess = max(0.0, excess - n / 2)
    phi = excess / math.sqrt(margins) if margins else 0.0

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))

    difference = first - second
    return (
        max(-1.0, difference - distance(below[0], above[1])),
        min(1.0, difference + distance(above[0], below[1])),
    )


@dataclass(frozen=True)
class Estimate:
    """A value that was measured on samples, and its 95 % interval.

    Attributes:
        value: The value.
        interval: The ends of the interval.
    """

    value: float
    interval: tuple[float, float]

    def minus(self, other: Estimate) -> Estimate:
        """The difference to an estimate whose samples are not paired with these.

        By the method of variance estimates recovery: Zou and Donner, "Construction of confidence limits about
        effect measures", Statistics in Medicine 27, 2008. For shares it is Newcombe's method 10 for
        independent samples. Estimates of the same samples usually err alike, which makes the interval of
        their difference wider than it has to be.

        Args:
            other: The other estimate.
        """
        (low, high), (other_low, other_high) = self.interval, other.interval
        difference = self.value - other.value
        below = math.hypot(self.value - low, other_high - other.value)
        above = math.hypot(high - self.value, other.value - other_low)
        return Estimate(difference, (difference - below, difference + above))

    @property
    def is_above_chance(self) -> bool:
        """Whether zero lies outside the interval."""
        return not self.interval[0] <= 0 <= self.interval[1]


def compare_totals(
    sums: Floats,
    other: Floats,
    function: Callable[[Floats], Floats],
    against: str,
    unit: str,
) -> Comparison | None:
    """Compares two models by a function of totals over the same samples or batches: a paired bootstrap.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993: whole pairs are drawn with replacement; the
    interval is the percentile interval, and the p-value is twice the smaller share of resamples on one side
    of zero. Resamples of few pairs are all on one side by chance, so the p-value is at least that of an exact
    test by the signs of the pairs.

    Args:
        sums: The model's sums: float64, shape (pairs, sums).
        other: The other model's sums, of the same shape.
        function: The metric's value from totals: float64 of shape (..., sums) to shape (...).
        against: The other model's name.
        unit: What a pair is, ``samples`` or ``batches``.

    Returns:
        The difference of the values; None for fewer than two pairs, which cannot be resampled, and where a
        value is not finite.
    """
    pairs = len(sums)
    if pairs < 2:
        return None
    width = sums.shape[1]
    both = np.concatenate([sums, other], axis=1)
    with np.errstate(invalid="ignore"):  # the difference of two infinite values
        resampled = np.concatenate([counts @ both for counts in _draws(pairs)])
        difference = float(function(sums.sum(axis=0)) - function(other.sum(axis=0)))
        differences = function(resampled[:, :width]) - function(resampled[:, width:])
    if not (math.isfinite(difference) and np.isfinite(differences).all()):
        return None
    return _bootstrapped(differences, difference, against, pairs, unit)


def _bootstrapped(resampled: Floats, difference: float, against: str, pairs: int, unit: str) -> Comparison:
    """The comparison by the differences of resamples."""
    # Resamples themselves, not points between two of them, so that zero lies between the ends just where the
    # p-value is 0.05 or more.
    low = np.quantile(resampled, 0.025, method="lower")
    high = np.quantile(resampled, 0.975, method="higher")
    side = min(int((resampled <= 0).sum()), int((resampled >= 0).sum()))
    p_value = min(1.0, 2 * (side + 1) / (_RESAMPLES + 1))
    # Of 2^pairs ways to choose the signs of the differences, two have all of them on one side.
    p_value = max(p_value, 2.0 ** (1 - pairs))
    interval = float(low), float(high)
    if p_value >= _SIGNIFICANT:
        interval = min(interval[0], 0.0), max(interval[1], 0.0)
    return Comparison(against, difference, interval, p_value, "bootstrap", pairs, unit)
