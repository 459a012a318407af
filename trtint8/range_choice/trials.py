"""Compares rules for ranges by the noise of the quantized network, and finds the one to take.

Runs with the ranges of each rule go on several at once. All rules are tried on few samples, and ever fewer of
them on more. Successive halving: after one eighth of the samples the better half goes on to a quarter of
them, and so on (Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", AISTATS 2016). Of 16 samples or fewer, all go on from a quarter of them to half, and the better
third to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import numpy as np

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.rules import TIGHT, range_of
from calibrators.tables.choice import POOR_DB
from trtint8.range_choice.trial_network import (
    References,
    TrialNetwork,
    is_clearly_better,
    mean_level,
    noise_levels,
)

#: The noise levels of some samples, which are still being measured, part by part.
_Waiting = list[Future[list[float]]]


class Trials:
    """Measures the noise of the quantized network, on some samples and with the ranges of some rules.

    A context manager, at whose end nothing of it runs any more.

    Args:
        network: The network.
        references: The float network's outputs.
        advance: Called with the number of samples that were run.
    """

    def __init__(self, network: TrialNetwork, references: References, advance: Callable[[int], None]) -> None:
        self._network, self._references, self._advance = network, references, advance
        self._pool = ThreadPoolExecutor(network.runs_at_once, "trtint8-trial")
        self._scales: dict[str, Mapping[str, np.float32]] = {}
        self._begun: dict[tuple[str, int, int], _Waiting] = {}

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, rule: str, scales: Mapping[str, np.float32], stop: int) -> None:
        """Adds a rule, and begins with the samples before ``stop`` while the caller goes on.

        Args:
            rule: Its name.
            scales: The scale of every quantized activation, from :meth:`TrialNetwork.scales`.
            stop: The number after that of the last sample for which its noise will be asked first.
        """
        self._scales[rule] = scales
        self._begun[rule, 0, stop] = self._begin(rule, 0, stop)

    def noise(self, rules: Iterable[str], start: int, stop: int) -> dict[str, list[float]]:
        """The noise of the quantized network: see :func:`noise_levels`.

        Args:
            rules: Names of rules that were added.
            start: The number of the first sample.
            stop: The number after that of the last one.

        Returns:
            For each rule one level per sample, in decibels.

        Raises:
            CalibrationDataError: The model fails on a sample.
        """
        waiting = {
            rule: self._begun.pop((rule, start, stop), []) or self._begin(rule, start, stop) for rule in rules
        }
        levels = {}
        for rule, parts in waiting.items():
            levels[rule] = [*chain.from_iterable(part.result() for part in parts)]
            self._advance(stop - start)
        return levels

    def _begin(self, rule: str, start: int, stop: int) -> _Waiting:
        # Each of the runs at once has its share of the samples, and of the memory.
        share = self._network.runs_at_once
        rows = max(1, min(self._references.rows // share, math.ceil((stop - start) / share)))
        return [
            self._pool.submit(self._run, rule, first, min(first + rows, stop))
            for first in range(start, stop, rows)
        ]

    def _run(self, rule: str, start: int, stop: int) -> list[float]:
        feed, wanted = self._references.batch(start, stop)
        got = self._network.outputs(feed, self._scales[rule])
        levels: list[float] = noise_levels(wanted, got, stop - start).tolist()
        return levels


#: Decibels of noise that ranges twice as wide may cost. Data that was not calibrated with reaches further,
#: and clipping it costs more than a coarser scale.
_DECIBELS_PER_DOUBLING = 1.0

#: The rule that is taken where no other is clearly better: the range of least squared error.
USUAL = "mse"

#: By how many standard errors the noise of another rule has to be lower than that of the usual one.
_CLEARLY = 1.5

#: A rule that was tried on as many samples is never so many decibels better than the one that is taken.
_MOST_BELOW_DB = 1.0

#: Of fewer samples nothing is decided: one that is unlike all others would decide it.
_FEWEST_TO_DECIDE = 6

#: Two rules between which it is close are run on up to so many samples. Where more were run at first, another
#: look has hardly ever changed the choice for the better.
_MOST_OF_TWO = 16


class RuleComparison:
    """Rules that are compared on the same samples.

    Args:
        network: The network.
        trials: Runs it.
        samples: How many samples the rules are compared on at first.
        margin: By how many standard errors the noise of another rule than :data:`USUAL` has to be lower after
            a part of them; otherwise that is taken at once.

    Attributes:
        ranges: Rule to tensor name to amax.
        levels: Rule to the noise level of each sample that it was tried on, in decibels.
    """

    def __init__(self, network: TrialNetwork, trials: Trials, samples: int, margin: float) -> None:
        self._network, self._trials, self._samples, self._margin = network, trials, samples, margin
        self.ranges: dict[str, Mapping[str, float]] = {}
        self.levels: dict[str, list[float]] = {}
        self._handicaps: dict[str, float] = {}

    def enter(self, rule: str, ranges: Mapping[str, float], stop: int) -> None:
        """Adds a rule, and begins to run the network with its ranges.

        Args:
            rule: Its name.
            ranges: Tensor name to amax.
            stop: The number after that of the last sample for which its noise will be asked first.
        """
        self.ranges[rule], self._handicaps[rule] = ranges, _handicap(ranges)
        self._trials.add(rule, self._network.scales(ranges), stop)

    def best(self, available: int, histograms: Mapping[str, Histogram]) -> str:
        """Compares the rules that were added, of which :data:`USUAL` is one.

        Args:
            available: How many samples there are in all.
            histograms: Tensor name to histogram, for the tensors that ranges were given for.

        Returns:
            The rule to take.
        """
        samples = self._samples
        self._play()
        best = next(iter(self.levels)) if len(self.levels[USUAL]) == samples else USUAL
        most = min(available, _MOST_OF_TWO)
        while best != USUAL and not self._is_better(best, USUAL, _CLEARLY):
            start, samples = samples, min(2 * samples, most)
            if start >= samples or self._level(best) >= self._level(USUAL):
                best = USUAL
                break
            for rule, more in self._trials.noise((best, USUAL), start, samples).items():
                self.levels[rule] += more
        return self._tighter(self._not_below(best), histograms)

    def _not_below(self, best: str) -> str:
        """A rule, or the one with the least noise where that is tried on as many samples and clearly less."""
        tried = len(self.levels[best])
        others = [rule for rule, levels in self.levels.items() if len(levels) == tried]
        least = min(others, key=lambda rule: mean_level(self.levels[rule]))
        gain = mean_level(self.levels[best]) - mean_level(self.levels[least])
        return least if gain > _MOST_BELOW_DB else best

    def _play(self) -> None:
        """Tries all rules on some of the samples, and the better ones on more: see :func:`rounds`.

        Puts the best rule first. A rule that is left out does not come back: all rules of a round have seen
        the same samples, so differences between samples do not disturb the comparison. :data:`USUAL` is tried
        as long as any other is.
        """
        self.levels = {rule: [] for rule in self.ranges}
        staying, start = list(self.ranges), 0
        for most, stop in rounds(self._samples, len(self.ranges)):
            playing = staying[:most]
            if start:
                playing = [rule for rule in playing if rule != USUAL and self._is_promising(rule)]
            if not playing:
                return
            if USUAL not in playing:
                playing.append(USUAL)
            for rule, more in self._trials.noise(playing, start, stop).items():
                self.levels[rule] += more
            staying, start = sorted(playing, key=self._level), stop
            # Those that were left out keep their order behind the others.
            self.levels = {rule: self.levels[rule] for rule in dict.fromkeys([*staying, *self.levels])}
            if self._is_decided():
                return

    def _level(self, rule: str) -> float:
        """The level of a rule's noise by which it is compared."""
        return mean_level(self.levels[rule]) + self._handicaps[rule]

    def _tighter(self, best: str, histograms: Mapping[str, Histogram]) -> str:
        """The rule of tight ranges, where narrow ones or none did well and it is clearly better."""
        if self._advantage(best, USUAL) >= 0 and mean_level(self.levels[best]) <= -POOR_DB:
            return best
        samples = len(self.levels[best])
        self.enter(TIGHT, {name: range_of(found, TIGHT) for name, found in histograms.items()}, samples)
        self.levels |= self._trials.noise((TIGHT,), 0, samples)
        return TIGHT if self._is_better(TIGHT, best, _CLEARLY) else best

    def _advantage(self, rule: str, other: str) -> float:
        """By how many decibels a rule's noise may exceed another one's, as its ranges are wider."""
        return self._handicaps[other] - self._handicaps[rule]

    def _is_better(self, rule: str, other: str, standard_errors: float) -> bool:
        """Whether a rule is better than another one, by so many standard errors."""
        advantage = self._advantage(rule, other)
        return is_clearly_better(self.levels[rule], self.levels[other], advantage, standard_errors)

    def _is_promising(self, rule: str) -> bool:
        """Whether a rule is better than the usual one on any sample, or these are too few to decide."""
        advantage = self._advantage(rule, USUAL)
        pairs = zip(self.levels[rule], self.levels[USUAL], strict=True)
        few = len(self.levels[USUAL]) < _FEWEST_TO_DECIDE
        return few or any(own - advantage < usual for own, usual in pairs)

    def _is_decided(self) -> bool:
        """Whether so many samples were tried that the usual rule is taken at once, and no other is better."""
        tried = len(self.levels[USUAL])
        if tried < max(self._samples / 4, _FEWEST_TO_DECIDE):
            return False
        return not self._is_better(next(iter(self.levels)), USUAL, self._margin)


def _handicap(ranges: Mapping[str, float]) -> float:
    """What is added to the noise of ranges before they are compared: less for wide ones.

    Args:
        ranges: Tensor name to amax. Tensors that were zero throughout do not count.
    """
    doublings = [math.log2(amax) for amax in ranges.values() if amax > 0]
    return -_DECIBELS_PER_DOUBLING * math.fsum(doublings) / len(doublings) if doublings else 0.0


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
