"""The search for the cheapest combination of remedies that keeps the loss of accuracy within a budget.

Remedies that cost nothing when the network runs are tried always: ranges chosen by what they cost the
network's outputs, then changed weights that lose less in INT8. Each is taken where it leaves less noise, and
equalization where the other remedies do not gain more without it. Only if the loss is still too large are
layers restored to float, in the order of their noise per cost, as few as keep the budget. Each number of them
is judged with the remedies for weights and without them. In the end, layers that turn out not to be needed
return to INT8.

Remedies, and the order of the layers, are found with some samples. Every decision is made with others, and
the result is validated with others again.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from calibrators.checks import without_warnings
from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict, batch_rows
from calibrators.errors import counted, titled
from calibrators.progress import job, progress_bar
from calibrators.tables.table import CalibrationTable
from trtint8.equalization.equalize import equalize
from trtint8.models.graph import constant_input, set_constant_input, value_names
from trtint8.models.model import Model, rebuilt
from trtint8.sensitivity.measure import measure
from trtint8.tuning.candidates import Candidate, Scorer, Trial, cost_shares, float_cost
from trtint8.tuning.journal import Journal, OutOfTimeError, TimeLimit
from trtint8.tuning.remedies.bias_correction import (
    CORRECTION,
    choose_ranges_anew,
    correct_biases,
    single_samples,
)
from trtint8.tuning.remedies.rounding import ROUNDING, adapt_rounding
from trtint8.tuning.samples import head
from trtint8.validation.budget import Score

#: Numbers of samples for choosing ranges, for changing weights, and for ordering layers by their noise.
_RANGE_SAMPLES, _REMEDY_SAMPLES, _SENSITIVITY_SAMPLES = 64, 128, 256

#: Decibels of SQNR that changed weights have to gain. They are chosen and scored with the same samples, so a
#: smaller gain may be chance, and the float model with these weights is one more file to keep.
_LEAST_GAIN_DB = 0.1

#: Decibels of SQNR that equalization has to gain where the loss is within the budget already. Outlier
#: channels cost much more.
_EQUALIZATION_GAIN_DB = 3.0

#: Of so many samples one half says what equalization with the other half gains. A detector that was
#: calibrated with 13 images gained 2.1 dB on these and lost 2.4 dB on others.
_CHECKED_SAMPLES = 64

#: The most layers that are tried in INT8 again in vain, after the search has restored more than needed.
_MOST_RETRIED = 12

#: How many sets of layers of less arithmetic are tried at most, after the search has found enough layers.
_CHEAPER_SETS = 6

#: Into how many parts the noise is divided where the cheapest layers are chosen.
_NOISE_STEPS = 2000

#: Remedies for weights with so many decibels less than others are not tried with more layers in float.
_FAR_BEHIND_DB = 0.5

#: A layer is expected not to be needed where so much of its noise would still be within the budget: what it
#: makes behind remedies for weights is less than its share says.
_NOISE_OF_RETURNED = 0.5

#: What equalization is called in results.
_EQUALIZATION = "cross-layer equalization"

#: Calibrates by a method a model with the calibration data, or with the samples that are given.
Recalibrate = Callable[[str, Model, Sequence[FeedDict] | None], CalibrationTable]


#: Makes a candidate with a remedy from another candidate; None where it does not apply.
Make = Callable[[Candidate], "Candidate | None"]


@dataclass(frozen=True)
class Found:
    """The best that a search has found.

    Attributes:
        candidate: The best candidate.
        score: Its score on the samples that are tuned on.
        number: The number of its trial, from 0.
        complete: Whether everything was tried; False if the time limit ended the search.
    """

    candidate: Candidate
    score: Score
    number: int
    complete: bool = True


class Search:
    """One search, with a record of everything that it tried.

    Args:
        scorer: Scores candidates on the samples that decide.
        fits: Whether a score is within the budget.
        samples: The samples that remedies, and the order of the layers, are found with.
        check_start: Called with the score that the search starts from; raises where none can be within it.
        recalibrate: Calibrates a model with equalized weights; None leaves equalization out.
        through_clips: Whether channels that pass bounds are equalized too.
        round_weights: Whether adaptive rounding is among the remedies.
        seed: Seed of all random choices.
        on_trial: Called with every trial.
        journal: Records the trials, and has those of an interrupted search.
        limit: How long the search may take.

    Attributes:
        for_weights: Names of the remedies for weights, in order, to what makes candidates with them.
    """

    def __init__(
        self,
        scorer: Scorer,
        fits: Callable[[Score], bool],
        *,
        samples: Batches,
        check_start: Callable[[Score], None] = lambda _score: None,
        recalibrate: Recalibrate | None,
        through_clips: bool = False,
        round_weights: bool,
        seed: int,
        on_trial: Callable[[Trial], None],
        journal: Journal,
        limit: TimeLimit,
    ) -> None:
        self._scorer, self._fits, self._samples, self._seed = scorer, fits, samples, seed
        self._check_start, self._through_clips = check_start, through_clips
        self._recalibrate, self._on_trial = recalibrate, on_trial
        self._journal, self._limit = journal, limit
        self.for_weights: dict[str, Make] = {ROUNDING: self._rounded} if round_weights else {}
        self.for_weights[CORRECTION] = self._bias_corrected
        #: The candidates with remedies for weights that were made, by the names of all their remedies.
        self._made: dict[tuple[str, ...], Candidate] = {}

    def run(self, start: Candidate) -> Found:
        """Runs the search.

        Args:
            start: The candidate to start from.

        Returns:
            The cheapest candidate found within the budget; where there is none, or the time was over before
            one was found, the best so far.

        Raises:
            CalibrationDataError: The metric does not apply to the model or the data, or no candidate can be
                within the budget.
        """

        def is_taken(score: Score) -> bool:
            self._check_start(score)  # before anything is recorded
            return True

        self._start = start
        with job(keep=False):
            self._best = Found(start, self._scored("as calibrated", start, is_taken), 0)
            # The time limit is checked between trials and between batches; what was begun is lost.
            try:
                self._improve()
            except OutOfTimeError:
                return dataclasses.replace(self._best, complete=False)
            return self._best

    def _improve(self) -> None:
        self._add("ranges chosen by the network's outputs", self._with_chosen_ranges, 0.0)
        unequalized = self._best
        if self._recalibrate:
            least = _EQUALIZATION_GAIN_DB if self._fits(unequalized.score) else _LEAST_GAIN_DB
            self._add(_EQUALIZATION, partial(self._equalized, least_gain=least), least)
        plain, names = self._best, tuple(self.for_weights)
        for name in names:
            self._add(name, partial(self._compensated_too, plain.candidate, name))
        if plain is not unequalized:
            # Other weights may leave less for the remedies for weights than equalization itself gains.
            equalized = self._best
            self._in_float(unequalized.candidate, (), names, "without equalization")
            if self._best is not equalized:
                plain = unequalized
        if not self._fits(self._best.score):
            self._restore_fewest_to_float(plain)

    def _compensated_too(self, plain: Candidate, name: str, best: Candidate) -> Candidate | None:
        """The best candidate with one more remedy for weights; None where it does not apply."""
        _, way = best.beyond(plain)
        candidate = self._compensated(plain, (*way, name))
        return None if candidate.remedies == best.remedies else candidate

    def _compensated(self, plain: Candidate, names: tuple[str, ...]) -> Candidate:
        """A candidate with remedies for weights, which are made once; without those that do not apply."""
        if not names:
            return plain
        key = (*plain.remedies, *names)
        if key not in self._made:
            start = self._compensated(plain, names[:-1])
            self._made[key] = self.for_weights[names[-1]](start) or start
        return self._made[key]

    def _add(self, name: str, make: Make, least_gain: float = _LEAST_GAIN_DB) -> None:
        """Tries a remedy and continues from it if it is better.

        A candidate within the budget is better than one beyond it; otherwise the SQNR decides, because a
        small number of samples determines it better than the share of right classes.

        Args:
            name: What it is called in results.
            make: Makes a candidate with it.
            least_gain: So many decibels the SQNR has to become higher, and more.
        """
        best = self._best

        def is_better(score: Score) -> bool:
            least = best.score.sqnr_db + least_gain
            return (self._fits(score), score.sqnr_db) > (self._fits(best.score), least)

        self._try(name, lambda: make(best.candidate), is_better)

    def _try(
        self,
        what: str,
        make: Callable[[], Candidate | None],
        is_better: Callable[[Score], bool],
    ) -> Score | None:
        """Scores a candidate, which becomes the best one where it is better.

        What an interrupted search has scored has that score, and is made only where it was taken.

        Args:
            what: What is tried, in words.
            make: Makes the candidate; None where it does not apply.
            is_better: Whether it is better than the best one so far.

        Returns:
            The score; None where it does not apply.
        """
        known, candidate = self._journal.next, None
        if known is None:
            self._limit.check()
            candidate = make()
            if candidate is None:
                return None
            self._limit.check()
            self._scored(what, candidate, is_better)
        elif known.what != what:
            return None  # it did not apply when the search was interrupted
        else:
            candidate = make() if known.taken else None
            self._record(known)
        trial = self._journal.trials[-1]
        if trial.taken and candidate is not None:
            self._best = Found(candidate, trial.score, len(self._journal.trials) - 1)
        return trial.score

    def _scored(self, what: str, candidate: Candidate, is_taken: Callable[[Score], bool]) -> Score:
        """Scores a candidate, and records whether the search continues from it."""
        begun = time.perf_counter()
        score = self._scorer.score(candidate)
        seconds = time.perf_counter() - begun
        sizes = candidate.table.provenance.input_sizes
        cost = float_cost(candidate.model.graph_model, candidate.keep_float, sizes)
        taken = is_taken(score)
        self._record(Trial(what, score, taken, len(candidate.keep_float), cost, seconds))
        return score

    def _record(self, trial: Trial) -> None:
        self._journal.add(trial)
        self._on_trial(trial)

    def _with_chosen_ranges(self, start: Candidate) -> Candidate | None:
        feeds = iter(head(self._watched(), _RANGE_SAMPLES))
        table = choose_ranges_anew(start.model, start.table, start.placement.tensors, feeds)
        return None if table is None else dataclasses.replace(start, table=table)

    def _equalized(self, start: Candidate, least_gain: float) -> Candidate | None:
        assert self._recalibrate is not None
        graph_model, clips, method = start.model.graph_model, self._through_clips, start.table.method
        calibrate = partial(self._recalibrate, method)
        samples = list(single_samples(start.model, iter(head(self._watched(), _CHECKED_SAMPLES))))
        samples = samples[:_CHECKED_SAMPLES]
        gain = partial(gain_on_others, start, samples, calibrate, through_clips=clips)
        if len(samples) > 1 and gain() <= least_gain:
            return None
        equalized = equalize(graph_model, self._feeds("Equalizing"), method, through_clips=clips)
        if not equalized.forms:
            return None
        model = rebuilt(equalized.model, start.model.name)
        # It is the same function, but channels that are alike take another rule for ranges.
        table = dataclasses.replace(calibrate(model, None), float_layers=start.table.float_layers)
        name = _EQUALIZATION
        if equalized.headroom is not None:
            name += f" through clips, exact up to {equalized.headroom:.3g} times the peaks"
        return dataclasses.replace(start, model=model, table=table, remedies=(*start.remedies, name))

    def _bias_corrected(self, start: Candidate) -> Candidate | None:
        graph_model, amax = start.model.graph_model, start.table.amax
        corrected = correct_biases(graph_model, start.placement, amax, self._feeds("Correcting biases"))
        return start.with_weights(corrected.model, CORRECTION) if corrected.corrections else None

    def _rounded(self, start: Candidate) -> Candidate | None:
        feeds = self._feeds("Looking at weights")
        adapted = adapt_rounding(start.model.graph_model, start.placement, feeds, seed=self._seed)
        return start.with_weights(adapted.model, ROUNDING)

    def _restore_fewest_to_float(self, plain: Found) -> None:
        """Restores as few layers to float as the budget allows, those of most noise per cost first.

        Args:
            plain: The candidate without remedies for weights.
        """
        shares = self._noise_shares(plain.candidate)
        order = self._by_noise_per_cost(shares)
        if not order:
            return
        _, taken = self._best.candidate.beyond(plain.candidate)
        ways = [way for way in dict.fromkeys((taken, tuple(self.for_weights))) if way] + [()]

        def fits(count: int) -> bool:
            what = f"{counted(count, 'layer')} in float"
            levels: dict[tuple[str, ...], float] = {}
            for way in ways:
                score = self._in_float(plain.candidate, order[:count], way, what)
                if score is None:
                    continue
                if self._fits(score):
                    return True
                levels[way] = score.sqnr_db
            # What is far behind with some layers in float is not tried with others.
            far = max(levels.values(), default=0.0) - _FAR_BEHIND_DB
            ways[:] = [way for way in ways if not levels.get(way, math.inf) < far]
            return False

        guess = first_guess(self._best.score, [shares[name] for name in order], self._fits)
        count = fewest(len(order), fits, guess)
        if self._fits(self._best.score):
            chosen = self._try_cheaper(plain.candidate, shares, order[:count])
            # Without the last one it was tried already.
            names, _ = self._best.candidate.beyond(plain.candidate)
            self._give_back(plain, shares, names if chosen else order[: count - 1])
        names, taken = self._best.candidate.beyond(plain.candidate)
        for way in [way for way in ways if way != taken]:
            self._in_float(plain.candidate, names, way, "the same layers in float")

    def _try_cheaper(self, plain: Candidate, shares: Mapping[str, float], names: Sequence[str]) -> bool:
        """Tries sets of layers that make as much noise for less arithmetic than those in float.

        How much of the noise has to go is halved in between: what the layers make that are enough, and what
        they make without the last one, which is too little.

        Args:
            plain: The candidate without remedies for weights; the best one so far is within the budget.
            shares: Name of each layer to its share of the noise.
            names: The layers in float, the last of which is needed.

        Returns:
            True if one of these sets is within the budget.
        """
        found, tried = False, {frozenset(names)}
        enough = math.fsum(shares[name] for name in names)
        too_little = enough - shares[names[-1]]
        for _ in range(_CHEAPER_SETS):
            needed = (too_little + enough) / 2
            chosen = cheapest(shares, self._costs, needed)
            kept, way = self._best.candidate.beyond(plain)
            if not self._cost(chosen) < self._cost(kept):
                enough = needed  # only less noise takes less arithmetic
                continue
            score = None
            if frozenset(chosen) not in tried:
                tried.add(frozenset(chosen))
                what = f"{counted(len(chosen), 'layer')} of less arithmetic in float"
                score = self._in_float(plain, chosen, way, what)
            if score is not None and self._fits(score):
                enough, found = needed, True
            else:
                too_little = needed
        return found

    def _give_back(self, plain: Found, shares: Mapping[str, float], names: Sequence[str]) -> None:
        """Returns layers to INT8 that are not needed, first those that are likely so and gain most.

        Args:
            plain: The candidate without remedies for weights; the best one so far is within the budget.
            shares: Name of each layer to its share of the noise.
            names: The layers that may be returned.
        """
        left, in_vain = list(names), 0
        while left and in_vain < _MOST_RETRIED:
            best = self._best
            noise = 10 ** ((best.score.sqnr_db - plain.score.sqnr_db) / 10) * _NOISE_OF_RETURNED
            likely = [name for name in left if self._fits(expected_score(best.score, -noise * shares[name]))]
            if likely:
                name = max(likely, key=lambda name: (self._costs[name], -shares[name]))
            else:
                name = min(left, key=lambda name: (shares[name], -self._costs[name]))
            left.remove(name)
            kept, way = best.candidate.beyond(plain.candidate)
            others = [one for one in kept if one != name]
            title = titled(f"'{name}'", best.candidate.modules.get(name, ""))
            score = self._in_float(plain.candidate, others, way, f"{title} back in INT8")
            in_vain += score is None or not self._fits(score)

    def _in_float(
        self, plain: Candidate, names: Sequence[str], way: tuple[str, ...], what: str
    ) -> Score | None:
        """Scores a candidate with further layers in float.

        It becomes the best one where it is within the budget and the best one so far is not or costs more;
        and where both are within it at the same cost, or neither is, and it has less noise.

        Args:
            plain: The candidate without remedies for weights.
            names: The layers in float.
            way: The remedies for weights of what stays in INT8.
            what: What is tried, in words.

        Returns:
            The score; None where one of the remedies does not apply, or to no layer that stays in INT8.
        """
        keep_float, best = (*plain.keep_float, *names), self._best

        def make() -> Candidate | None:
            candidate = with_layers_in_float(plain, self._compensated(plain, way), keep_float)
            return candidate if candidate.remedies == (*plain.remedies, *way) else None

        def is_better(score: Score) -> bool:
            if self._fits(score) != self._fits(best.score):
                return self._fits(score)
            if self._fits(score) and set(keep_float) != set(best.candidate.keep_float):
                return self._cost(keep_float) < self._cost(best.candidate.keep_float)
            more = len(plain.remedies) + len(way) > len(best.candidate.remedies)
            return score.sqnr_db > best.score.sqnr_db + (_LEAST_GAIN_DB if more else 0.0)

        return self._try(", ".join([what, *(f"with {name}" for name in way[:1]), *way[1:]]), make, is_better)

    def _noise_shares(self, start: Candidate) -> dict[str, float]:
        """Name of each quantized layer to its share of the network's noise."""
        if not self._journal.shares:
            sensitivity = measure(
                start.model,
                start.table,
                head(self._watched(), _SENSITIVITY_SAMPLES),
                keep_float=start.keep_float,
            )
            self._journal.add_shares({layer.node: layer.noise_share for layer in sensitivity.layers})
        return dict(self._journal.shares)

    def _by_noise_per_cost(self, shares: Mapping[str, float]) -> list[str]:
        """Names of the quantized layers, those first whose noise is largest for what they cost in float."""
        # Every layer in float also costs a kernel of its own, so each has at least this cost.
        least = 1 / (8 * max(len(shares), 1))
        return sorted(shares, key=lambda name: -shares[name] / (self._costs.get(name, 0.0) + least))

    @cached_property
    def _costs(self) -> Mapping[str, float]:
        """Name of each node to its share of the network's arithmetic."""
        start = self._start
        return cost_shares(start.model.graph_model, start.table.provenance.input_sizes)

    def _cost(self, names: Iterable[str]) -> float:
        return math.fsum(self._costs.get(name, 0.0) for name in names)

    def _feeds(self, what: str) -> Iterator[FeedDict]:
        """The samples that remedies for weights are found with; a bar shows how many were taken."""
        samples = self._samples.num_samples
        total = None if samples is None else min(samples, _REMEDY_SAMPLES)
        return shown(iter(head(self._watched(), _REMEDY_SAMPLES)), what, total)

    def _watched(self) -> Batches:
        """The samples, as long as there is time."""
        batches = self._samples
        return batches.passing(lambda: self._limit.watched(batches.start()))


