"""The search for the cheapest combination of remedies that keeps the loss of accuracy within a budget.

Remedies that cost nothing when the network runs are tried always: ranges chosen by what they cost the
network's outputs, then changed weights that lose less in INT8. Each is taken where it leaves less noise. Only
if the loss is still too large are layers restored to float, in the order of their noise per cost, as few as
keep the budget. Every decision is made with the same samples, and the result is validated with other samples.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict
from calibrators.errors import counted
from calibrators.tables.table import CalibrationTable
from trtint8.equalization.equalize import equalize
from trtint8.models.model import Model, rebuilt
from trtint8.sensitivity.measure import measure
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

#: The most layers that are tried in INT8 again after the search has restored more layers than needed.
_MOST_RETRIED = 4

#: What trying a remedy takes, in scores of a candidate: making it, and its own score. For the estimate only.
_SCORES_PER_REMEDY = {"ranges": 2.0, "equalize": 7.0, "round": 4.0, "correct": 4.0}

#: What restoring layers to float takes, in scores of a candidate.
_SCORES_OF_FLOAT = 16.0

#: What remedies are called in results.
_EQUALIZATION, _ROUNDING, _CORRECTION = "cross-layer equalization", "adaptive rounding", "bias correction"

#: Calibrates a model with the calibration data, or with the samples that are given.
Recalibrate = Callable[[Model, Sequence[FeedDict] | None], CalibrationTable]

#: Makes a candidate with a remedy from another candidate; None where the remedy does not apply.
Remedy = Callable[[Candidate], "Candidate | None"]


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        candidate: The best candidate.
        score: Its score on the samples that are tuned on.
        number: The number of its trial, from 0.
        complete: Whether everything was tried; False where the time was over.
    """

    candidate: Candidate
    score: Score
    number: int
    complete: bool


