"""Shares with their intervals, and tests whether models differ by more than chance on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, overload

import numpy as np

from calibrators.data.feeds import Flags, Floats
from calibrators.records import Count, PositiveCount, Probability, Result

#: The 97.5 % quantile of the standard normal distribution, for 95 % intervals.
_Z95 = 1.959963984540054

#: The p-value below which a difference is more than chance.
_SIGNIFICANT = 0.05

#: Resamples per bootstrap: enough for the ends of a 95 % interval, as Efron and Tibshirani advise.
_RESAMPLES = 2000


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
    def interval(self) -> tuple[float, float]:
        """The ends of its 95 % interval, in [0, 1] (Wilson's score interval, JASA 22, 1927)."""
        n, p = self.total, self.value
        centre = (p + _Z95 * _Z95 / (2 * n)) / (1 + _Z95 * _Z95 / n)
        half = _Z95 / (1 + _Z95 * _Z95 / n) * math.sqrt(p * (1 - p) / n + _Z95 * _Z95 / (4 * n * n))
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


def jackknife_margin(without: Sequence[float]) -> float:
    """Returns half the width of the 95 % interval of a figure, by the jackknife.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11.

    Args:
        without: The figure without each of the parts of the data in turn.

    Returns:
        The half width; 0 where fewer than two parts or figures that are not finite tell nothing.
    """
    parts = len(without)
    if parts < 2 or not np.isfinite(without).all():
        return 0.0
    deviations = np.asarray(without) - np.mean(without)
    return t95(parts - 1) * math.sqrt((parts - 1) / parts * float(np.square(deviations).sum()))


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


def compare_hits(hits: Flags, other: Flags, against: str) -> Comparison:
    """Compares two models that were right or wrong on the same samples.

    Args:
        hits: Whether the model is right on each sample: bool, shape (samples,).
        other: Whether the other model is right, in the same form.
        against: The other model's name.

    Returns:
        What :func:`compare_counts` says of them.
    """
    gained = int(np.count_nonzero(hits & ~other))
    lost = int(np.count_nonzero(other & ~hits))
    both = int(np.count_nonzero(hits & other))
    return compare_counts(both, gained, lost, len(hits) - both - gained - lost, against)


def compare_counts(both: int, gained: int, lost: int, neither: int, against: str) -> Comparison:
    """Compares two models by how many of the same samples each has right.

    Args:
        both: Number of samples that both models have right.
        gained: Number of samples that only the model has right.
        lost: Number of samples that only the other model has right.
        neither: Number of samples that neither model has right.
        against: The other model's name.

    Returns:
        The difference of the shares, with McNemar's exact test and Newcombe's interval, from which the test
        takes zero away or to which it adds it.
    """
    total = both + gained + lost + neither
    difference = (gained - lost) / total
    p_value = mcnemar(gained, lost)
    interval = _as_tested(paired_interval(both, gained, lost, neither), difference, p_value)
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


def paired_interval(both: int, gained: int, lost: int, neither: int) -> tuple[float, float]:
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
    first, second = Share(both + gained, n), Share(both + lost, n)
    below = [share.value - share.interval[0] for share in (first, second)]
    above = [share.interval[1] - share.value for share in (first, second)]
    margins = math.prod((first.count, n - first.count, second.count, n - second.count))
    excess: float = both * neither - gained * lost
    if excess > 0:
        excess = max(0.0, excess - n / 2)
    phi = excess / math.sqrt(margins) if margins else 0.0

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))

    difference = first.value - second.value
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
    rng = np.random.default_rng(0)
    width = sums.shape[1]
    both = np.concatenate([sums, other], axis=1)
    resampled = np.empty((_RESAMPLES, 2 * width))
    with np.errstate(invalid="ignore"):  # the difference of two infinite values
        for row in resampled:  # one by one: how often each pair was drawn, for all sums at once
            row[:] = np.bincount(rng.integers(pairs, size=pairs), minlength=pairs) @ both
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
