"""The fewest layers in float that keep a budget: where the search begins, and how it proceeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from trtint8.validation.scores import Score

#: The least part of the noise that is expected to remain: what the layers' shares leave out.
_LEAST_REST = 0.01


def expected_score(score: Score, restored: float) -> Score:
    """What a score may become when layers are restored to float, for a first guess.

    Noise powers add nearly. The loss of most metrics grows with the amplitude of the noise.

    Args:
        score: The score with all layers in INT8.
        restored: The part of the noise that these layers make, in [0, 1].
    """
    rest = max(1.0 - restored, _LEAST_REST)
    gain = -10 * math.log10(rest)
    # A metric in decibels, such as sqnr, whose value for equal outputs, or FP32's, is infinite.
    if score.drop is None or math.isinf(score.drop):
        value = None if score.value is None else score.value + gain
        return dataclasses.replace(score, sqnr_db=score.sqnr_db + gain, value=value)
    drop = score.drop * math.sqrt(rest)
    value = None if score.value is None else score.value + score.drop - drop
    return Score(drop, score.sqnr_db + gain, value)


def first_guess(score: Score, shares: Sequence[float], fits: Callable[[Score], bool]) -> int:
    """How many layers in float are probably enough.

    Args:
        score: The score with all layers in INT8.
        shares: Each layer's share of the noise, in the order in which layers are restored; at least one.
        fits: Whether a score is within the budget.

    Returns:
        A number from 1 to the number of layers.
    """
    restored = 0.0
    for count, share in enumerate(shares, 1):
        restored += share
        if fits(expected_score(score, restored)):
            return count
    return len(shares)


def fewest(most: int, fits: Callable[[int], bool], guess: int) -> int:
    """The least number that fits, found with few trials where the guess is close.

    From the guess in steps that double until one number fits and another does not, then by halving the
    interval between them.

    Args:
        most: The largest number, at least 1.
        fits: Whether a number fits; if one does, larger ones are taken to fit too. It is called at most once
            for a number.
        guess: Where to begin, from 1 to ``most``.

    Returns:
        A number from 1 to ``most``; ``most`` where none fits.
    """
    too_few, enough, count, step = 0, most + 1, guess, 1
    while enough - too_few > 1:
        if fits(count):
            enough = count
        else:
            too_few = count
        if enough > most:
            count = min(most, too_few + step)
        elif too_few == 0:
            count = max(1, enough - step)
        else:
            count = (too_few + enough) // 2
        step *= 2
    return min(enough, most)
