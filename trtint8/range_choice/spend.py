"""Layers that stay in float because they make much of the noise and take next to no time there.

What layers cost is estimated by the kernels around them (:mod:`trtint8.quantization.slower`), and how much
noise each makes by gradients (:mod:`trtint8.sensitivity.error_network`). Noise does not simply add up, so
some sets of layers are run, and the best of them has to be better on samples that it was not chosen with.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Array, FeedDict, Float32s, joined
from calibrators.data.samples import Outputs
from calibrators.errors import TrtInt8Error
from calibrators.operators import operator_of
from calibrators.progress import SPENDING, progress_bar
from calibrators.tables.choice import FloatLayers
from trtint8.models.graph import modules_of
from trtint8.models.session import open_graph_model
from trtint8.models.shapes import StaticShapes, declared_sizes, multiply_adds, open_inputs
from trtint8.quantization.attention import find_attentions
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.slower import FloatCosts, Products
from trtint8.quantization.targets import TARGETS
from trtint8.range_choice.compared import MOST_ROWS, ComparedModel
from trtint8.range_choice.trial_network import CERTAIN, Noise, References, TrialNetwork, difference
from trtint8.sensitivity.error_network import ErrorNetwork, random_signs
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.simulation.networks import Quantizer, find_layers

_logger = logging.getLogger(__name__)

#: The fewest samples that show a gain: half of them choose, the others judge.
FEWEST_SAMPLES = 12

#: The most samples that choose, and how many judge at first, and once more where it is not certain.
_MOST_CHOOSING, _JUDGING = 8, 16

#: So many layers are tried one by one; of more, gradients say which make most of the noise.
_TRIED_ALONE = 2

#: A gain in decibels that is worth a layer in float.
_WORTH_DB = 0.1

#: The part of the noise that the fewest layers make that are tried instead of all that may be in float.
_MOST_OF_IT = 0.8

#: Of how many layers the time is estimated, those with most noise per multiply-add.
_MOST_PRICED = 48

#: An output may become worse that has so many decibels less noise than the worst one.
_FAR_DB = 20.0

#: Samples per batch with which time is estimated.
_BATCH = 8


def choose_float_layers(
    compared: ComparedModel,
    amax: Mapping[str, float],
    samples: Sequence[FeedDict],
    share: float,
    *,
    outputs: Sequence[Outputs | None] = (),
    alone: bool = False,
    progress: bool = False,
) -> FloatLayers:
    """Chooses the layers that stay in float because that costs next to no time and gains accuracy.

    Args:
        compared: The model.
        amax: The range of every tensor.
        samples: Samples in random order, one feed per sample.
        share: The share of the estimated time that layers in float may add, in [0, 1].
        outputs: What the float network gives out for each sample, where that is known.
        alone: Whether each sample has to be run by itself.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The layers, and what they gain; without layers why there are none.

    Raises:
        CalibrationDataError: The model fails on a sample.
    """
    none = partial(FloatLayers, (), share)
    if compared.placement is None:
        return none(reason="nothing of the model is quantized")
    if len(samples) < FEWEST_SAMPLES:
        return none(
            reason=f"{len(samples)} different samples are too few to show a gain; give {FEWEST_SAMPLES}"
        )
    half = len(samples) // 2
    choosing, *judging = (
        slice(start, min(start + most, stop))
        for start, most, stop in (
            (0, _MOST_CHOOSING, half),
            (half, _JUDGING, len(samples)),
            (half + _JUDGING, _JUDGING, len(samples)),
        )
        if start < stop
    )
    costs = _Costs(compared.model, compared.placement, samples[0], share)
    noise = _noise_of(compared, amax, costs.cheap, samples[choosing])
    sets = costs.sets(noise)
    if not sets:
        return none(reason=f"every layer takes more than {100 * share:g} % of the time")
    runs = (len(sets) + 1) * choosing.stop + 2 * (judging[-1].stop - half)
    with (
        progress_bar(SPENDING, runs, enabled=progress) as advance,
        _Trials(compared, amax, samples, outputs, advance, alone=alone) as trials,
    ):
        chosen_with, before = (trials.noise((), which) for which in (choosing, judging[0]))
        levels = {names: trials.noise(names, choosing).worst_level for names in sets}
        least = min(levels.values())
        best = min((names for names in sets if levels[names] <= least + _WORTH_DB), key=len)
        if levels[best] >= chosen_with.worst_level:
            return none(reason="layers that may be in float gain nothing")
        after = trials.noise(best, judging[0])
        for which in judging[1:]:
            if not _is_better(after, before):
                after = Noise.joined([after, trials.noise(best, which)])
                before = Noise.joined([before, trials.noise((), which)])
    if not _is_better(after, before):
        return none(reason="other samples do not show that layers in float gain something")
    # The last digits depend on how many samples were run at once.
    int8, spent = (round(-noise.worst_level, 2) for noise in (before, after))
    known = modules_of(compared.model.graph)
    return FloatLayers(
        best,
        share,
        round(costs.of(best), 6),
        len(costs.possible),
        int8,
        spent,
        before.levels.size,
        modules={name: known[name] for name in best if name in known},
    )


def _is_better(after: Noise, before: Noise) -> bool:
    """Whether the worst output has less noise, beyond the interval and in all, and no other one has more."""
    worst = int(np.nanargmax(before.typical_levels))
    new, old = after.of_output(worst), before.of_output(worst)
    mean, error = difference(new.levels.tolist(), old.levels.tolist())
    pairs = zip(after.typical_levels, before.typical_levels, strict=True)
    none_worse = all(one <= max(other + _WORTH_DB, after.worst_level - _FAR_DB) for one, other in pairs)
    return mean <= -max(_WORTH_DB, CERTAIN * error) and new.pooled_level < old.pooled_level and none_worse


def _noise_of(
    compared: ComparedModel, amax: Mapping[str, float], layers: Sequence[str], samples: Sequence[FeedDict]
) -> dict[str, float]:
    """The noise of the layers that are worth trying; the same for each where there are few."""
    if len(layers) > _TRIED_ALONE and compared.placement and not compared.is_large:
        quantizer = Quantizer.of(compared.placement, amax)
        try:
            found = noise_of_layers(compared.model, quantizer, samples, compared.threads)
            return {name: found[name] for name in layers}
        except (NoGradientError, TrtInt8Error) as error:  # the network itself may run all the same
            _logger.info("the first and the last layers are tried: %s", error)
    return dict.fromkeys((*layers[:1], *layers[-1:]), 1.0)


class _Costs:
    """What layers in float cost.

    Args:
        model: The model.
        placement: What is quantized in it.
        sample: A sample, for sizes that the model leaves open.
        share: The share of the time that layers may take.

    Attributes:
        possible: The weighted layers.
        cheap: Names of those whose multiply-adds alone would let them be in float, in graph order.
    """

    def __init__(self, model: ir.Model, placement: Placement, sample: FeedDict, share: float) -> None:
        self._share = share
        weighted = [one for one in find_layers(model.graph, placement) if operator_of(one.node).is_weighted]
        self.possible = {layer.name: layer.node for layer in weighted}
        products = Products(list(self.possible.values()), (), [one.nodes for one in find_attentions(model)])
        kernels = [one for target in TARGETS.values() for one in target.costs_with_float16]
        opened = {value.name for value in model.graph.inputs if (declared_sizes(value) or (0,))[0] is None}
        sizes = {
            name: (_BATCH, *array.shape[1:]) if name in opened else array.shape
            for name, array in sample.items()
        }
        self._times = FloatCosts(model, products, kernels, sizes)
        self._known: dict[frozenset[str], float] = {}
        shapes = StaticShapes(model, sizes)

        def sizes_of(value: ir.Value | None) -> tuple[int, ...] | None:
            sizes = shapes.of(value) or (None,)
            return None if None in sizes else tuple(size or 0 for size in sizes)

        self._work = {name: multiply_adds(node, sizes_of) or 0 for name, node in self.possible.items()}
        most = share * sum(self._work.values())
        self.cheap = tuple(one.name for one in weighted if one.weights and 0 < self._work[one.name] <= most)

    def of(self, names: Collection[str]) -> float:
        """The share of the time, or that of the multiply-adds if it is larger, that layers cost in float."""
        work = sum(self._work[name] for name in names) / max(1, sum(self._work.values()))
        if work > self._share:
            return work
        key = frozenset(names)
        if key not in self._known:
            self._known[key] = max(work, self._times.share({self.possible[name] for name in names}))
        return self._known[key]

    def fits(self, names: Collection[str]) -> bool:
        """Whether layers may be in float together."""
        return self.of(names) <= self._share

    def sets(self, noise: Mapping[str, float]) -> list[tuple[str, ...]]:
        """Sets of layers that are worth trying: all that fit, few of them, and the last one by itself.

        Args:
            noise: Name of a layer to the noise that it makes.
        """
        by_worth = sorted(noise, key=lambda name: -noise[name] / self._work[name])
        most: list[str] = []
        for name in by_worth[:_MOST_PRICED]:
            if math.fsum(self.of((one,)) for one in (*most, name)) <= self._share:
                most.append(name)
        while not self.fits(most):  # of neighbours, borders may add up to more
            most.pop()
        if not most:
            return []
        few: tuple[str, ...] = ()
        for name in sorted(most, key=lambda name: -noise[name]):
            few = (*few, name)
            if math.fsum(noise[one] for one in few) >= _MOST_OF_IT * math.fsum(noise[one] for one in most):
                break
        last = next(name for name in reversed(self.possible) if name in most)
        found = (tuple(name for name in self.possible if name in one) for one in (most, few, {last}))
        return list(dict.fromkeys(found))


class _Trials:
    """Measures the noise of the model in INT8 with some layers in float.

    A context manager, at whose end no thread of it works any more.

    Args:
        compared: The model.
        amax: The range of every tensor.
        samples: One feed per sample.
        outputs: What the float network gives out for each sample, where that is known.
        advance: Called with the number of samples that were run.
        alone: Whether each sample has to be run by itself.
    """

    def __init__(
        self,
        compared: ComparedModel,
        amax: Mapping[str, float],
        samples: Sequence[FeedDict],
        outputs: Sequence[Outputs | None],
        advance: Callable[[int], None],
        *,
        alone: bool,
    ) -> None:
        self._compared, self._amax, self._advance = compared, amax, advance
        self._rows = rows = compared.fitting(samples[0])
        self._float = self._open((), closed=True)
        #: The network that was run last, and its layers in float: each takes memory for its weights.
        self._last: tuple[TrialNetwork, Sequence[str]] | None = None
        known = [one and self._float.split(one) for one in outputs]
        self._references = References(
            self._float.reference,
            samples,
            1 if alone else min(MOST_ROWS, rows),
            first=2,
            separate=compared.separate,
            known=known,
        )

    def __enter__(self) -> _Trials:
        return self

    def __exit__(self, *_error: object) -> None:
        self._float.close()
        self._close_last()

    def noise(self, in_float: Sequence[str], which: slice) -> Noise:
        """The noise on some samples with some layers in float."""
        if self._last is None or self._last[1] != in_float:
            self._close_last()
            self._last = self._open(in_float), in_float
        network = self._last[0]
        scales = network.scales(self._amax)
        parts = []
        for start in range(which.start, which.stop, self._references.rows):
            stop = min(start + self._references.rows, which.stop)
            feed, wanted = self._references.batch(start, stop)
            parts.append(Noise.of(wanted, network.outputs(feed, scales), stop - start))
            self._advance(stop - start)
        return Noise.joined(parts)

    def _open(self, in_float: Sequence[str], *, closed: bool = False) -> TrialNetwork:
        placement = place(self._compared.part, float_layers=in_float)
        return self._compared.open(placement, self._rows, closed=closed)

    def _close_last(self) -> None:
        if self._last:
            self._last[0].close()
        self._last = None


def noise_of_layers(
    model: ir.Model, quantizer: Quantizer, samples: Sequence[FeedDict], threads: int | None
) -> dict[str, float]:
    """Estimates the noise that each layer alone makes at the outputs, by gradients.

    Args:
        model: A prepared model whose outputs count.
        quantizer: How its tensors are quantized.
        samples: One feed per sample; those of other shapes than the first one's are left out.
        threads: Threads per operator; ONNX Runtime's choice where None.

    Returns:
        Name of a layer to its noise, as a share of the signal: the power mean over samples and outputs with
        the exponent 1/3, so that one sample that is unlike all others does not decide.

    Raises:
        NoGradientError: The gradient of an operator is not known.
        CalibrationDataError: ONNX Runtime fails on the samples.
    """
    first = {name: array.shape for name, array in samples[0].items()}
    alike = [one for one in samples if {name: array.shape for name, array in one.items()} == first]
    sizes = {name: (0, *first[name][1:]) for name in open_inputs(model)}
    network = ErrorNetwork(model, quantizer, sizes, len(alike))
    network.open(threads)
    reference = open_graph_model(model, threads=threads)
    rows = max(1, min(network.samples_per_run, len(alike))) if network.splits else 1
    random = np.random.default_rng(0)
    found = []
    for start in range(0, len(alike), rows):
        feed = joined(alike[start : start + rows])
        outputs = dict(zip(reference.output_names, reference.run(feed), strict=True))
        directions = [
            {name: _direction(outputs[name], random, by_row=network.splits) for name in network.directed}
            for _ in range(network.directions)
        ]
        products = network.run(feed, directions).products
        found.append(np.square(products).mean(axis=0))
    noise = np.concatenate(found, axis=1)
    if not np.isfinite(noise).all():
        raise NoGradientError("a slope is infinite")
    means = np.cbrt(noise).mean(axis=1) ** 3
    names = [layer.name for layer in find_layers(model.graph, quantizer.placement)]
    return dict(zip(names, means.tolist(), strict=True))


def _direction(output: Array, random: np.random.Generator, *, by_row: bool) -> Float32s:
    """Random signs, divided by the norm of the output, so that each output counts by its own energy."""
    axes = tuple(range(1, output.ndim)) if by_row else None
    energy = np.square(output.astype(np.float64)).sum(axis=axes, keepdims=True)
    norm = np.sqrt(np.where(energy > 0, energy, np.inf))
    return np.asarray(random_signs(output.shape, random) / norm, np.float32)
