"""Which of several candidates is the best on average, found with few measurements of the poor ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

#: The share of the candidates that each round begins with, and of the samples that it ends with.
_ROUNDS = ((1.0, 0.125), (0.5, 0.25), (0.25, 0.5), (0.15, 1.0))

#: The same where samples are few: one sample that is unlike the others would decide a round of its own.
_ROUNDS_OF_FEW = ((1.0, 0.25), (1.0, 0.5), (0.34, 1.0))

#: So many samples are few.
_FEW = 16

#: The last round compares at least so many.
_FINALISTS = 2


def samples_of_all(samples: int) -> int:
    """On how many of the samples :func:`play` measures every candidate.

    Args:
        samples: How many samples there are, at least 1.
    """
    return _rounds(samples)[0][1]


def _rounds(samples: int) -> list[tuple[float, int]]:
    """For each round, the share of the candidates that it begins with and the sample that it ends before."""
    shares: dict[int, float] = {}
    for share, end in _ROUNDS_OF_FEW if samples <= _FEW else _ROUNDS:
        shares.setdefault(math.ceil(end * samples), share)
    return [(share, stop) for stop, share in shares.items()]


def play(
    handicaps: Mapping[str, float],
    samples: int,
    measure: Callable[[Collection[str], int, int], Mapping[str, Sequence[float]]],
    mean: Callable[[Sequence[float]], float],
    usual: str | None = None,
    *,
    promising: Callable[[str, Mapping[str, Sequence[float]]], bool] = lambda _candidate, _measured: True,
    decided: Callable[[Mapping[str, Sequence[float]]], bool] = lambda _measured: False,
) -> dict[str, list[float]]:
    """Measures candidates on samples, and those that do badly on fewer of them.

    Successive halving: after one eighth of the samples the better half goes on to a quarter of them, and so
    on (Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
    AISTATS 2016). Of 16 samples or fewer, all that are promising after a quarter of them go on to half, and
    the better third to all. A candidate that has left does not come back: all candidates of a round have
    seen the same samples, so differences between samples do not disturb the comparison.

    Args:
        handicaps: Candidate to what is added to the mean of its measurements before they are compared.
        samples: How many samples there are, at least 1.
        measure: Called with candidates, the number of the first sample, and that after the last; gives one
            number per sample for each of them, and smaller is better.
        mean: The mean of measurements by which candidates are compared.
        usual: A candidate that is measured as long as any other is.
        promising: Called with a candidate and the measurements so far; a candidate takes part in the first
            round, and in others where it is promising.
        decided: Called after each round with the measurements so far, the best candidate's first; says
            whether more of them are needless.

    Returns:
        Candidate to its measurements, the best first; only those of the last round have seen all samples.
    """
    measured: dict[str, list[float]] = {name: [] for name in handicaps}
    order: Sequence[str] = list(handicaps)
    staying, start = order, 0
    for share, stop in _rounds(samples):
        playing = [*staying[: max(_FINALISTS, math.ceil(share * len(handicaps)))]]
        if start:
            playing = [name for name in playing if name != usual and promising(name, measured)]
        if not playing:
            break
        if usual is not None and usual not in playing:
            playing.append(usual)
        for name, found in measure(playing, start, stop).items():
            measured[name] += found
        staying, start = sorted(playing, key=lambda name: mean(measured[name]) + handicaps[name]), stop
        order = [*staying, *(name for name in order if name not in staying)]
        if decided({name: measured[name] for name in order}):
            break
    return {name: measured[name] for name in order}
