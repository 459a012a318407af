"""Compares rules for ranges by the noise of the quantized network, and finds the one to take."""

from __future__ import annotations

import math
from collections.abc import Mapping

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.rules import TIGHT, range_of
from calibrators.tables.choice import POOR_DB
from trtint8.range_choice.noise import is_clearly_better, mean_level
from trtint8.range_choice.tournament import rounds
from trtint8.range_choice.trial_network import TrialNetwork
from trtint8.range_choice.trials import Trials

#: Decibels of noise that ranges twice as wide may cost. Data that was not calibrated with reaches further,
#: and clipping it costs more than a coarser scale.
DECIBELS_PER_DOUBLING = 1.0

#: The rule that is taken where no other is clearly better: the range of least squared error.
USUAL = "mse"

#: By how many standard errors the noise of another rule has to be lower than that of the usual one.
_CLEARLY = 1.5

#: A rule that was tried on as many samples is never so many decibels better than the one that is taken.
MOST_BELOW_DB = 1.0

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
        return least if gain > MOST_BELOW_DB else best

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
    return -DECIBELS_PER_DOUBLING * math.fsum(doublings) / len(doublings) if doublings else 0.0
