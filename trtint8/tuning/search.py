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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from calibrators.checks import without_warnings
from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict, batch_rows
from calibrators.errors import counted, titled
from calibrators.progress import JUDGING, MEASURING, SEARCHING, Plan, job, progress_bar, time_left
from calibrators.tables.table import CalibrationTable
from trtint8.equalization.equalize import equalize
from trtint8.models.graph import constant_input, set_constant_input, value_names
from trtint8.models.model import Model, rebuilt
from trtint8.range_choice.auto import TRIAL, runs_to_spend
from trtint8.sensitivity.measure import WORK, measure
from trtint8.tuning.candidates import Candidate, Scorer, Trial, cost_shares, float_cost
from trtint8.tuning.journal import Journal, OutOfTimeError, TimeLimit
from trtint8.tuning.remedies.bias_correction import choose_ranges_anew, correct_biases, single_samples
from trtint8.tuning.remedies.rounding import adapt_rounding
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

#: The steps of a search that try remedies, as its plan names them.
_RANGES, _EQUALIZE, _ROUND, _CORRECT = "ranges", "equalize", "round", "correct"

#: The work of each step: calibrations, and runs of the float network for each of at most so many samples, as
#: measured on several networks. For the estimate only.
_STEPS: Mapping[str, tuple[float, float, int]] = {
    _RANGES: (0.2, 0.0, 0),
    _EQUALIZE: (0.0, 40.0, _CHECKED_SAMPLES),
    _ROUND: (0.0, 10.0, _REMEDY_SAMPLES),
    _CORRECT: (0.0, 2.0, _REMEDY_SAMPLES),
    MEASURING: (0.0, WORK, _SENSITIVITY_SAMPLES),
}

#: The work of scoring a candidate with a sample, in runs of the float network; and that of the first one, for
#: which the float network is run, too. Its outputs are kept.
_SCORE, _FIRST_SCORE = 1.5, 2.5

#: How many candidates are usually scored until few enough layers are in float, then with layers of less
#: arithmetic, and in all where nothing is known yet. For the estimate only.
_UNTIL_ENOUGH, _OF_LESS_ARITHMETIC, _RESTORED = 5, 2, 16

#: How likely it is that something is done as long as nothing is known of it. For the estimate only.
_PERHAPS = 0.5

#: What remedies are called in results.
_EQUALIZATION, _ROUNDING, _CORRECTION = "cross-layer equalization", "adaptive rounding", "bias correction"

#: Calibrates by a method a model with the calibration data, or with the samples that are given.
Recalibrate = Callable[[str, Model, Sequence[FeedDict] | None], CalibrationTable]