class Search:
    """One search, with a record of everything that it tried.

    Args:
        scorer: Scores candidates on the samples that are tuned on.
        fits: Whether a score is within the budget.
        check_start: Called with the score that the search starts from; raises where none can be within it.
        recalibrate: Calibrates a model with equalized weights; None leaves equalization out.
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
        check_start: Callable[[Score], None] = lambda _score: None,
        recalibrate: Recalibrate | None,
        round_weights: bool,
        seed: int,
        on_trial: Callable[[Trial], None],
        journal: Journal,
        limit: TimeLimit,
    ) -> None:
        self._scorer, self._fits, self._seed = scorer, fits, seed
        self._check_start = check_start
        self._recalibrate, self._round_weights, self._on_trial = recalibrate, round_weights, on_trial
        self._journal, self._limit = journal, limit
        #: The remedies that are still to be tried, and whether layers may have to be restored to float.
        self._left = ["ranges", "equalize"] if recalibrate else ["ranges"]
        self._left += ["round", "correct"] if round_weights else ["correct"]
        self._may_need_float = True

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

        best = _Best(start, self._scored("as calibrated", start, is_taken), 0)
        # The time limit is checked between trials and between batches; what was begun is lost.
        try:
            self._improve(best)
        except OutOfTimeError:
            return Found(best.candidate, best.score, best.number, complete=False)
        return Found(best.candidate, best.score, best.number, complete=True)

    def _improve(self, best: _Best) -> None:
        self._try(best, "ranges", "ranges chosen by the network's outputs", self._with_chosen_ranges, 0.0)
        if self._recalibrate:
            least = _EQUALIZATION_GAIN_DB if self._fits(best.score) else _LEAST_GAIN_DB
            self._try(best, "equalize", _EQUALIZATION, partial(self._equalized, least_gain=least), least)
        # A correction for the error of INT8 harms a layer in float. So layers are restored to float in the
        # candidate without corrections, and what stays in INT8 is corrected afterwards.
        uncompensated = dataclasses.replace(best)
        self._compensate(best)
        self._may_need_float = not self._fits(best.score)
        if self._may_need_float:
            self._restore_fewest_to_float(best, uncompensated)
            self._left = ["round", "correct"] if self._round_weights else ["correct"]
            self._compensate(best)

    def _compensate(self, best: _Best) -> None:
        """Tries weights and biases that compensate for the error of quantization."""
        if self._round_weights:
            self._try(best, "round", _ROUNDING, self._rounded, _LEAST_GAIN_DB)
        self._try(best, "correct", _CORRECTION, self._bias_corrected, _LEAST_GAIN_DB)

    def _try(self, best: _Best, key: str, what: str, remedy: Remedy, least_gain: float) -> None:
        """Tries a remedy and continues from it if it is better.

        A candidate within the budget is better than one beyond it; otherwise the SQNR decides, because a
        small number of samples determines it better than the share of right classes. It has to be more than
        ``least_gain`` higher, in decibels.
        """
        self._left.remove(key)
        known = self._journal.next
        if known is not None and known.what != what:
            return  # it did not apply when the search was interrupted
        if known is not None and not known.taken:
            self._record(known)
            return
        self._limit.check()
        candidate = remedy(best.candidate)
        if candidate is None:
            return

        def is_better(score: Score) -> bool:
            least = best.score.sqnr_db + least_gain
            return (self._fits(score), score.sqnr_db) > (self._fits(best.score), least)

        score = self._score(what, candidate, is_better)
        if is_better(score):
            self._take(best, candidate, score)

    def _score(self, what: str, candidate: Candidate, is_taken: Callable[[Score], bool]) -> Score:
        """The score of a candidate: that of the interrupted search, where it is known, or a new one."""
        known = self._journal.next
        if known is not None:
            self._record(known)
            return known.score
        self._limit.check()
        return self._scored(what, candidate, is_taken)

    def _scored(self, what: str, candidate: Candidate, is_taken: Callable[[Score], bool]) -> Score:
        """Scores a candidate, and records whether the search continues from it."""
        begun = time.perf_counter()
        score = self._scorer.score(candidate)
        seconds = time.perf_counter() - begun
        sizes = candidate.table.provenance.input_sizes
        cost = float_cost(candidate.model.graph_model, candidate.keep_float, sizes)
        left = seconds * self._scores_left(score)
        self._record(Trial(what, score, is_taken(score), len(candidate.keep_float), cost, seconds, left))
        return score

    def _scores_left(self, score: Score) -> float:
        """About what the rest of the search takes, in scores of a candidate."""
        floats = _SCORES_OF_FLOAT if self._may_need_float and not self._fits(score) else 0.0
        return sum(_SCORES_PER_REMEDY[key] for key in self._left) + floats

    def _take(self, best: _Best, candidate: Candidate, score: Score) -> None:
        """Makes the candidate of the last trial the best one."""
        best.candidate, best.score, best.number = candidate, score, len(self._journal.trials) - 1

    def _record(self, trial: Trial) -> None:
        self._journal.add(trial)
        self._on_trial(trial)

    def _with_chosen_ranges(self, start: Candidate) -> Candidate | None:
        feeds = self._feeds(_RANGE_SAMPLES)
        table = choose_ranges_anew(start.model, start.table, start.placement.tensors, feeds)
        return None if table is None else dataclasses.replace(start, table=table)

    def _equalized(self, start: Candidate, least_gain: float) -> Candidate | None:
        recalibrate = self._recalibrate
        assert recalibrate is not None
        graph_model = start.model.graph_model
        samples = list(single_samples(start.model, self._feeds(_CHECKED_SAMPLES)))[:_CHECKED_SAMPLES]
        if len(samples) > 1 and gain_on_others(start, samples, recalibrate) <= least_gain:
            return None
        equalized = equalize(graph_model, self._feeds(_REMEDY_SAMPLES), start.table.method)
        if not equalized.forms:
            return None
        model = rebuilt(equalized.model, start.model.name)
        # It is the same function, but channels that are alike take another rule for ranges.
        table = recalibrate(model, None)
        remedies = (*start.remedies, _EQUALIZATION)
        return dataclasses.replace(start, model=model, table=table, remedies=remedies)

    def _bias_corrected(self, start: Candidate) -> Candidate | None:
        graph_model, amax = start.model.graph_model, start.table.amax
        corrected = correct_biases(graph_model, start.placement, amax, self._feeds(_REMEDY_SAMPLES))
        return _with_weights(start, corrected.model, _CORRECTION) if corrected.corrections else None

    def _rounded(self, start: Candidate) -> Candidate | None:
        feeds = self._feeds(_REMEDY_SAMPLES)
        adapted = adapt_rounding(start.model.graph_model, start.placement, feeds, seed=self._seed)
        return _with_weights(start, adapted.model, _ROUNDING)

    def _restore_fewest_to_float(self, best: _Best, start: _Best) -> None:
        """Restores as few layers to float as the budget allows, those of most noise per cost first."""
        shares = self._noise_shares(start.candidate)
        order = self._by_noise_per_cost(start.candidate, shares)
        if not order:
            return

        def fits(count: int) -> bool:
            return self._in_float(best, start.candidate, order[:count], f"{counted(count, 'layer')} in float")

        guess = first_guess(start.score, [shares[name] for name in order], self._fits)
        kept = order[: fewest(len(order), fits, guess)]
        # Layers that turn out not to be needed return to INT8.
        for name in kept[-_MOST_RETRIED - 1 : -1]:
            others = [other for other in kept if other != name]
            if self._in_float(best, start.candidate, others, f"'{name}' back in INT8"):
                kept = others

    def _in_float(self, best: _Best, start: Candidate, names: Sequence[str], what: str) -> bool:
        """Scores a candidate with further layers in float; says whether it is within the budget.

        It becomes the best one where it is within the budget and the best one so far is not or has more
        layers in float, and where neither is within the budget and it has less noise.
        """
        candidate = dataclasses.replace(start, keep_float=(*start.keep_float, *names))
        score = self._score(what, candidate, self._fits)
        fits = self._fits(score)
        if fits and self._fits(best.score):
            better = len(candidate.keep_float) < len(best.candidate.keep_float)
        else:
            better = (fits, score.sqnr_db) > (self._fits(best.score), best.score.sqnr_db)
        if better:
            self._take(best, candidate, score)
        return fits

    def _noise_shares(self, start: Candidate) -> dict[str, float]:
        """Name of each quantized layer to its share of the network's noise."""
        if not self._journal.shares:
            sensitivity = measure(
                start.model,
                start.table,
                head(self._watched(), _SENSITIVITY_SAMPLES),
                keep_float=start.keep_float,
                progress=False,
            )
            self._journal.add_shares({layer.node: layer.noise_share for layer in sensitivity.layers})
        return dict(self._journal.shares)

    def _by_noise_per_cost(self, start: Candidate, shares: dict[str, float]) -> list[str]:
        """Names of the quantized layers, those first whose noise is largest for what they cost in float."""
        costs = cost_shares(start.model.graph_model, start.table.provenance.input_sizes)
        # Every layer in float also costs a kernel of its own, so each has at least this cost.
        least = 1 / (2 * max(len(shares), 1))
        noise_per_cost = {name: share / (costs.get(name, 0.0) + least) for name, share in shares.items()}
        return sorted(noise_per_cost, key=lambda name: -noise_per_cost[name])

    def _feeds(self, samples: int) -> Iterator[FeedDict]:
        return iter(head(self._watched(), samples))

    def _watched(self) -> Batches:
        """The samples, as long as there is time."""
        batches = self._scorer.batches
        return batches.passing(lambda: self._limit.watched(batches.start()))