def shown(feeds: Iterator[FeedDict], what: str, samples: int | None) -> Iterator[FeedDict]:
    """The same feeds; a bar shows how many of them were taken.

    Args:
        feeds: The feeds.
        what: What is done with them, in a word or two.
        samples: How many samples they hold; None where that is not known.
    """
    with progress_bar(what, samples) as advance:
        for feed in feeds:
            yield feed
            advance(batch_rows(feed) or 1)


def with_layers_in_float(plain: Candidate, compensated: Candidate, keep_float: tuple[str, ...]) -> Candidate:
    """A candidate with layers in float, and with compensating weights and biases in the layers in INT8.

    What compensates for the error of INT8 in a layer harms it in float. It was found for each layer by
    itself, so it stays right for those that remain.

    Args:
        plain: The candidate with the weights and biases that layers in float get.
        compensated: The same candidate with those of layers in INT8.
        keep_float: Names of the layers in float.

    Returns:
        The candidate, which has no further remedies where no weight and no bias differs.
    """
    start = dataclasses.replace(plain, keep_float=keep_float)
    if compensated is plain:
        return start
    differs = False
    graph_model = plain.model.graph_model.clone()
    changed = {node.name: node for node in compensated.model.graph_model.graph}
    quantized, taken = set(start.placement.quantized_nodes), value_names(graph_model.graph)
    for node in graph_model.graph:
        if node.name in quantized:
            for index in range(1, len(changed[node.name].inputs)):
                new, old = constant_input(changed[node.name], index), None
                if index < len(node.inputs):
                    old = constant_input(node, index)
                if new is not None and (old is None or not np.array_equal(new, old)):
                    set_constant_input(node, index, new, taken)
                    differs = True
    if not differs:
        return start
    _, remedies = compensated.beyond(plain)
    return start.with_weights(graph_model, *remedies)


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
    changed = dataclasses.replace(score, sqnr_db=score.sqnr_db + gain)
    # A metric in decibels, such as sqnr, whose value for equal outputs, or FP32's, is infinite.
    if score.drop is None or math.isinf(score.drop):
        return changed.raised(gain)
    return changed.raised(score.drop * (1 - math.sqrt(rest)))


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


