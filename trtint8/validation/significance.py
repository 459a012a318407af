"""Shares with their intervals, and whether two models differ by more than chance on the same samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.records import Count, Fraction, PositiveCount

#: The 97.5 % quantile of the standard normal distribution, for 95 % intervals.
Z95 = 1.959963984540054

#: Resamples of a bootstrap: enough for the ends of a 95 % interval, by Efron and Tibshirani's advice.
_RESAMPLES = 2000

#: Numbers that a bootstrap draws at a time.
_DRAWS = 1 << 20


@dataclass(frozen=True)
class Share:
    """How many of how many, with what that says about the population."""

    count: Count
    total: PositiveCount

    @property
    def value(self) -> float:
        """The share, in [0, 1]."""
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval (Wilson's score interval, JASA 22, 1927)."""
        n, p = self.total, self.value
        centre = (p + Z95 * Z95 / (2 * n)) / (1 + Z95 * Z95 / n)
        half = Z95 / (1 + Z95 * Z95 / n) * math.sqrt(p * (1 - p) / n + Z95 * Z95 / (4 * n * n))
        return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Comparison:
    """One model's metric less another's, over the same samples.

    Attributes:
        against: Name of the other model.
        difference: The judged model's value less the other's: a share in [-1, 1], or in the metric's unit.
        interval: Its 95 % interval.
        p_value: How likely a difference at least as large is where both models are equally good.
        test: ``McNemar`` or ``bootstrap``.
        pairs: How many pairs were compared.
        unit: What a pair is: ``samples``, or ``batches`` for a metric with one value a batch.
        gained: Samples that only the judged model has right; None for a bootstrap.
        lost: Samples that only the other model has right; None for a bootstrap.
    """

    against: str
    difference: float
    interval: tuple[float, float]
    p_value: Fraction
    test: str
    pairs: PositiveCount
    unit: str = "samples"
    gained: Count | None = None
    lost: Count | None = None

    @property
    def significant(self) -> bool:
        """Whether chance explains it in less than one case of twenty."""
        return self.p_value < 0.05


def compare_hits(judged: NDArray[np.bool_], other: NDArray[np.bool_], against: str) -> Comparison:
    """Compares two models that were right or wrong on the same samples.

    Args:
        judged: Whether the judged model is right, bool, shape (samples,).
        other: The same of the other model.
        against: The other model's name.

    Returns:
        The difference of the shares, with Newcombe's interval and McNemar's exact test.
    """
    total = len(judged)
    gained = int(np.count_nonzero(judged & ~other))
    lost = int(np.count_nonzero(other & ~judged))
    both = int(np.count_nonzero(judged & other))
    return Comparison(
        against,
        (gained - lost) / total,
        paired_interval(both, gained, lost, total - both - gained - lost),
        mcnemar(gained, lost),
        "McNemar",
        total,
        gained=gained,
        lost=lost,
    )


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test: the two-sided binomial test of the discordant pairs.

    McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12, 1947; exact as in Agresti, Categorical Data Analysis, 2002, section 10.1.

    Args:
        gained: Samples that only the first model has right.
        lost: Samples that only the second has right.

    Returns:
        The p-value; 1 where there is no discordant pair.
    """
    n = gained + lost
    # In logarithms: the binomial coefficients of a thousand discordant pairs are beyond a double's range.
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
        both: Samples that both models have right.
        gained: That only the first has right.
        lost: That only the second has right.
        neither: That neither has right.

    Returns:
        Its ends, in [-1, 1].
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


def compare_values(
    judged: NDArray[np.float64],
    other: NDArray[np.float64],
    weights: NDArray[np.float64],
    against: str,
    unit: str,
    *,
    seed: int = 0,
) -> Comparison | None:
    """Compares two models by a metric's values on the same pairs: a paired bootstrap.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993: whole pairs are drawn with replacement; the
    interval is the percentile one, and the p-value twice the smaller share of resamples on a side of zero.

    Args:
        judged: The judged model's values, shape (pairs,).
        other: The other's.
        weights: How many samples each value stands for, shape (pairs,).
        against: The other model's name.
        unit: What a pair is, ``samples`` or ``batches``.
        seed: Of the resampling.

    Returns:
        The difference of the weighted means; None for fewer than two pairs, which nothing can be drawn from.
    """
    pairs = len(judged)
    if pairs < 2:
        return None
    # Subtracted first: the same resample serves both models, which is what makes it paired.
    weighted = weights * (judged - other)
    rng = np.random.default_rng(seed)
    rows = max(1, _DRAWS // pairs)
    means: list[NDArray[Any]] = []
    for first in range(0, _RESAMPLES, rows):
        drawn = rng.integers(pairs, size=(min(rows, _RESAMPLES - first), pairs))
        means.append(weighted[drawn].sum(axis=1) / weights[drawn].sum(axis=1))
    resampled = np.concatenate(means)
    low, high = np.quantile(resampled, (0.025, 0.975))
    side = min(int((resampled <= 0).sum()), int((resampled >= 0).sum()))
    return Comparison(
        against,
        float(weighted.sum() / weights.sum()),
        (float(low), float(high)),
        min(1.0, 2 * (side + 1) / (_RESAMPLES + 1)),
        "bootstrap",
        pairs,
        unit,
    )
