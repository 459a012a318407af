"""The method ``auto``: the ranges of all tensors, by what they cost the network's outputs on some samples.

Runs with the ranges of each rule go on several at once. All rules are tried on a few samples, and ever fewer
of them on more: the better half goes on to twice as many samples (successive halving: Jamieson and Talwalkar,
"Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016), without rules that
are certainly worse. This ends when it is certain which is best, or when more runs of the network would take
too long. Runs are counted and not timed, so that the same data gives the same ranges on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from calibrators.data.feeds import FeedDict
from calibrators.data.samples import Outputs
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.rules import NEAR, RULES, TIGHT, range_of, ranges_by_rule
from calibrators.histograms.thresholds import mse
from calibrators.progress import CHOOSING, progress_bar
from calibrators.tables.choice import POOR_DB, RangeChoice
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.range_choice.compared import MOST_ROWS, MOST_SAMPLES, ComparedModel
from trtint8.range_choice.trial_network import (
    CERTAIN,
    Noise,
    Reference,
    References,
    TrialNetwork,
    difference,
    mean_level,
)

#: The noise on some samples, which is still being measured, part by part.
_Waiting = list[Future[Noise]]


class Trials:
    """Measures the noise of the quantized network, on some samples and with the ranges of some rules.

    A context manager, at whose end nothing of it runs any more.

    Args:
        network: The network.
        references: The float network's outputs.
        advance: Called with the number of samples that were run, by the threads that run them.
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

    def noise(self, rules: Iterable[str], start: int, stop: int) -> dict[str, Noise]:
        """The noise of the quantized network.

        Args:
            rules: Names of rules that were added.
            start: The number of the first sample.
            stop: The number after that of the last one.

        Returns:
            For each rule its noise on these samples.

        Raises:
            CalibrationDataError: The model fails on a sample.
        """
        waiting = {
            rule: self._begun.pop((rule, start, stop), []) or self._begin(rule, start, stop) for rule in rules
        }
        found = {}
        for rule, parts in waiting.items():
            found[rule] = Noise.joined(part.result() for part in parts)
        return found

    def _begin(self, rule: str, start: int, stop: int) -> _Waiting:
        # Each of the runs at once has its share of the samples, and of the memory.
        share = self._network.runs_at_once
        rows = max(1, min(self._references.rows // share, math.ceil((stop - start) / share)))
        return [
            self._pool.submit(self._run, rule, first, min(first + rows, stop))
            for first in range(start, stop, rows)
        ]

    def _run(self, rule: str, start: int, stop: int) -> Noise:
        feed, wanted = self._references.batch(start, stop)
        got = self._network.outputs(feed, self._scales[rule])
        noise = Noise.of(wanted, got, stop - start)
        self._advance(stop - start)
        return noise


#: Decibels of noise that ranges twice as wide may cost. Data that was not calibrated with reaches further,
#: and clipping it costs more than a coarser scale.
_DECIBELS_PER_DOUBLING = 1.0

#: Of more calibration samples than these, few of the later ones reach further, and it may cost less in
#: proportion.
_MANY_CALIBRATED = 32

#: By how many standard errors another rule has to be too bad to be worth a further look.
_SURELY = 2.0

#: Of fewer samples nothing is certain: one that is unlike all others would decide it.
_FEWEST_TO_DECIDE = 8

#: Rules whose noise differs by less, in decibels, are equally good.
_EQUAL_DB = 0.25

#: However wide its ranges are, the rule that is taken has at most so many decibels more noise than another.
#: One broken sample makes ranges a thousand times as wide.
_MOST_BELOW_DB = 0.5

#: The rule that is the best of most networks, and so many decibels that others have to be better by.
USUAL, _BETTER_THAN_USUAL_DB = "mse", 0.2

#: By how many standard errors the noise of tight ranges has to be lower: they are made for broken samples.
_CLEARLY = 1.5


class RuleComparison:
    """Rules that are compared on the same samples.

    Args:
        network: The network.
        trials: Runs it.
        first: On how many samples all rules are tried.
        most: On how many samples a rule is tried at most.
        calibrated: How many samples the ranges are of. It decides what wide ranges may cost, and how often
            the network is run in all: see :func:`runs_to_spend`.

    Attributes:
        ranges: Rule to tensor name to amax.
        noise: Rule to its noise on the samples that it was tried on, without outputs that no rule changes.
        levels: Rule to the noise level of each sample that it was tried on, in decibels; the best first.
    """

    def __init__(self, network: TrialNetwork, trials: Trials, first: int, most: int, calibrated: int) -> None:
        self._network, self._trials = network, trials
        self._first, self._most, self._runs = first, most, runs_to_spend(calibrated)
        self._per_doubling = _DECIBELS_PER_DOUBLING * min(1.0, _MANY_CALIBRATED / calibrated)
        self.ranges: dict[str, Mapping[str, float]] = {}
        self.levels: dict[str, list[float]] = {}
        self.noise: dict[str, Noise] = {}
        self._noise: dict[str, Noise] = {}
        self._widths: dict[str, float] = {}

    def enter(self, rule: str, ranges: Mapping[str, float]) -> None:
        """Adds a rule, and begins to run the network with its ranges.

        Args:
            rule: Its name.
            ranges: Tensor name to amax.
        """
        self.ranges[rule], self._widths[rule] = ranges, _mean_width(ranges)
        self._trials.add(rule, self._network.scales(ranges), self._first)

    def best(self, histograms: Mapping[str, Histogram]) -> str:
        """Compares the rules that were added, of which :data:`USUAL` is one.

        Args:
            histograms: Tensor name to histogram, for the tensors that ranges were given for.

        Returns:
            The rule to take.
        """
        staying = self._race()
        tied = [rule for rule in staying if self._level(rule) - self._level(staying[0]) <= _EQUAL_DB]
        best = min(tied, key=lambda rule: self.noise[rule].pooled_level + self._handicap(rule))
        return self._not_below(self._tighter(best, histograms))

    def _race(self) -> list[str]:
        """Tries all rules on the first samples, and ever fewer on more, until it is certain which is best.

        A rule that is left out does not come back: all rules of a round have seen the same samples, so
        differences between samples do not disturb the comparison.

        Returns:
            The rules that were tried on most samples and are not certainly worse, the best first.
        """
        staying, seen, stop, runs = list(self.ranges), 0, self._first, self._runs
        while stop > seen:
            self._try(staying, seen, stop)
            runs -= len(staying) * (stop - seen)
            staying, seen = self._going_on(staying), stop
            if self._is_decided(staying):
                break
            stop = min(2 * seen, self._most, seen + max(runs, 0) // len(staying))
        return staying

    def _try(self, rules: Iterable[str], start: int, stop: int) -> None:
        """Runs the network with the ranges of some rules."""
        for rule, more in self._trials.noise(rules, start, stop).items():
            self._noise[rule] = Noise.joined([self._noise[rule], more]) if start else more
        self.noise = Noise.of_changing(self._noise)
        self.levels |= {rule: noise.levels.tolist() for rule, noise in self.noise.items()}

    def _going_on(self, rules: Iterable[str]) -> list[str]:
        """The better half of some rules, the best first, at least two, without those certainly worse."""
        in_order = sorted(rules, key=self._level)
        # Those that were left out keep their order behind the others.
        self.levels = {rule: self.levels[rule] for rule in dict.fromkeys([*in_order, *self.levels])}
        half = in_order[: max(2, math.ceil(len(in_order) / 2))]
        return [half[0], *(rule for rule in half[1:] if not self._is_better(half[0], rule, CERTAIN))]

    def _is_decided(self, rules: Sequence[str]) -> bool:
        """Whether there is one rule left, or no other can be better than the best by what matters."""
        best = rules[0]
        if len(self.levels[best]) < _FEWEST_TO_DECIDE:
            return False
        found = (self._difference(rule, best) for rule in rules[1:])
        return all(_SURELY * error - mean <= _EQUAL_DB for mean, error in found)

    def _tighter(self, best: str, histograms: Mapping[str, Histogram]) -> str:
        """A rule for broken samples, where narrow ranges or none did well and it is clearly better."""
        narrow = self._widths[best] < self._widths[USUAL]
        if not narrow and self.noise[best].worst_level <= -POOR_DB:
            return best
        tried = len(self.levels[best])
        for rule in (TIGHT, NEAR):
            ranges = {name: range_of(found, rule) for name, found in histograms.items()}
            if ranges not in self.ranges.values():
                self.enter(rule, ranges)
                self._try([rule], 0, tried)
                best = rule if self._is_better(rule, best, _CLEARLY) else best
        return best

    def _not_below(self, best: str) -> str:
        """A rule, or the one with the least noise where that is tried on as many samples and clearly less."""
        tried = len(self.levels[best])
        others = [rule for rule, levels in self.levels.items() if len(levels) == tried]
        least = min(others, key=lambda rule: mean_level(self.levels[rule]))
        gain = mean_level(self.levels[best]) - mean_level(self.levels[least])
        return least if gain > _MOST_BELOW_DB else best

    def _level(self, rule: str) -> float:
        """The level of a rule's noise by which it is compared."""
        return mean_level(self.levels[rule]) + self._handicap(rule)

    def _handicap(self, rule: str) -> float:
        """What is added to the level of a rule's noise before it is compared: less for wide ranges."""
        if rule == USUAL:
            return -_BETTER_THAN_USUAL_DB
        wider = self._per_doubling * (self._widths[rule] - self._widths[USUAL])
        return -max(-_MOST_BELOW_DB, min(wider, _MOST_BELOW_DB))

    def _difference(self, rule: str, other: str) -> tuple[float, float]:
        """By how many decibels a rule is worse than another one, and the standard error of that."""
        mean, error = difference(self.levels[rule], self.levels[other])
        return mean + self._handicap(rule) - self._handicap(other), error

    def _is_better(self, rule: str, other: str, standard_errors: float) -> bool:
        """Whether a rule is better than another one by more than so many standard errors."""
        if len(self.levels[rule]) < min(_FEWEST_TO_DECIDE, self._most):
            return False
        mean, error = self._difference(rule, other)
        return mean < -standard_errors * error


def _mean_width(ranges: Mapping[str, float]) -> float:
    """The mean of the binary logarithms of ranges.

    Args:
        ranges: Tensor name to amax. Tensors that were zero throughout do not count.
    """
    doublings = [math.log2(amax) for amax in ranges.values() if amax > 0]
    return math.fsum(doublings) / len(doublings) if doublings else 0.0


class AutoRanges:
    """A model whose ranges are to be chosen.

    A context manager, at whose end no thread of it works any more.

    Args:
        compared: The model.
    """

    def __init__(self, compared: ComparedModel) -> None:
        self._compared = compared
        self._network: TrialNetwork | None = None

    def __enter__(self) -> AutoRanges:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._network:
            self._network.close()

    @pause_garbage_collection()
    def open_ahead(self) -> None:
        """Opens the network that ranges are tried on while the caller goes on, for :meth:`choose`.

        It does not depend on the data, except for the memory that one sample takes where the model leaves
        sizes of its inputs open; then :meth:`choose` opens it, and where the model is large.
        """
        model = self._compared
        if model.placement and model.fitting.for_all is not None and not model.is_large:
            self._network = model.open(model.placement, model.fitting.for_all)

    def choose(
        self,
        histograms: Mapping[str, Histogram],
        samples: Sequence[FeedDict],
        calibrated: int,
        *,
        alone: bool = False,
        outputs: Sequence[Outputs | None] = (),
        reference: Callable[[], Reference | None] = lambda: None,
        progress: bool,
    ) -> tuple[dict[str, float], RangeChoice]:
        """Chooses the ranges: see :func:`trtint8.range_choice.auto.choose_ranges`.

        Args:
            histograms: Tensor name to the histogram of its magnitudes.
            samples: Samples to try ranges on, from :meth:`ComparedModel.samples`; how many are used depends
                on the network.
            calibrated: How many samples the histograms are of.
            alone: Whether each sample has to be run by itself.
            outputs: What the float network gives out for each sample, where it takes them; None for what is
                not known. All have to be run where it is empty.
            reference: Gives what runs the float network on a feed, or None where that is not open; called
                where it has to be run. It is not used where the model is large, or where other tensors than
                its outputs are compared (:mod:`trtint8.models.outputs.picked`,
                :mod:`trtint8.models.outputs.joined`).
            progress: Whether to show a progress bar on a terminal.

        Returns:
            Tensor name to amax for all histograms, and how it was chosen. Where nothing of the network is
            quantized, or nothing was sampled, every tensor gets the range of least squared error.

        Raises:
            CalibrationDataError: The model fails on a sample.
        """
        model = self._compared
        # A tensor that was zero throughout has no range to choose; the network takes one for it.
        if not (model.placement and samples and any(histograms[name].amax for name in model.quantized)):
            return plain_ranges(histograms)
        rows = model.fitting(samples[0])
        with self._network or model.open(model.placement, rows) as network:
            if not outputs or None in outputs:
                network.open_float(None if model.is_part or model.is_large else reference())
            return choose_ranges(
                network,
                histograms,
                model.quantized,
                samples,
                calibrated,
                rows=1 if alone else min(MOST_ROWS, rows),
                separate=model.separate,
                known=outputs,
                progress=progress,
            )


#: A sample whose outputs have fewer elements than this tells little by itself.
_FEW_ELEMENTS = 256

#: On how many samples every rule is tried: of outputs with few elements, and of others.
_FIRST_OF_FEW, _FIRST_OF_MANY = 8, 4


def first_samples(elements: int) -> int:
    """On how many samples every rule is tried.

    Args:
        elements: How many elements the network's outputs have for one sample.
    """
    return _FIRST_OF_FEW if elements < _FEW_ELEMENTS else _FIRST_OF_MANY


def runs_to_spend(calibrated: int) -> int:
    """How many runs of the network are spent on a choice, so that it takes less time than calibrating.

    Args:
        calibrated: How many calibration samples there are.

    Returns:
        One for four of these samples, each of which was run once, and 36 more: six rules are tried on four
        samples and half of them on eight, however few there are.
    """
    return 36 + calibrated // 4


def choose_ranges(
    network: TrialNetwork,
    histograms: Mapping[str, Histogram],
    quantized: Sequence[str],
    samples: Sequence[FeedDict],
    calibrated: int,
    *,
    rows: int,
    separate: bool,
    known: Sequence[Outputs | None],
    progress: bool,
) -> tuple[dict[str, float], RangeChoice]:
    """Tries rules that turn a histogram into a range, and takes the one that costs the network least.

    Each rule is applied to every tensor, the quantized network is run on samples, and the noise of its
    outputs is compared with the float network's, in decibels (see :func:`mean_level` for their mean over
    samples). A rule whose ranges are wider is preferred as long as they cost less than 1 dB for ranges twice
    as wide, less where the histograms are of more than 32 samples, and half a decibel in all. All rules are
    tried on a few samples, the better half of them on twice as many, and so on, without those that are
    certainly worse. This ends when one is left, when no other can be better by a quarter of a decibel, or
    when :func:`runs_to_spend` runs were made. Of rules that are as good, the one with the least noise of all
    samples together is taken, as the worst samples count most there. Where ranges narrower than the usual
    ones are best, or none does well, those that cut off one value in a thousand, or all that are
    far larger than most, are tried on the same samples, and taken where they are clearly better: a few
    calibration samples that are unlike all others make every other range too wide.

    Args:
        network: The network.
        histograms: Tensor name to the histogram of its magnitudes, for at least all quantized tensors.
        quantized: Names of the tensors that the network quantizes.
        samples: Samples to try the rules on, at least one, in random order; one feed per sample.
        calibrated: How many samples the histograms are of.
        rows: The most samples that are run at once.
        separate: Whether all outputs are known to have samples along axis 0, each computed by itself; it is
            tried where that is not known.
        known: The float network's outputs for each sample, where they are known: see :class:`References`.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        Tensor name to amax for all histograms, and how it was chosen. Where the network has no floating-point
        output to compare, every tensor gets the range of least squared error.

    Raises:
        CalibrationDataError: The model fails on a sample.
    """
    references = References(
        network.reference,
        samples,
        rows,
        first=_FIRST_OF_MANY,
        separate=separate,
        known=[outputs and network.split(outputs) for outputs in known],
    )
    elements = references.elements
    if not elements:
        return plain_ranges(histograms)
    first, most = min(len(samples), first_samples(elements)), min(len(samples), MOST_SAMPLES)
    if network.one_at_a_time:
        # No rule is tried on more, as two of them are compared at the end.
        references.run_until(min(most, first + max(0, runs_to_spend(calibrated) - len(RULES) * first) // 2))
        network.close_float()
    else:
        references.run_ahead(first)
    with (
        progress_bar(
            CHOOSING, max(runs_to_spend(calibrated), len(RULES) * first), enabled=progress
        ) as advance,
        Trials(network, references, advance) as trials,
    ):
        comparison = RuleComparison(network, trials, first, most, calibrated)
        # The network runs with the ranges of one rule while those of the next are computed.
        of_quantized = {name: histograms[name] for name in quantized}
        for rule, found in ranges_by_rule(of_quantized):
            comparison.enter(rule, found)
        best = comparison.best(of_quantized)
    levels = {rule: -comparison.noise[rule].worst_level for rule in comparison.levels}
    tried = {rule: len(found) for rule, found in comparison.levels.items()}
    taken = comparison.ranges[best]
    chosen = {name: taken[name] if name in taken else range_of(h, best) for name, h in histograms.items()}
    by_output = zip(network.outputs_compared, comparison.noise[best].typical_levels, strict=True)
    changing = (item for item in by_output if not math.isnan(item[1]))
    outputs = {name: -level for name, level in sorted(changing, key=lambda item: -item[1])}
    return chosen, RangeChoice(best, levels, tried, outputs if len(outputs) > 1 else {})


def plain_ranges(histograms: Mapping[str, Histogram]) -> tuple[dict[str, float], RangeChoice]:
    """The range of least squared error for every tensor, where a network's outputs tell nothing.

    Args:
        histograms: Tensor name to the histogram of its magnitudes.

    Returns:
        Tensor name to amax, and the choice, in which no rule was tried.
    """
    return {name: mse(histogram) for name, histogram in histograms.items()}, RangeChoice("mse", {}, {})