def cheapest(shares: Mapping[str, float], costs: Mapping[str, float], needed: float) -> tuple[str, ...]:
    """The layers that make a given part of the noise, or more, at the least cost.

    A knapsack problem, solved by dynamic programming over the noise in equal steps.

    Args:
        shares: Name of each layer to its share of the noise.
        costs: Name of each layer to its share of the arithmetic.
        needed: The part of the noise; at most that of all layers.

    Returns:
        Names of the layers, in the order of ``shares``. Of equal costs, those of fewer layers.
    """
    steps = [round(share * _NOISE_STEPS) for share in shares.values()]
    names = [name for name, step in zip(shares, steps, strict=True) if step > 0]
    steps = [step for step in steps if step > 0]
    goal = min(math.ceil(needed * _NOISE_STEPS), sum(steps))
    # The least cost, with a little for each layer, of at least so many steps.
    least = np.full(goal + 1, np.inf)
    least[0] = 0.0
    taken = np.zeros((len(names), goal + 1), bool)
    reached = np.arange(goal + 1)
    for row, (name, step) in enumerate(zip(names, steps, strict=True)):
        cost = least[np.maximum(reached - step, 0)] + costs.get(name, 0.0) + _LEAST_COST
        taken[row] = cost < least
        least = np.minimum(least, cost)
    left, chosen = goal, list[str]()
    for row in reversed(range(len(names))):
        if left > 0 and taken[row, left]:
            chosen.append(names[row])
            left = max(0, left - steps[row])
    return tuple(reversed(chosen))