#: Makes a candidate with a remedy from another candidate; None where the remedy does not apply.
Remedy = Callable[[Candidate], "Candidate | None"]


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        candidate: The best candidate.
        score: Its score on the samples that are tuned on.
        number: The number of its trial, from 0.
        complete: Whether everything was tried; False if the time limit ended the search.
    """

    candidate: Candidate
    score: Score
    number: int
    complete: bool


def remedies(*, equalize: bool, round_weights: bool) -> tuple[list[str], list[str]]:
    """Returns the keys of the remedies that a search always tries, in order; and those for weights."""
    for_weights = [*([_ROUND] if round_weights else []), _CORRECT]
    return [_RANGES, *([_EQUALIZE] if equalize else []), *for_weights], for_weights


@dataclass(frozen=True)
class SearchWork:
    """How much work a search is, in runs of the float network on one sample.

    Attributes:
        samples: How many samples remedies are found with; None where that is not known.
        scored: How many samples candidates are scored with; None where that is not known.
        calibrated: How many samples the table is of; None where that is not known.
        method: The method of the table.
        for_weights: The keys of the remedies for weights.
    """

    samples: int | None
    scored: int | None
    calibrated: int | None
    method: str
    for_weights: Sequence[str]

    @property
    def first_score(self) -> float | None:
        """The work of scoring the first candidate; None where that is not known."""
        return None if self.scored is None else _FIRST_SCORE * self.scored

    def of(self, step: str) -> float | None:
        """The work of a step, or of scoring a further candidate; None where that is not known."""
        if step == JUDGING:
            return None if self.scored is None else _SCORE * self.scored
        if self.samples is None or self.calibrated is None:
            return None
        if step == _RANGES and self.method == "auto":
            return 0.0  # they are chosen so already
        calibrations, runs, most = _STEPS[step]
        calibration = self.calibrated + TRIAL * runs_to_spend(self.calibrated)
        return calibrations * calibration + runs * min(self.samples, most)

    def to_come(
        self, left: Sequence[str], *, again: float = 0.0, measured: float = 0.0, restored: float = 0.0
    ) -> dict[str, float | None]:
        """The work that is expected of each step.

        Args:
            left: The remedies that are still to be tried.
            again: How likely the remedies for weights are made once more.
            measured: How likely it is that the noise of the layers is measured.
            restored: How many candidates with layers in float are expected.
        """
        times = dict.fromkeys(left, 1.0)
        scores = len(left) + restored
        if _EQUALIZE in left:
            # It is done with some samples first, and with all, and scored, only where others gain from that.
            again, scores, times[_EQUALIZE] = _PERHAPS, scores - 1 + _PERHAPS, 1 + _PERHAPS
        for key in self.for_weights:
            times[key] = times.get(key, 0.0) + again
        times |= {MEASURING: measured, JUDGING: scores + again}
        works = {step: self.of(step) for step, number in times.items() if number}
        return {step: None if work is None else times[step] * work for step, work in works.items()}

    def whole(self, left: Sequence[str]) -> float | None:
        """The work that is expected of a whole search; None where that is not known."""
        to_come = self.to_come(left, measured=_PERHAPS, restored=_PERHAPS * _RESTORED)
        works = [self.first_score, *to_come.values()]
        return None if None in works else sum(filter(None, works))


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
        self._remedies_for_weights = (*([_ROUNDING] if round_weights else []), _CORRECTION)
        self._journal, self._limit, self._restores = journal, limit, False
        #: The remedies that are still to be tried, and whether layers may have to be restored to float.
        self._left, for_weights = remedies(equalize=recalibrate is not None, round_weights=round_weights)
        #: For the plan, how likely the remedies for weights are made once more, without equalization, and the
        #: noise of the layers is measured; and how many candidates with layers in float are expected.
        self._again, self._measures, self._to_restore = 0.0, 0.0, 0.0
        #: The candidates with remedies for weights that were made, by the names of all their remedies.
        self._made: dict[tuple[str, ...], Candidate] = {}
        self._shares_of_arithmetic: Mapping[str, float] | None = None
        self._plan, self._work = Plan({}), SearchWork(None, None, None, "", for_weights)

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

        scored, calibrated = self._scorer.batches.num_samples, start.table.provenance.samples
        self._work = dataclasses.replace(
            self._work,
            samples=self._samples.num_samples,
            scored=scored,
            calibrated=calibrated,
            method=start.table.method,
        )
        with job({JUDGING: self._work.first_score}, part_of=SEARCHING, keep=False) as self._plan:
            best = _Best(start, self._scored("as calibrated", start, is_taken), 0)
            # The time limit is checked between trials and between batches; what was begun is lost.
            try:
                self._improve(best)
            except OutOfTimeError:
                return Found(best.candidate, best.score, best.number, complete=False)
            return Found(best.candidate, best.score, best.number, complete=True)

    def _improve(self, best: _Best) -> None:
        self._try(best, _RANGES, "ranges chosen by the network's outputs", self._with_chosen_ranges, 0.0)
        unequalized = dataclasses.replace(best)
        if self._recalibrate:
            least = _EQUALIZATION_GAIN_DB if self._fits(best.score) else _LEAST_GAIN_DB
            self._try(best, _EQUALIZE, _EQUALIZATION, partial(self._equalized, least_gain=least), least)
        plain = dataclasses.replace(best)
        self._again = float(plain.candidate is not unequalized.candidate)
        for key, name in ((_ROUND, _ROUNDING), (_CORRECT, _CORRECTION)):
            if key in self._left:
                remedy = partial(self._compensated_too, plain.candidate, name)
                self._try(best, key, name, remedy, _LEAST_GAIN_DB)
        if plain.candidate is not unequalized.candidate:
            # Other weights may leave less for the remedies for weights than equalization itself gains.
            equalized, self._again = best.candidate, 0.0
            self._in_float(
                best, unequalized.candidate, (), self._remedies_for_weights, "without equalization"
            )
            if best.candidate is not equalized:
                plain = unequalized
        if not self._fits(best.score):
            self._restore_fewest_to_float(best, plain)

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
            make = {_ROUNDING: self._rounded, _CORRECTION: self._bias_corrected}[names[-1]]
            self._made[key] = make(start) or start
        return self._made[key]

    def _try(self, best: _Best, key: str, what: str, remedy: Remedy, least_gain: float) -> None:
        """Tries a remedy and continues from it if it is better.

        A candidate within the budget is better than one beyond it; otherwise the SQNR decides, because a
        small number of samples determines it better than the share of right classes. It has to be more than
        ``least_gain`` higher, in decibels.
        """
        self._left.remove(key)
        known = self._journal.next
        if known is not None and (known.what != what or not known.taken):
            if known.what == what:  # else it did not apply when the search was interrupted
                self._record(known)
            return
        self._limit.check()

        def is_better(score: Score) -> bool:
            least = best.score.sqnr_db + least_gain
            return (self._fits(score), score.sqnr_db) > (self._fits(best.score), least)

        candidate = remedy(best.candidate)
        if candidate is None:
            return
        score = self._score(what, candidate, is_better)
        if is_better(score):
            self._take(best, candidate, score)

    def _score(self, what: str, candidate: Candidate, is_taken: Callable[[Score], bool]) -> Score:
        """The score of a candidate: that of the interrupted search, where it is known, or a new one."""
        known = self._journal.next
        if known is not None:
            self._foresee(known.score, taken=known.taken)
            self._record(known)
            return known.score
        self._limit.check()
        return self._scored(what, candidate, is_taken)

    def _scored(self, what: str, candidate: Candidate, is_taken: Callable[[Score], bool]) -> Score:
        """Scores a candidate, and records whether the search continues from it."""
        begun = time.perf_counter()
        work = self._work.of(JUDGING) if self._journal.trials else self._work.first_score
        with job({}, part_of=JUDGING, work=work):
            score = self._scorer.score(candidate)
        seconds = time.perf_counter() - begun
        sizes = candidate.table.provenance.input_sizes
        cost = float_cost(candidate.model.graph_model, candidate.keep_float, sizes)
        taken = is_taken(score)
        if taken:  # the others are not described any further
            score = dataclasses.replace(score, margin=self._scorer.margin())
        self._foresee(score, taken=taken)
        left = time_left()
        seconds_left = left.seconds if left else None
        self._record(Trial(what, score, taken, len(candidate.keep_float), cost, seconds, seconds_left))
        return score

    def _foresee(self, score: Score, *, taken: bool) -> None:
        """Plans what is expected of the rest of the search after a trial."""
        if self._restores:
            self._to_restore = max(0.0, self._to_restore - 1)
        elif taken and self._fits(score):
            self._measures = self._to_restore = 0.0
        elif not self._journal.trials:
            self._measures, self._to_restore = 1.0, _RESTORED
        self._plan.to_come = self._work.to_come(
            self._left, again=self._again, measured=self._measures, restored=self._to_restore
        )

    def _step(self, step: str) -> AbstractContextManager[Plan]:
        """A step of the search, which is measured as a whole."""
        return job({}, part_of=step, work=self._work.of(step))

    def _take(self, best: _Best, candidate: Candidate, score: Score) -> None:
        """Makes the candidate of the last trial the best one."""
        best.candidate, best.score, best.number = candidate, score, len(self._journal.trials) - 1

    def _record(self, trial: Trial) -> None:
        self._journal.add(trial)
        self._on_trial(trial)

    def _with_chosen_ranges(self, start: Candidate) -> Candidate | None:
        feeds = iter(head(self._watched(), _RANGE_SAMPLES))
        with self._step(_RANGES):
            table = choose_ranges_anew(start.model, start.table, start.placement.tensors, feeds)
        return None if table is None else dataclasses.replace(start, table=table)

    def _equalized(self, start: Candidate, least_gain: float) -> Candidate | None:
        assert self._recalibrate is not None
        graph_model, clips, method = start.model.graph_model, self._through_clips, start.table.method
        calibrate = partial(self._recalibrate, method)
        with self._step(_EQUALIZE):
            samples = list(single_samples(start.model, iter(head(self._watched(), _CHECKED_SAMPLES))))
            samples = samples[:_CHECKED_SAMPLES]
            gain = partial(gain_on_others, start, samples, calibrate, through_clips=clips)
            if len(samples) > 1 and gain() <= least_gain:
                return None
        with self._step(_EQUALIZE):
            equalized = equalize(graph_model, self._feeds("Equalizing"), method, through_clips=clips)
            if not equalized.forms:
                return None
            model = rebuilt(equalized.model, start.model.name)
            # It is the same function, but channels that are alike take another rule for ranges.
            table = calibrate(model, None)
        name = _EQUALIZATION
        if equalized.headroom is not None:
            name += f" through clips, exact up to {equalized.headroom:.3g} times the peaks"
        remedies = (*start.remedies, name)
        return dataclasses.replace(start, model=model, table=table, remedies=remedies)

    def _bias_corrected(self, start: Candidate) -> Candidate | None:
        graph_model, amax = start.model.graph_model, start.table.amax
        with self._step(_CORRECT):
            corrected = correct_biases(graph_model, start.placement, amax, self._feeds("Correcting biases"))
        return _with_weights(start, corrected.model, _CORRECTION) if corrected.corrections else None

    def _rounded(self, start: Candidate) -> Candidate | None:
        feeds = self._feeds("Looking at weights")
        with self._step(_ROUND):
            adapted = adapt_rounding(start.model.graph_model, start.placement, feeds, seed=self._seed)
        return _with_weights(start, adapted.model, _ROUNDING)

    def _restore_fewest_to_float(self, best: _Best, plain: _Best) -> None:
        """Restores as few layers to float as the budget allows, those of most noise per cost first.

        Args:
            best: The best candidate so far, which becomes a better one.
            plain: The candidate without remedies for weights.
        """
        self._restores, self._measures, self._to_restore = True, 0.0, _RESTORED
        shares = self._noise_shares(plain.candidate)
        order = self._by_noise_per_cost(plain.candidate, shares)
        if not order:
            return
        _, taken = best.candidate.beyond(plain.candidate)
        ways = [way for way in dict.fromkeys((taken, self._remedies_for_weights)) if way] + [()]

        def fits(count: int) -> bool:
            what = f"{counted(count, 'layer')} in float"
            levels: dict[tuple[str, ...], float] = {}
            for way in ways:
                score = self._in_float(best, plain.candidate, order[:count], way, what)
                if score is None:
                    continue
                if self._fits(score):
                    return True
                levels[way] = score.sqnr_db
            # What is far behind with some layers in float is not tried with others.
            far = max(levels.values(), default=0.0) - _FAR_BEHIND_DB
            ways[:] = [way for way in ways if not levels.get(way, math.inf) < far]
            return False

        guess = first_guess(best.score, [shares[name] for name in order], self._fits)
        self._to_restore = _UNTIL_ENOUGH + _OF_LESS_ARITHMETIC + min(guess, _MOST_RETRIED) + len(ways) - 1
        count = fewest(len(order), fits, guess)
        if self._fits(best.score):
            chosen = self._try_cheaper(best, plain, shares, order[:count])
            # Without the last one it was tried already.
            names, _ = best.candidate.beyond(plain.candidate)
            self._give_back(best, plain, shares, names if chosen else order[: count - 1], len(ways) - 1)
        names, taken = best.candidate.beyond(plain.candidate)
        others = [way for way in ways if way != taken]
        for number, way in enumerate(others):
            self._to_restore = len(others) - number
            self._in_float(best, plain.candidate, names, way, "the same layers in float")

    def _try_cheaper(
        self, best: _Best, plain: _Best, shares: Mapping[str, float], names: Sequence[str]
    ) -> bool:
        """Tries sets of layers that make as much noise for less arithmetic than those in float.

        How much of the noise has to go is halved in between: what the layers make that are enough, and what
        they make without the last one, which is too little.

        Args:
            best: The best candidate so far, which becomes a better one; it is within the budget.
            plain: The candidate without remedies for weights.
            shares: Name of each layer to its share of the noise.
            names: The layers in float, the last of which is needed.

        Returns:
            True if one of these sets is within the budget.
        """
        costs, found, tried = self._costs(plain.candidate), False, {frozenset(names)}
        enough = math.fsum(shares[name] for name in names)
        too_little = enough - shares[names[-1]]
        for _ in range(_CHEAPER_SETS):
            needed = (too_little + enough) / 2
            chosen = cheapest(shares, costs, needed)
            kept, way = best.candidate.beyond(plain.candidate)
            cheaper = math.fsum(costs.get(name, 0.0) for name in chosen) < math.fsum(
                costs.get(name, 0.0) for name in kept
            )
            if not cheaper:
                enough = needed  # only less noise takes less arithmetic
                continue
            score = None
            if frozenset(chosen) not in tried:
                tried.add(frozenset(chosen))
                what = f"{counted(len(chosen), 'layer')} of less arithmetic in float"
                score = self._in_float(best, plain.candidate, chosen, way, what)
            if score is not None and self._fits(score):
                enough, found = needed, True
            else:
                too_little = needed
        return found

    def _give_back(
        self, best: _Best, plain: _Best, shares: Mapping[str, float], names: Sequence[str], then: int
    ) -> None:
        """Returns layers to INT8 that are not needed, first those that are likely so and gain most.

        Args:
            best: The best candidate so far, which becomes a better one; it is within the budget.
            plain: The candidate without remedies for weights.
            shares: Name of each layer to its share of the noise.
            names: The layers that may be returned.
            then: How many candidates are scored afterwards.
        """
        costs = self._costs(plain.candidate)
        left, in_vain = list(names), 0
        while left and in_vain < _MOST_RETRIED:
            noise = 10 ** ((best.score.sqnr_db - plain.score.sqnr_db) / 10) * _NOISE_OF_RETURNED
            likely = [name for name in left if self._fits(expected_score(best.score, -noise * shares[name]))]
            if likely:
                name = max(likely, key=lambda name: (costs[name], -shares[name]))
            else:
                name = min(left, key=lambda name: (shares[name], -costs[name]))
            self._to_restore = min(len(left), _MOST_RETRIED - in_vain) + then
            left.remove(name)
            kept, way = best.candidate.beyond(plain.candidate)
            others = [one for one in kept if one != name]
            title = titled(f"'{name}'", best.candidate.modules.get(name, ""))
            score = self._in_float(best, plain.candidate, others, way, f"{title} back in INT8")
            in_vain += score is None or not self._fits(score)

    def _in_float(
        self, best: _Best, plain: Candidate, names: Sequence[str], way: tuple[str, ...], what: str
    ) -> Score | None:
        """Scores a candidate with further layers in float.

        It becomes the best one where it is within the budget and the best one so far is not or costs more;
        and where both are within it at the same cost, or neither is, and it has less noise.

        Args:
            best: The best candidate so far.
            plain: The candidate without remedies for weights.
            names: The layers in float.
            way: The remedies for weights of what stays in INT8.
            what: What is tried, in words.

        Returns:
            The score; None where one of the remedies does not apply, or to no layer that stays in INT8.
        """
        what = ", ".join([what, *(f"with {name}" for name in way[:1]), *way[1:]])
        known = self._journal.next
        if known is not None and known.what != what:
            return None  # a remedy did not apply when the search was interrupted
        keep_float = (*plain.keep_float, *names)
        candidate = with_layers_in_float(plain, self._compensated(plain, way), keep_float)
        if candidate.remedies != (*plain.remedies, *way):
            return None
        costs = self._costs(plain)

        def cost(one: Candidate) -> float:
            return sum(costs.get(name, 0.0) for name in one.keep_float)

        def is_better(score: Score) -> bool:
            if self._fits(score) != self._fits(best.score):
                return self._fits(score)
            if self._fits(score) and set(keep_float) != set(best.candidate.keep_float):
                return cost(candidate) < cost(best.candidate)
            more = len(candidate.remedies) > len(best.candidate.remedies)
            return score.sqnr_db > best.score.sqnr_db + (_LEAST_GAIN_DB if more else 0.0)

        score = self._score(what, candidate, is_better)
        if is_better(score):
            self._take(best, candidate, score)
        return score

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

    def _by_noise_per_cost(self, start: Candidate, shares: dict[str, float]) -> list[str]:
        """Names of the quantized layers, those first whose noise is largest for what they cost in float."""
        costs = self._costs(start)
        # Every layer in float also costs a kernel of its own, so each has at least this cost.
        least = 1 / (8 * max(len(shares), 1))
        noise_per_cost = {name: share / (costs.get(name, 0.0) + least) for name, share in shares.items()}
        return sorted(noise_per_cost, key=lambda name: -noise_per_cost[name])

    def _costs(self, plain: Candidate) -> Mapping[str, float]:
        """Name of each node to its share of the network's arithmetic."""
        if self._shares_of_arithmetic is None:
            sizes = plain.table.provenance.input_sizes
            self._shares_of_arithmetic = cost_shares(plain.model.graph_model, sizes)
        return self._shares_of_arithmetic

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


@dataclass
class _Best:
    """The best candidate so far, its score, and the number of its trial."""

    candidate: Candidate
    score: Score
    number: int


def _with_weights(start: Candidate, graph_model: ir.Model, *remedies: str) -> Candidate:
    """A candidate with changed weights and the same ranges."""
    model = rebuilt(graph_model, start.model.name)
    provenance = dataclasses.replace(start.table.provenance, model=model.fingerprint)
    table = dataclasses.replace(start.table, provenance=provenance)
    return dataclasses.replace(start, model=model, table=table, remedies=(*start.remedies, *remedies))


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
    return _with_weights(start, graph_model, *remedies)


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
    return dataclasses.replace(score, drop=drop, sqnr_db=score.sqnr_db + gain, value=value)


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
