"""The search for the cheapest combination of remedies that keeps the loss of accuracy within a budget.

Remedies that cost nothing when the network runs are tried always: one calibration method per tensor, then
changed weights that lose less in INT8. Each is taken where it leaves less noise. Only if the loss is still
too large are layers restored to float, in the order of their noise per cost. Every decision is made with the
same samples, and the result is validated with other samples.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.data.feeds import FeedDict
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.table import CalibrationTable
from trtint8.equalization.equalize import equalize
from trtint8.models.model import Model, rebuilt
from trtint8.sensitivity.measure import measure
from trtint8.tuning.adaptive_rounding import adapt_rounding
from trtint8.tuning.bias_correction import correct_biases
from trtint8.tuning.candidates import Candidate, Scorer
from trtint8.tuning.costs import float_cost
from trtint8.tuning.methods import choose_methods
from trtint8.tuning.scores import Score
from trtint8.tuning.splitting import head

#: Numbers of samples for choosing methods, for changing weights, and for ordering layers by their noise.
_METHOD_SAMPLES, _REMEDY_SAMPLES, _SENSITIVITY_SAMPLES = 64, 128, 256

#: Decibels of SQNR that changed weights have to gain. They are chosen and scored with the same samples, so a
#: smaller gain may be chance, and the float model with these weights is one more file to keep.
_LEAST_GAIN_DB = 0.1

#: Decibels of SQNR that equalization has to gain where the loss is within the budget already. It brings all
#: channels close to the end of the range, which other samples then exceed more often: a detector calibrated
#: with 13 images gained 1.8 dB on these and lost 0.8 dB on others. Outlier channels cost much more.
_EQUALIZATION_GAIN_DB = 3.0

#: The most layers that are tried in INT8 again after the search has restored more layers than needed.
_MOST_RETRIED = 8


@dataclass(frozen=True)
class Trial:
    """A candidate that the search tried.

    Attributes:
        what: What was tried, in words.
        score: The candidate's score on the samples that are tuned on.
        taken: Whether the search continued from this candidate.
        keep_float: Number of layers in float.
        float_cost: The share of the network's arithmetic that these layers take, in [0, 1].
        seconds: How long the candidate took to score.
    """

    what: str
    score: Score
    taken: bool
    keep_float: int
    float_cost: float
    seconds: float


#: Calibrates a model whose weights were changed.
Recalibrate = Callable[[Model], CalibrationTable]


class Search:
    """One search, with a record of everything that it tried.

    Args:
        scorer: Scores candidates on the samples that are tuned on.
        fits: Whether a score is within the budget.
        recalibrate: Calibrates a model with equalized weights; None leaves equalization out.
        round_weights: Whether adaptive rounding is among the remedies.
        seed: Seed of all random choices.
        on_trial: Called with every trial.

    Attributes:
        trials: All trials, in order.
    """

    def __init__(
        self,
        scorer: Scorer,
        fits: Callable[[Score], bool],
        *,
        recalibrate: Recalibrate | None,
        round_weights: bool,
        seed: int,
        on_trial: Callable[[Trial], None],
    ) -> None:
        self.trials: list[Trial] = []
        self._scorer, self._fits, self._seed = scorer, fits, seed
        self._recalibrate, self._round_weights, self._on_trial = recalibrate, round_weights, on_trial

    def run(self, start: Candidate) -> tuple[Candidate, Score]:
        """Runs the search.

        Args:
            start: The candidate to start from.

        Returns:
            The cheapest candidate found within the budget, and its score on the samples that are tuned on.

        Raises:
            CalibrationDataError: The metric does not apply to the model or the data.
        """
        best = _Best(start, self._score("as calibrated", start, lambda _score: True))
        if start.table.histograms:
            for description, candidate in self._with_methods(start):
                self._improve(best, description, candidate)
        if self._recalibrate:
            fits = self._fits(best.score)
            self._try(best, self._equalized, _EQUALIZATION_GAIN_DB if fits else _LEAST_GAIN_DB)
        # A correction for the error of INT8 harms a layer in float. So layers are restored to float in the
        # candidate without corrections, and what stays in INT8 is corrected afterwards.
        uncompensated = best.candidate
        self._compensate(best)
        if not self._fits(best.score):
            best = self._with_fewest_in_float(uncompensated)
            self._compensate(best)
        return best.candidate, best.score

    def _compensate(self, best: _Best) -> None:
        """Tries weights and biases that compensate for the error of quantization."""
        if self._round_weights:
            self._try(best, self._rounded)
        self._try(best, self._bias_corrected)

    def _try(
        self,
        best: _Best,
        remedy: Callable[[Candidate], Iterable[tuple[str, Candidate]]],
        least_gain: float = _LEAST_GAIN_DB,
    ) -> None:
        """Tries a remedy, which gives candidates with changed weights, or none where it does not apply."""
        for description, candidate in remedy(best.candidate):
            self._improve(best, description, candidate, least_gain)

    def _improve(self, best: _Best, description: str, candidate: Candidate, least_gain: float = 0.0) -> None:
        """Scores a candidate and continues from it if it is better.

        A candidate within the budget is better than one beyond it; otherwise the SQNR decides, because a
        small number of samples determines it better than the share of right classes. It has to be more than
        ``least_gain`` higher, in decibels.
        """

        def is_better(score: Score) -> bool:
            least = best.score.sqnr_db + least_gain
            return (self._fits(score), score.sqnr_db) > (self._fits(best.score), least)

        score = self._score(description, candidate, is_better)
        if is_better(score):
            best.candidate, best.score = candidate, score

    def _score(self, description: str, candidate: Candidate, is_taken: Callable[[Score], bool]) -> Score:
        """Scores a candidate, and records whether the search continues from it."""
        begun = time.perf_counter()
        score = self._scorer.score(candidate)
        seconds = time.perf_counter() - begun
        cost = float_cost(candidate.model.graph_model, candidate.keep_float)
        trial = Trial(description, score, is_taken(score), len(candidate.keep_float), cost, seconds)
        self.trials.append(trial)
        self._on_trial(trial)
        return score

    def _with_methods(self, start: Candidate) -> Iterator[tuple[str, Candidate]]:
        names = [name for name in start.placement.tensors if name in start.table.histograms]
        for method in METHODS:
            methods = dict.fromkeys(names, method)
            yield f"{method} for every tensor", dataclasses.replace(start, methods=methods)
        yield "a method for each tensor", dataclasses.replace(start, methods=self._chosen_methods(start))

    def _chosen_methods(self, candidate: Candidate) -> dict[str, str]:
        feeds = self._feeds(_METHOD_SAMPLES)
        return choose_methods(candidate.model.graph_model, candidate.placement, candidate.table, feeds)

    def _equalized(self, start: Candidate) -> Iterator[tuple[str, Candidate]]:
        assert self._recalibrate is not None
        graph_model, description = start.model.graph_model, "cross-layer equalization"
        equalized = equalize(graph_model, self._feeds(_REMEDY_SAMPLES), start.ranges.method)
        if not equalized.forms:
            return
        model = rebuilt(equalized.model, start.model.name)
        table = self._recalibrate(model)
        candidate = Candidate(model, table, {}, start.keep_float, (*start.remedies, description))
        # The ranges of `auto` were chosen by the outputs of the equalized network, so the choice of a method
        # for each tensor by itself, which takes long, is left out.
        if table.method != "auto":
            candidate = dataclasses.replace(candidate, methods=self._chosen_methods(candidate))
        yield description, candidate

    def _bias_corrected(self, start: Candidate) -> Iterator[tuple[str, Candidate]]:
        graph_model, amax = start.model.graph_model, start.ranges.amax
        corrected = correct_biases(graph_model, start.placement, amax, self._feeds(_REMEDY_SAMPLES))
        if corrected.corrections:
            yield "bias correction", _with_weights(start, corrected.model, "bias correction")

    def _rounded(self, start: Candidate) -> Iterator[tuple[str, Candidate]]:
        feeds = self._feeds(_REMEDY_SAMPLES)
        adapted = adapt_rounding(start.model.graph_model, start.placement, feeds, seed=self._seed)
        yield "adaptive rounding", _with_weights(start, adapted.model, "adaptive rounding")

    def _with_fewest_in_float(self, start: Candidate) -> _Best:
        """Restores as few layers to float as the budget allows, those of most noise per cost first."""
        order = self._by_noise_per_cost(start)
        tried: dict[int, _Best] = {}

        def fits(count: int) -> bool:
            if count not in tried:
                tried[count] = self._in_float(start, order[:count], f"{count} layers in float")
            return self._fits(tried[count].score)

        enough = next((count for count in _doubling(len(order)) if fits(count)), len(order))
        too_few = max((count for count in tried if not fits(count)), default=0)
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            if fits(middle):
                enough = middle
            else:
                too_few = middle
        return self._without_unneeded(start, order[:enough], tried[enough])

    def _in_float(self, start: Candidate, names: Sequence[str], description: str) -> _Best:
        """Scores a candidate with further layers in float, which is taken if it is within the budget."""
        candidate = dataclasses.replace(start, keep_float=(*start.keep_float, *names))
        return _Best(candidate, self._score(description, candidate, self._fits))

    def _without_unneeded(self, start: Candidate, names: Sequence[str], best: _Best) -> _Best:
        """Returns layers to INT8 that need not be in float."""
        kept = list(names)
        for name in list(names)[-_MOST_RETRIED - 1 : -1]:
            others = [other for other in kept if other != name]
            without = self._in_float(start, others, f"'{name}' back in INT8")
            if self._fits(without.score):
                kept, best = others, without
        return best

    def _by_noise_per_cost(self, start: Candidate) -> list[str]:
        """Names of the quantized layers, those first whose noise is largest for what they cost in float."""
        sensitivity = measure(
            start.model,
            start.ranges,
            head(self._scorer.batches, _SENSITIVITY_SAMPLES),
            keep_float=start.keep_float,
            progress=False,
        )
        graph_model = start.model.graph_model
        # Every layer in float also costs a kernel of its own, so each has at least this cost.
        least = 1 / (2 * len(sensitivity.layers))
        noise_per_cost = {
            layer.node: layer.noise_share / (float_cost(graph_model, [layer.node]) + least)
            for layer in sensitivity.layers
        }
        return sorted(noise_per_cost, key=lambda name: -noise_per_cost[name])

    def _feeds(self, samples: int) -> Iterator[FeedDict]:
        return iter(head(self._scorer.batches, samples))


@dataclass
class _Best:
    """The best candidate so far, and its score."""

    candidate: Candidate
    score: Score


def _doubling(most: int) -> Iterator[int]:
    """Yields 1, 2, 4 and so on, and ``most`` last."""
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _with_weights(start: Candidate, graph_model: ir.Model, remedy: str) -> Candidate:
    """A candidate with changed weights and the same ranges."""
    model = rebuilt(graph_model, start.model.name)
    provenance = dataclasses.replace(start.table.provenance, model=model.fingerprint)
    table = dataclasses.replace(start.table, provenance=provenance)
    return dataclasses.replace(start, model=model, table=table, remedies=(*start.remedies, remedy))