@dataclass
class _Best:
    """The best candidate so far, its score, and the number of its trial."""

    candidate: Candidate
    score: Score
    number: int


def _with_weights(start: Candidate, graph_model: ir.Model, remedy: str) -> Candidate:
    """A candidate with changed weights and the same ranges."""
    model = rebuilt(graph_model, start.model.name)
    provenance = dataclasses.replace(start.table.provenance, model=model.fingerprint)
    table = dataclasses.replace(start.table, provenance=provenance)
    return dataclasses.replace(start, model=model, table=table, remedies=(*start.remedies, remedy))


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


#: Calibrates a model with some samples.
Calibrate = Callable[[Model, Sequence[FeedDict]], CalibrationTable]


def gain_on_others(start: Candidate, samples: Sequence[FeedDict], calibrate: Calibrate) -> float:
    """Equalizes and calibrates with every other sample, and compares on those between.

    Equalization brings all channels close to the end of the range, which samples that were not calibrated
    with exceed more often than before. On the samples that were, that does not show.

    Args:
        start: The candidate that is to be equalized.
        samples: Two samples or more, one feed each.
        calibrate: Calibrates a model with samples.

    Returns:
        How much higher the SQNR is with equalized channels, in decibels; 0 where there are none.

    Raises:
        CalibrationDataError: The model fails on a sample.
    """
    seen, others = samples[::2], samples[1::2]
    equalized = equalize(start.model.graph_model, iter(seen), start.table.method)
    if not equalized.forms:
        return 0.0
    scorer = Scorer(start.model, Batches.of_feeds(lambda: iter(others)), "sqnr")

    def sqnr_db(model: Model) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranges are not used
            table = calibrate(model, seen)
        return scorer.score(dataclasses.replace(start, model=model, table=table)).sqnr_db

    return sqnr_db(rebuilt(equalized.model, start.model.name)) - sqnr_db(start.model)