#: What a layer in float costs at least where others have no more arithmetic: a kernel of its own.
_LEAST_COST = 1e-6

#: Calibrates a model with some samples.
Calibrate = Callable[[Model, Sequence[FeedDict]], CalibrationTable]


def gain_on_others(
    start: Candidate, samples: Sequence[FeedDict], calibrate: Calibrate, *, through_clips: bool = False
) -> float:
    """Equalizes and calibrates with every other sample, and compares on those between.

    Equalization brings all channels close to the end of the range, which samples that were not calibrated
    with exceed more often than before. On the samples that were, that does not show.

    Args:
        start: The candidate that is to be equalized.
        samples: Two samples or more, one feed each.
        calibrate: Calibrates a model with samples.
        through_clips: Whether channels that pass bounds are equalized too.

    Returns:
        How much higher the SQNR is with equalized channels, in decibels; 0 where there are none.

    Raises:
        CalibrationDataError: The model fails on a sample.
    """
    seen, others = samples[::2], samples[1::2]
    graph_model, method = start.model.graph_model, start.table.method
    feeds = shown(iter(seen), "Equalizing", len(seen))
    equalized = equalize(graph_model, feeds, method, through_clips=through_clips)
    if not equalized.forms:
        return 0.0
    scorer = Scorer(start.model, Batches.of_feeds(lambda: iter(others)), "sqnr")

    def sqnr_db(model: Model) -> float:
        with without_warnings():  # the ranges are not used
            table = calibrate(model, seen)
        return scorer.score(dataclasses.replace(start, model=model, table=table)).sqnr_db

    return sqnr_db(rebuilt(equalized.model, start.model.name)) - sqnr_db(start.model)
