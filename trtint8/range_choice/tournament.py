"""The rounds in which rules for ranges are tried: all on few samples, and ever fewer of them on more.

Successive halving: after one eighth of the samples the better half goes on to a quarter of them, and so on
(Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS
2016). Of 16 samples or fewer, all go on from a quarter of them to half, and the better third to all.
"""

from __future__ import annotations

import math

#: The share of the rules that each round begins with, and of the samples that it ends with.
_ROUNDS = ((1.0, 0.125), (0.5, 0.25), (0.25, 0.5), (0.15, 1.0))

#: The same where samples are few: one sample that is unlike the others would decide a round of its own.
_ROUNDS_OF_FEW = ((1.0, 0.25), (1.0, 0.5), (0.34, 1.0))

#: So many samples are few.
_FEW = 16

#: The last round compares at least so many.
_FINALISTS = 2


def samples_of_all(samples: int) -> int:
    """On how many of the samples every rule is tried.

    Args:
        samples: How many samples there are, at least 1.
    """
    return _shares(samples)[0][1]


def rounds(samples: int, rules: int) -> list[tuple[int, int]]:
    """For each round, how many rules take part at most, and the sample that it ends before.

    Args:
        samples: How many samples there are, at least 1.
        rules: How many rules there are.
    """
    return [(max(_FINALISTS, math.ceil(share * rules)), stop) for share, stop in _shares(samples)]


def _shares(samples: int) -> list[tuple[float, int]]:
    """For each round, the share of the rules that it begins with and the sample that it ends before."""
    shares: dict[int, float] = {}
    for share, end in _ROUNDS_OF_FEW if samples <= _FEW else _ROUNDS:
        shares.setdefault(math.ceil(end * samples), share)
    return [(share, stop) for stop, share in shares.items()]
