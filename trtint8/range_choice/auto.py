"""The method ``auto``: the ranges of all tensors, by what they cost the network's outputs on a few samples.

Runs with the ranges of each rule go on several at once. All rules are tried on few samples, and ever fewer of
them on more. Successive halving: after one eighth of the samples the better half goes on to a quarter of
them, and so on (Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", AISTATS 2016). Of 16 samples or fewer, all go on from a quarter of them to half, and the better
third to all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from calibrators.data.feeds import FeedDict
from calibrators.data.samples import Outputs
from calibrators.errors import ModelError
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.rules import TIGHT, range_of, ranges_by_rule
from calibrators.histograms.thresholds import mse
from calibrators.progress import progress_bar
from calibrators.tables.choice import POOR_DB, RangeChoice
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.model import Model
from trtint8.models.outputs.joined import without_cached_outputs
from trtint8.models.outputs.picked import before_picks
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.serialization import weight_bytes
from trtint8.models.shapes import FittingBatchSize
from trtint8.quantization.placement import Placement, place
from trtint8.range_choice.trial_network import (
    Reference,
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
_FEW_TRIALS = 16

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
    for share, end in _ROUNDS_OF_FEW if samples <= _FEW_TRIALS else _ROUNDS:
        shares.setdefault(math.ceil(end * samples), share)
    return [(share, stop) for stop, share in shares.items()]


#: Bytes of constants from which models are not open beside each other: each has its weights once more, in the
#: order in which it reads them.
_LARGE_WEIGHTS = 1 << 28


class AutoRanges:
    """A model whose ranges are to be chosen.

    A context manager, at whose end no thread of it works any more.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`.
        threads: Threads per operator; ONNX Runtime's choice where None.
        device: Where the model runs.
    """

    def __init__(self, prepared: Model, threads: int | None, device: str) -> None:
        self._part = before_picks(prepared.graph_model)
        self._model = without_cached_outputs(self._part)
        self._is_part = self._model is not prepared.graph_model
        self._threads, self._device = threads, device
        self._network: TrialNetwork | None = None
        #: Whether the weights are so large that the caller should close the model that it has observed.
        self.is_large = weight_bytes(self._model) >= _LARGE_WEIGHTS

    @cached_property
    def takes_outputs(self) -> bool:
        """Whether :meth:`choose` can do with outputs that others computed, in batches of any size."""
        return not self._is_part and self._separate

    @cached_property
    def _separate(self) -> bool:
        return joined_by_graph(self._model).has_rows

    @cached_property
    def _placement(self) -> Placement | None:
        """What is quantized; None where there is nothing to quantize."""
        try:
            return place(self._part)
        except ModelError:
            return None

    @cached_property
    def _quantized(self) -> tuple[str, ...]:
        return tuple(self._placement.tensors) if self._placement else ()

    @cached_property
    def _fitting(self) -> FittingBatchSize:
        return FittingBatchSize(self._model, self._quantized)

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
        if self._placement and self._fitting.for_all is not None and not self.is_large:
            self._network = self._open(self._placement, self._fitting.for_all)

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
            samples: Samples to try ranges on; how many are used depends on the network.
            calibrated: How many samples the histograms are of.
            alone: Whether each sample has to be run by itself.
            outputs: What the float network gives out for each sample, where :attr:`takes_outputs`; None
                for what is not known. All have to be run where it is empty.
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
        placement = self._placement
        # A tensor that was zero throughout has no range to choose; the network takes one for it.
        if not (placement and samples and any(histograms[name].amax for name in self._quantized)):
            return plain_ranges(histograms)
        rows = self._fitting(samples[0])
        with self._network or self._open(placement, rows) as network:
            if not outputs or None in outputs:
                network.open_float(None if self._is_part or self.is_large else reference())
            return choose_ranges(
                network,
                histograms,
                self._quantized,
                samples,
                calibrated,
                rows=1 if alone else min(MOST_ROWS, rows),
                separate=self._separate,
                known=outputs,
                progress=progress,
            )

    def _open(self, placement: Placement, rows: int) -> TrialNetwork:
        """Opens the network, of which so many samples fit into memory at once."""
        return TrialNetwork(
            self._model,
            placement,
            threads=self._threads,
            device=self._device,
            return_memory=rows == 1,
            one_at_a_time=self.is_large,
        )


#: The most samples that ranges are tried on.
MOST_SAMPLES = 64

#: A sample whose outputs have fewer elements than this tells little by itself.
_FEW_ELEMENTS = 256


@dataclass(frozen=True)
class _Plan:
    """How many samples ranges are tried on at first.

    Attributes:
        fewest: At least so many.
        most: At most so many.
        margin: By how many standard errors the noise of another rule has to be lower after a quarter of them,
            and after half; otherwise the usual rule is taken at once.
    """

    fewest: int
    most: int
    margin: float

    @property
    def at_first(self) -> int:
        """How many the float network is run on before anything else, where there are so many."""
        return self.fewest // 2


#: For outputs of few elements and of more. Simulated on the stored noise of 24 networks: of the latter,
#: four samples in place of six, eight in place of 16 where it is close, and a whole standard error, cost
#: another 0.05 dB in the mean; of the former, a whole standard error costs 0.01 dB. To stop after a quarter
#: of them costs 0.001 dB, 0.003 dB with the margin, and after an eighth 0.02 dB. To leave out, after a
#: quarter of six samples, the rules that are worse on both costs 0.0004 dB on 37 networks, most of them the
#: first part of one; to decide by their mean costs more, and an image segmentation 8.6 dB.
_FEW, _MANY = _Plan(16, MOST_SAMPLES, 1.0), _Plan(6, 24, 0.25)

#: The most samples that are run at once.
MOST_ROWS = 16


def samples_to_try(calibrated: int, elements: int) -> int:
    """How many samples ranges are tried on, so that trying costs little beside calibrating.

    Args:
        calibrated: How many calibration samples there are.
        elements: How many elements the network's outputs have for one sample.

    Returns:
        A sixteenth: of outputs with 256 elements or more at least 6 and at most 24 samples, and of smaller
        outputs, whose noise is known from many samples only, 16 and 64. All, where there are not so many.
    """
    plan = _plan(elements)
    return min(calibrated, max(plan.fewest, min(calibrated // 16, plan.most)))


def _plan(elements: int) -> _Plan:
    return _FEW if elements < _FEW_ELEMENTS else _MANY


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

    Each rule is applied to every tensor, the quantized network is run on the samples, and the noise of its
    outputs is compared with the float network's, in decibels (see :func:`mean_level` for their mean over
    samples). A rule whose ranges are wider is preferred as long as they cost less than 1 dB for ranges twice
    as wide. The range of least squared error is kept where no other is clearly better
    (:func:`is_clearly_better`), because samples that are few or outputs that are small tell little. A rule
    that is worse than the usual one on each sample so far is not run on more. Where no other is better by
    some standard errors after a quarter of the samples, if these are enough to tell, or after half of them,
    the others are not run; where another is better but not clearly so and few samples were run, these
    two are run on more samples. Where ranges narrower than the usual ones are best, or none does well, those
    that cut off one value in a thousand are tried on the same samples, and taken where they are clearly
    better: a few calibration samples that are unlike all others make every other range too wide.

    Args:
        network: The network.
        histograms: Tensor name to the histogram of its magnitudes, for at least all quantized tensors.
        quantized: Names of the tensors that the network quantizes.
        samples: Samples to try the rules on, at least one; one feed per sample. :func:`samples_to_try` says
            how many of them are used at first.
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
        first=_MANY.at_first,
        separate=separate,
        known=[outputs and network.split(outputs) for outputs in known],
    )
    elements = references.elements
    if not elements:
        return plain_ranges(histograms)
    plan, count = _plan(elements), min(len(samples), samples_to_try(calibrated, elements))
    if network.one_at_a_time:
        references.run_until(count)
        network.close_float()
    else:
        references.run_ahead(min(plan.at_first, math.ceil(count / 2)))
    with (
        progress_bar("Choosing ranges", None, enabled=progress) as advance,
        Trials(network, references, advance) as trials,
    ):
        comparison = RuleComparison(network, trials, count, plan.margin)
        # The network runs with the ranges of one rule while those of the next are computed.
        of_quantized = {name: histograms[name] for name in quantized}
        for rule, found in ranges_by_rule(of_quantized):
            comparison.enter(rule, found, samples_of_all(count))
        best = comparison.best(len(samples), of_quantized)
    levels = {rule: -mean_level(found) for rule, found in comparison.levels.items()}
    tried = {rule: len(found) for rule, found in comparison.levels.items()}
    taken = comparison.ranges[best]
    chosen = {name: taken[name] if name in taken else range_of(h, best) for name, h in histograms.items()}
    return chosen, RangeChoice(best, levels, tried)


def plain_ranges(histograms: Mapping[str, Histogram]) -> tuple[dict[str, float], RangeChoice]:
    """The range of least squared error for every tensor, where a network's outputs tell nothing.

    Args:
        histograms: Tensor name to the histogram of its magnitudes.

    Returns:
        Tensor name to amax, and the choice, in which no rule was tried.
    """
    return {name: mse(histogram) for name, histogram in histograms.items()}, RangeChoice("mse", {}, {})
