"""Chooses the factors of a network's channels by the error that quantization leaves.

The arithmetic is pure functions on ranges of channels. The error is that at the output of a layer whose input
and weights are quantized. Channels whose tensor shares one scale with other tensors are levelled together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import FeedDict, Flags, Float32s, Floats
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from trtint8.equalization.following.constants import input_ranges
from trtint8.equalization.following.labelling import (
    FIXED,
    Channels,
    NetworkChannels,
    Reading,
)
from trtint8.equalization.forms import (
    Form,
    Observations,
    Part,
    changed_constant,
    factors_of,
    observe,
)
from trtint8.models.graph import constant_input, graph_values
from trtint8.quantization.placement import Placement
from trtint8.simulation.networks import find_layers
from trtint8.simulation.segments import LayerAlone

#: Limits of the factors: channels that are nearly always zero would give weights of extreme magnitudes.
_SMALLEST_FACTOR, _LARGEST_FACTOR = 1e-3, 1e3

#: The strengths with which ranges are moved from activations to weights.
_STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)

#: Channels that pass a bound, such as that of a Relu6, have factors with which the bound stays at so many
#: times the largest value that was seen, at least. Other samples rarely reach further.
CLIP_MARGIN = 4.0


def migration_factors(made: Floats, read: Floats, strength: float) -> Floats:
    """Factors that move a part of the activations' differences between channels into the weights.

    This is SmoothQuant's choice (Xiao et al., "SmoothQuant", ICML 2023, equation 4). With a strength of 0.5
    it is that of cross-layer equalization (Nagel et al., "Data-Free Quantization Through Weight Equalization
    and Bias Correction", ICCV 2019, section 4.1): a channel's range in the activation and in the weights
    become the same.

    Args:
        made: Range of each channel of the activation, of shape (channels,).
        read: Range of the weights that read each channel, of the same shape.
        strength: The strength, from 0 to 1.

    Returns:
        ``made ** strength / read ** (1 - strength)``, by which the activation is to be divided, within the
        limits; 1 for channels that are zero in the activation or in the weights.
    """
    alive = (made > 0) & (read > 0) & np.isfinite(made)
    made, read = np.where(alive, made, 1.0), np.where(alive, read, 1.0)
    factors = made**strength / read ** (1 - strength)
    return np.where(alive, np.clip(factors, _SMALLEST_FACTOR, _LARGEST_FACTOR), 1.0)


def product_factors(first: Floats, second: Floats, strength: float) -> Floats:
    """Factors for channels of two activations that are multiplied with each other and summed over.

    Args:
        first: Range of each channel on the side that is divided, of shape (channels,).
        second: Range of each channel on the side that is multiplied, of the same shape.
        strength: 0.5 makes both ranges of a channel equal, 0 leaves their ratio as it is.

    Returns:
        The factors, with which both sides have the same largest range, within the limits; 1 for channels that
        are zero on either side.
    """
    alive = (first > 0) & (second > 0) & np.isfinite(first) & np.isfinite(second)
    if not alive.any():
        return np.ones_like(first)
    first, second = np.where(alive, first, 1.0), np.where(alive, second, 1.0)
    factors = (first / second) ** strength
    factors *= np.sqrt((first / factors)[alive].max() / (second * factors)[alive].max())
    return np.where(alive, np.clip(factors, _SMALLEST_FACTOR, _LARGEST_FACTOR), 1.0)


def product_error(
    first: Floats, second: Floats, first_power: Floats, second_power: Floats, one_scale: bool
) -> float:
    """The expected squared error of a product of two quantized activations, up to a constant factor.

    The error of each side is proportional to its scale, hence to its largest range, and is multiplied by the
    values of the other side.

    Args:
        first: Range of each channel on one side, of shape (channels,).
        second: Range of each channel on the other side, of the same shape.
        first_power: Mean square of each channel on the first side.
        second_power: Mean square of each channel on the other side.
        one_scale: Whether both sides have one scale.
    """
    peaks = np.array([first.max(), second.max()])
    if one_scale:
        peaks[:] = peaks.max()
    return float(peaks[0] ** 2 * second_power.sum() + peaks[1] ** 2 * first_power.sum())


def below_bounds(factors: Floats, least: Floats, alive: Flags) -> Floats:
    """Factors with which no channel that passes a bound comes closer to it than the margin allows.

    Channels that are close to the bound as they are keep their values, and the others are scaled relative to
    them. None is divided by more than 1, because its bound would be further away than before.

    Args:
        factors: The factors, of shape (channels,).
        least: The least factor of each channel, of the same shape; more than 1 where it has to stay 1, and 0
            where the channel passes no bound. All 0 leaves the factors as they are.
        alive: Which channels are not zero, of the same shape.
    """
    if not least.any():
        return factors
    held = least > 1
    anchors = factors[held & alive] if (held & alive).any() else factors[~held]
    if not anchors.size:
        return np.ones_like(factors)
    return np.where(held, 1.0, np.clip(factors / anchors.max(), np.maximum(least, _SMALLEST_FACTOR), 1.0))


#: Factors are applied where they reduce the squared error to this share at most. A copy of a normalization
#: costs time in the engine, so it must gain more.
_WORTHWHILE, _WORTH_A_COPY = 0.8, 0.6


def choose_strength(choice: FactorChoice, form: Form) -> float | None:
    """Chooses the factors of a form, and writes them into the choice.

    Args:
        choice: The factors that are chosen so far.
        form: The form; those behind it in the graph were chosen before.

    Returns:
        The strength with which differences between channels were moved. None where the factors stay 1,
        because the error would not become clearly smaller or nothing that reads the channels runs in INT8.
    """
    way = (_migration if form.readings else _product)(choice, form)
    if way is None:
        return None
    folds, ones = choice.observed.folds, np.ones(len(form.representatives))

    def error(strength: float | None) -> float:
        total = 0.0
        for number, fold in enumerate(folds):
            factors = ones if strength is None else way.factors(fold.found_with.peaks, strength)
            choice.factors[form.representatives] = factors
            for one in way.errors(number, factors):
                total += one
        return total

    errors = {strength: error(strength) for strength in way.strengths}
    best = min(errors, key=lambda strength: errors[strength])
    limit = _WORTH_A_COPY if choice.copied[form.representatives].any() and form.readings else _WORTHWHILE
    worthwhile = errors[best] <= limit * error(None)
    factors = way.factors(choice.observed.peaks, best) if worthwhile else ones
    choice.factors[form.representatives] = factors
    return best if worthwhile else None


@dataclass(frozen=True)
class _Way:
    """How the factors of a form are found.

    Attributes:
        strengths: The strengths that are tried.
        factors: Gives the factors for the largest magnitudes of the tensors, and a strength.
        errors: Gives the errors on the samples of a fold, by its number, with factors.
    """

    strengths: Sequence[float]
    factors: Callable[[Mapping[str, Floats], float], Floats]
    errors: Callable[[int, Floats], Iterable[float]]


def _migration(choice: FactorChoice, form: Form) -> _Way | None:
    """Factors that the weights of the readers make up for."""
    readings = [reading for reading in form.readings if reading.node in choice.layers]
    folds = choice.observed.folds
    if not readings or any(one.tensor not in fold.tried_on.values for one in readings for fold in folds):
        return None
    weights = (
        input_ranges(choice.nodes[one.node], choice.weights_of(one.node).astype(np.float64))
        for one in readings
    )
    channels = [one.channels for one in readings]
    read = _by_class(choice, form, zip(channels, weights, strict=True), np.maximum)
    least = choice.least[form.representatives]
    readers = [_Reader(choice, reading) for reading in readings]

    def factors(peaks: Mapping[str, Floats], strength: float) -> Floats:
        ranges = (peaks[one.tensor].reshape(-1) for one in readings)
        made = _by_class(choice, form, zip(channels, ranges, strict=True), np.maximum)
        return below_bounds(migration_factors(made, read, strength), least, (made > 0) & (read > 0))

    return _Way(_STRENGTHS, factors, lambda number, _: (reader.error(number) for reader in readers))


def _by_class(
    choice: FactorChoice, form: Form, measured: Iterable[tuple[Channels, Floats]], by: np.ufunc
) -> Floats:
    """Combines values of channels with those of their classes; those of other forms are left out.

    Args:
        choice: Knows the classes.
        form: The form.
        measured: Numbers of channels, and their values, which broadcast to the same shape.
        by: How two values are combined.

    Returns:
        One value for each representative of the form; 0 where there is none.
    """
    combined = np.zeros(len(form.representatives))
    for channels, values in measured:
        classes = choice.channels.representatives[channels]
        places = np.searchsorted(form.representatives, classes).clip(max=len(form.representatives) - 1)
        inside = form.representatives[places] == classes
        by.at(combined, places[inside], np.broadcast_to(values, classes.shape)[inside])
    return combined


#: Stands in for methods that choose ranges with more than a histogram.
_METHOD = "mse"


class _Reader:
    """A reader of a form, without its bias, with values that it reads."""

    def __init__(self, choice: FactorChoice, reading: Reading) -> None:
        self._choice, self._reading = choice, reading
        self._alone = LayerAlone(choice.model, choice.layers[reading.node], choice.placement)
        self._threshold = METHODS.get(choice.method, METHODS[_METHOD])
        weights = choice.weights_of(reading.node)
        self._exact = [
            self._alone.run(self._values(fold.tried_on), weights) for fold in choice.observed.folds
        ]

    def error(self, number: int) -> float:
        """The relative error of the output with the factors as they are now, on samples of their own.

        The range is that of the samples that factors are found with: calibration does not see others either.
        """
        fold, histogram = self._choice.observed.folds[number], Histogram()
        histogram.observe(self._values(fold.found_with))
        values, weights = self._values(fold.tried_on), self._choice.weights_of(self._reading.node)
        computed = self._alone.run_int8(values, weights, self._threshold(histogram) or 1.0)
        return relative_error(computed, self._exact[number])

    def _values(self, part: Part) -> Float32s:
        factors = self._choice.factors_of(self._reading.labels)
        return (part.values[self._reading.tensor] / factors).astype(np.float32)


def relative_error(computed: Float32s, exact: Float32s) -> float:
    """The squared error of an output, over the sum of squares of the exact one."""
    # Squares of float32 numbers may be beyond float32.
    signal = exact.astype(np.float64).reshape(-1)
    error = computed.reshape(-1) - signal
    return float(error @ error) / (float(signal @ signal) or 1.0)


def _product(choice: FactorChoice, form: Form) -> _Way | None:
    """Factors that cancel in products of two activations."""
    producers = [choice.producers[name] for name in form.producers]
    if choice.least[form.representatives].any():  # factors that cancel may be of any level
        return None
    nodes = [product.node for product in form.products if product.node in choice.layers]
    if not nodes or any(producer.tensor not in choice.observed.peaks for producer in producers):
        return None
    one_scale = any(_has_one_scale(choice, node) for node in nodes)

    def of_sides(measured: Mapping[str, Floats], combine: np.ufunc) -> tuple[Floats, ...]:
        held = [(one, choice.channels.powers[one.labels]) for one in producers]
        return tuple(
            _by_class(
                choice,
                form,
                ((one.labels[powers == side], measured[one.tensor][powers == side]) for one, powers in held),
                combine,
            )
            for side in (1, -1)
        )

    powers = of_sides(choice.observed.powers, np.add)
    tried = [of_sides(fold.tried_on.peaks, np.maximum) for fold in choice.observed.folds]

    def factors(peaks: Mapping[str, Floats], strength: float) -> Floats:
        first, second = of_sides(peaks, np.maximum)
        return product_factors(first, second, strength)

    def errors(number: int, factors: Floats) -> Iterable[float]:
        (first, second), squares = tried[number], np.square(factors)
        scaled = first / factors, second * factors, powers[0] / squares, powers[1] * squares
        return (product_error(*scaled, one_scale),)

    return _Way((0.0, *_STRENGTHS), factors, errors)


def _has_one_scale(choice: FactorChoice, product: str) -> bool:
    """Whether both operands of a product have one scale, as slices of one tensor have."""
    first, second = (value.name or "" for value in choice.nodes[product].inputs[:2] if value is not None)
    configs = choice.placement.configs
    return configs.dominator(first) == configs.dominator(second)


class FactorChoice:
    """The factors of a network's channels, and what their choice rests on.

    Args:
        model: The float model; not changed.
        placement: The placement for this model.
        channels: The channels of the model.
        forms: The forms of these channels.
        feeds: The samples that factors are chosen with, on which the float network is run.
        method: The calibration method that the model will be calibrated with.

    Attributes:
        producers: The producers by the name of their node.
        labels: Tensor name to the channels of its elements, for every tensor that was observed.
        observed: What was measured of these tensors, before any factor is applied.
        nodes: The model's nodes by name.
        layers: The weighted nodes that run in INT8, by name.
        copied: For each representative, whether factors other than 1 need a copy of a node.
        factors: The factors of the representatives, float64 of shape (number of channels,). They begin as 1,
            and those that choose write into this array.
        least: The least factors of the representatives of channels that pass a bound; more than 1 where the
            factor has to stay 1, and 0 for channels that pass none.

    Raises:
        CalibrationDataError: The model fails on a batch.
    """

    def __init__(
        self,
        model: ir.Model,
        placement: Placement,
        channels: NetworkChannels,
        forms: Sequence[Form],
        feeds: Iterable[FeedDict],
        method: str,
    ) -> None:
        self.model, self.placement, self.channels, self.method = model, placement, channels, method
        self.producers = {producer.node: producer for producer in channels.producers}
        read = {reading.tensor: reading.labels for form in forms for reading in form.readings}
        multiplied = [self.producers[name] for form in forms if form.products for name in form.producers]
        ranks = {value.name: len(value.shape or ()) for value in graph_values(model.graph)}
        shared = {name: ranks.get(name, 0) for group in placement.shared for name in group}
        self.labels: Mapping[str, Channels] = {
            **{name: np.full((1,) * rank, FIXED, np.int64) for name, rank in shared.items()},
            **{name: channels.tensors[name] for name in shared if name in channels.tensors},
            **{producer.tensor: producer.labels for producer in multiplied},
            **{clip.tensor: clip.labels for clip in channels.clips},
            **read,
        }
        self.observed = observe(model, self.labels, read, feeds)
        self.nodes = {node.name or "": node for node in model.graph}
        quantized = frozenset(placement.quantized_nodes)
        layers = find_layers(model.graph, placement)
        self.layers = {layer.name: layer for layer in layers if layer.name in quantized}
        self.copied = np.zeros(len(channels.representatives), np.bool_)
        for copy in channels.copies:
            self.copied[channels.representatives[copy.channels]] = True
        self.factors = np.ones(len(channels.representatives))
        self.least = _least_factors(channels, self.observed)

    def factors_of(self, labels: Channels) -> Floats:
        """The factors of channels as they are now, of the shape of ``labels``."""
        return factors_of(self.channels, self.factors, labels)

    def weights_of(self, node: str) -> Float32s:
        """The weights of a layer with the factors as they are now.

        Args:
            node: Name of the layer.
        """
        weights = constant_input(self.nodes[node], 1)
        assert weights is not None, f"'{node}' has constant weights"
        return changed_constant(weights, self.channels, self.factors, self.channels.changes[node, 1])


def _least_factors(channels: NetworkChannels, observed: Observations) -> Floats:
    """The least factor of each representative with which bounds stay a margin away from the peaks."""
    least = np.zeros(len(channels.representatives))
    for clip in channels.clips:
        peaks = observed.peaks.get(clip.tensor, np.zeros(clip.labels.shape))
        # Of a channel that was always zero, and of one that is multiplied, nothing is known.
        unknown = (peaks == 0) | (channels.powers[clip.labels] < 0)
        needed = np.where(unknown, np.inf, CLIP_MARGIN * peaks / clip.bound)
        np.maximum.at(least, channels.representatives[clip.labels].ravel(), needed.ravel())
    return least


def match_shared_scales(choice: FactorChoice, forms: Sequence[Form]) -> None:
    """Gives channels that share a scale with other tensors the largest range of those tensors.

    The level of factors that weights make up for is free, because weights have one scale per output channel.
    It matters where the activation shares its scale with others, as the values of an attention do with the
    queries and keys that the same layer computes: the whole range of the scale should be used by each.

    Args:
        choice: The factors, all chosen; those of one form are multiplied by its level.
        forms: The forms.
    """
    numbers = np.full(len(choice.factors), -1)
    for number, form in enumerate(forms):
        numbers[form.representatives] = number
    for group in choice.placement.shared:
        if all(name in choice.observed.peaks for name in group):
            held = {name: numbers[choice.channels.representatives[choice.labels[name]]] for name in group}
            for number in np.unique(np.concatenate([array.ravel() for array in held.values()])).tolist():
                if number >= 0:
                    _match(choice, forms[number], {name: array == number for name, array in held.items()})


def _match(choice: FactorChoice, form: Form, held: Mapping[str, Flags]) -> None:
    """Multiplies the factors of a form by a level; ``held`` tells which channels of tensors it holds."""
    own = choice.factors[form.representatives]
    if not form.readings or (own == 1).all() or choice.least[form.representatives].any():
        return
    if any(array.any() != array.all() for array in held.values()):
        return
    largest = [0.0, 0.0]
    for name, array in held.items():
        peak = choice.observed.peaks[name] / choice.factors_of(choice.labels[name])
        side = int(array.all())
        largest[side] = max(largest[side], float(peak.max()))
    outside, inside = largest
    if min(inside, outside) > 0:
        choice.factors[form.representatives] *= inside / outside
