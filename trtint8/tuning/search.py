"""The search for the cheapest mix of remedies that keeps accuracy within a budget.

Free remedies come first: a calibration method for each tensor, then weights changed so that INT8 loses less.
Only what is still too much is bought back with layers in float, those first that give most for their cost.
Every decision rests on the same samples, and none of these are used to judge the result.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.data.feeds import FeedDict
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model, load_model, prepare, to_proto
from trtint8.sensitivity.measure import measure
from trtint8.tuning.adaptive_rounding import adapt_rounding
from trtint8.tuning.bias_correction import correct_biases
from trtint8.tuning.candidates import Candidate, Score, Scorer
from trtint8.tuning.costs import float_cost
from trtint8.tuning.equalization import equalizable, equalize, measure_channel_ranges
from trtint8.tuning.methods import choose_methods
from trtint8.tuning.splitting import head

#: Samples that methods are chosen with, that weights are changed with, and that layers are ranked with.
_METHOD_SAMPLES, _REMEDY_SAMPLES, _SENSITIVITY_SAMPLES = 64, 128, 256

#: How many layers are tried back in INT8 after the search has bought too many.
_MOST_RETURNS = 8


@dataclass(frozen=True)
class Trial:
    """One thing that the search tried.

    Attributes:
        what: In words.
        score: How it did on the data that is tuned on.
        taken: Whether the search went on from it.
        keep_float: How many layers were in float.
        float_cost: Their share of the network's arithmetic.
        seconds: How long it took.
    """

    what: str
    score: Score
    taken: bool
    keep_float: int
    float_cost: float
    seconds: float


#: Ranges for a model whose weights were changed.
Recalibrate = Callable[[Model], CalibrationTable]


class Search:
    """One search; its log is what it tried.

    Args:
        judge: Scores candidates on the data that is tuned on.
        max_drop: The budget: points of the metric for a share, else in the metric's unit.
        recalibrate: Finds ranges for a model with equalized weights; None leaves equalization out.
        round_weights: Whether adaptive rounding is among the remedies.
        seed: Of everything that is drawn.
        on_trial: Told of every trial.

    Attributes:
        trials: In order.
    """

    def __init__(
        self,
        judge: Scorer,
        max_drop: float,
        *,
        recalibrate: Recalibrate | None,
        round_weights: bool,
        seed: int,
        on_trial: Callable[[Trial], None],
    ) -> None:
        self.trials: list[Trial] = []
        self._scorer, self._max_drop, self._seed = judge, max_drop, seed
        self._recalibrate, self._round_weights, self._on_trial = recalibrate, round_weights, on_trial

    def run(self, start: Candidate) -> tuple[Candidate, Score]:
        """Searches from a candidate on.

        Returns:
            The cheapest candidate found within the budget, and how it does on the samples tuned on.
        """
        best = _Best(start, self._score("as calibrated", start, lambda _score: True))
        if start.table.histograms:
            for what, candidate in self._methods(start):
                self._improve(best, what, candidate)
        if not self._fits(best.score) and self._recalibrate:
            self._try(best, self._equalized)
        # What compensates for quantization harms a layer that is not quantized: layers are bought before it.
        uncompensated = best.candidate
        if not self._fits(best.score):
            self._compensate(best)
        if not self._fits(best.score):
            best = self._bought(uncompensated)
            self._compensate(best)
        return best.candidate, best.score

    def _compensate(self, best: _Best) -> None:
        """Changes weights and biases so that what is quantized loses less."""
        for remedy in [self._rounded, self._corrected] if self._round_weights else [self._corrected]:
            self._try(best, remedy)

    def _try(self, best: _Best, remedy: Callable[[Candidate], tuple[str, Candidate] | None]) -> None:
        found = remedy(best.candidate)
        if found is not None:
            self._improve(best, *found)

    def _fits(self, score: Score) -> bool:
        return score.drop <= self._max_drop

    def _improve(self, best: _Best, what: str, candidate: Candidate) -> None:
        """Goes on from a candidate if it is better.

        Within the budget beats beyond it; else the SQNR decides, which few samples tell better than they tell
        shares of right classes.
        """
        score = self._score(what, candidate, lambda score: self._is_better(score, best.score))
        if self._is_better(score, best.score):
            best.candidate, best.score = candidate, score

    def _is_better(self, score: Score, than: Score) -> bool:
        return (self._fits(score), score.sqnr_db) > (self._fits(than), than.sqnr_db)

    def _score(self, what: str, candidate: Candidate, is_taken: Callable[[Score], bool]) -> Score:
        """Runs a candidate, and notes it with whether the search goes on from it."""
        begun = time.perf_counter()
        score = self._scorer.score(candidate)
        seconds = time.perf_counter() - begun
        cost = float_cost(candidate.model.graph_model, candidate.keep_float)
        trial = Trial(what, score, is_taken(score), len(candidate.keep_float), cost, seconds)
        self.trials.append(trial)
        self._on_trial(trial)
        return score

    def _methods(self, start: Candidate) -> Iterator[tuple[str, Candidate]]:
        names = [name for name in start.placement.tensors if name in start.table.histograms]
        for method in METHODS:
            methods = dict.fromkeys(names, method)
            yield f"{method} for every tensor", dataclasses.replace(start, methods=methods)
        yield "a method for each tensor", dataclasses.replace(start, methods=self._chosen_methods(start))

    def _chosen_methods(self, candidate: Candidate) -> dict[str, str]:
        feeds = self._feeds(_METHOD_SAMPLES)
        return choose_methods(candidate.model.graph_model, candidate.placement, candidate.table, feeds)

    def _equalized(self, start: Candidate) -> tuple[str, Candidate] | None:
        assert self._recalibrate is not None
        graph_model, what = start.model.graph_model, "cross-layer equalization"
        ranges = measure_channel_ranges(graph_model, equalizable(graph_model), self._feeds(_REMEDY_SAMPLES))
        equalized = equalize(graph_model, ranges)
        if not equalized.factors:
            return None
        model = _remade(equalized.model, start.model.name)
        table = self._recalibrate(model)
        candidate = Candidate(model, table, {}, start.keep_float, (*start.remedies, what))
        return what, dataclasses.replace(candidate, methods=self._chosen_methods(candidate))

    def _corrected(self, start: Candidate) -> tuple[str, Candidate] | None:
        graph_model, amax = start.model.graph_model, start.ranges.amax
        corrected = correct_biases(graph_model, start.placement, amax, self._feeds(_REMEDY_SAMPLES))
        if not corrected.corrections:
            return None
        return "bias correction", _with_weights(start, corrected.model, "bias correction")

    def _rounded(self, start: Candidate) -> tuple[str, Candidate]:
        adapted = adapt_rounding(
            start.model.graph_model, start.placement, self._feeds(_REMEDY_SAMPLES), seed=self._seed
        )
        return "adaptive rounding", _with_weights(start, adapted.model, "adaptive rounding")

    def _bought(self, start: Candidate) -> _Best:
        """The fewest layers in float, those first that make most noise for their cost."""
        order = self._by_noise_for_cost(start)
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
        return self._returned(start, order[:enough], tried[enough])

    def _in_float(self, start: Candidate, names: Sequence[str], what: str) -> _Best:
        """A candidate with some more layers in float; taken if it keeps the budget."""
        candidate = dataclasses.replace(start, keep_float=(*start.keep_float, *names))
        return _Best(candidate, self._score(what, candidate, self._fits))

    def _returned(self, start: Candidate, names: Sequence[str], best: _Best) -> _Best:
        """Without the layers that turn out not to be needed."""
        kept = list(names)
        for name in list(names)[-_MOST_RETURNS - 1 : -1]:
            others = [other for other in kept if other != name]
            without = self._in_float(start, others, f"'{name}' back in INT8")
            if self._fits(without.score):
                kept, best = others, without
        return best

    def _by_noise_for_cost(self, start: Candidate) -> list[str]:
        found = measure(
            start.model,
            start.ranges,
            head(self._scorer.batches, _SENSITIVITY_SAMPLES),
            keep_float=start.keep_float,
            progress=False,
        )
        graph_model = start.model.graph_model
        # Every layer in float also costs a kernel of its own, so none is free.
        least = 1 / (2 * len(found.layers))
        worth = {
            layer.node: layer.noise_share / (float_cost(graph_model, [layer.node]) + least)
            for layer in found.layers
        }
        return sorted(worth, key=lambda name: -worth[name])

    def _feeds(self, samples: int) -> Iterator[FeedDict]:
        return iter(head(self._scorer.batches, samples))


@dataclass
class _Best:
    """Where the search has got to."""

    candidate: Candidate
    score: Score


def _doubling(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _with_weights(start: Candidate, graph_model: ir.Model, remedy: str) -> Candidate:
    """A candidate whose weights were changed, and whose ranges were not."""
    model = _remade(graph_model, start.model.name)
    provenance = dataclasses.replace(start.table.provenance, model=model.fingerprint)
    table = dataclasses.replace(start.table, provenance=provenance)
    return dataclasses.replace(start, model=model, table=table, remedies=(*start.remedies, remedy))


def _remade(graph_model: ir.Model, name: str) -> Model:
    """A changed graph as a model of its own, with the fingerprint that its file will have."""
    return dataclasses.replace(prepare(load_model(to_proto(graph_model))), name=name)
