"""Chooses the factors of a network's channels by the error that quantization leaves.

The arithmetic is pure functions on ranges of channels. The error is that at the output of a layer whose input
and weights are quantized. Channels whose tensor shares one scale with other tensors are levelled together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import METHODS
from trtint8.equalization.following.constants import Shapes, input_ranges
from trtint8.equalization.following.labelling import (
    FIXED,
    Change,
    Channels,
    NetworkChannels,
    Producer,
    Reading,
)
from trtint8.equalization.forms import (
    Fold,
    Form,
    Observations,
    Part,
    changed_constant,
    changes_by_constant,
    factors_of,
    observe,
)
from trtint8.models.graph import constant_input
from trtint8.quantization.placement import Placement
from trtint8.simulation.networks import Layer, find_layers
from trtint8.simulation.segments import LayerAlone

#: Limits of the factors: channels that are nearly always zero would give weights of extreme magnitudes.
_SMALLEST_FACTOR, _LARGEST_FACTOR = 1e-3, 1e3

#: The strengths with which ranges are moved from activations to weights.
_STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)

#: Channels that pass a bound, such as that of a Relu6, have factors with which the bound stays at so many
#: times the largest value that was seen, at least. Other samples rarely reach further.
CLIP_MARGIN = 4.0

_Floats = NDArray[np.float64]


def migration_factors(made: _Floats, read: _Floats, strength: float) -> _Floats:
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


def product_factors(first: _Floats, second: _Floats, strength: float) -> _Floats:
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
    first: _Floats, second: _Floats, first_power: _Floats, second_power: _Floats, one_scale: bool
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


def below_bounds(factors: _Floats, least: _Floats, alive: NDArray[np.bool_]) -> _Floats:
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
    return _choose_migration(choice, form) if form.readings else _choose_product(choice, form)


def _choose_migration(choice: FactorChoice, form: Form) -> float | None:
    """Chooses factors that the weights of the readers make up for."""
    readings = [reading for reading in form.readings if reading.node in choice.layers]
    folds = choice.observed.folds
    if not readings or any(one.tensor not in fold.tried_on.values for one in readings for fold in folds):
        return None

    def made_with(peaks: Mapping[str, _Floats]) -> _Floats:
        return _largest(choice, form, ((one.channels, peaks[one.tensor].reshape(-1)) for one in readings))

    read = _largest(choice, form, ((one.channels, _read_ranges(choice, one)) for one in readings))
    least = choice.least[form.representatives]

    def factors_with(made: _Floats, strength: float) -> _Floats:
        return below_bounds(migration_factors(made, read, strength), least, (made > 0) & (read > 0))

    quantized = [choice.layers[one.node] for one in readings]
    readers = [ReaderError(choice.model, layer, choice.placement, choice.method) for layer in quantized]
    tried = [
        (
            made_with(fold.found_with.peaks),
            [_Layer(choice, *pair, fold) for pair in zip(readings, readers, strict=True)],
        )
        for fold in folds
    ]

    def error(strength: float | None) -> float:
        total = 0.0
        for made, layers in tried:
            factors = _ones(form) if strength is None else factors_with(made, strength)
            choice.factors[form.representatives] = factors
            for layer in layers:
                total += layer.error()
        return total

    errors = {strength: error(strength) for strength in _STRENGTHS}
    best = min(errors, key=lambda strength: errors[strength])
    worthwhile = errors[best] <= (
        _WORTH_A_COPY if choice.copied[form.representatives].any() else _WORTHWHILE
    ) * error(None)
    factors = factors_with(made_with(choice.observed.peaks), best) if worthwhile else _ones(form)
    choice.factors[form.representatives] = factors
    return best if worthwhile else None


def _ones(form: Form) -> _Floats:
    return np.ones(len(form.representatives))


def _read_ranges(choice: FactorChoice, reading: Reading) -> _Floats:
    weights = choice.weights_of(reading.node).astype(np.float64)
    return input_ranges(choice.nodes[reading.node], weights)


def _largest(choice: FactorChoice, form: Form, ranges: Iterable[tuple[Channels, _Floats]]) -> _Floats:
    """The largest range of each class of channels of a form, from ranges of channels."""
    largest = _zeros(form)
    for channels, values in ranges:
        _combine(largest, choice, form, channels, values, np.maximum)
    return largest


def _zeros(form: Form) -> _Floats:
    return np.zeros(len(form.representatives))


def _combine(
    measured: _Floats, choice: FactorChoice, form: Form, channels: Channels, values: _Floats, by: np.ufunc
) -> None:
    """Combines values of channels with those of their classes; those of other forms are left out.

    Args:
        measured: One value for each representative of the form; changed in place.
        choice: Knows the classes.
        form: The form.
        channels: Numbers of channels.
        values: Their values, of the same shape.
        by: How two values are combined.
    """
    classes = choice.channels.representatives[channels]
    places = np.searchsorted(form.representatives, classes).clip(max=len(form.representatives) - 1)
    inside = form.representatives[places] == classes
    by.at(measured, places[inside], np.broadcast_to(values, classes.shape)[inside])


class _Layer:
    """A reader of a form, with values that it reads."""

    def __init__(self, choice: FactorChoice, reading: Reading, reader: ReaderError, fold: Fold) -> None:
        self._choice, self._reading, self._reader, self._fold = choice, reading, reader, fold
        self._exact = self._reader.run(self._values(fold.tried_on), self._weights())

    def error(self) -> float:
        """The relative error of the output with the factors as they are now, on samples of their own.

        The range is that of the samples that factors are found with: calibration does not see others either.
        """
        amax = self._reader.threshold(self._values(self._fold.found_with))
        values = self._values(self._fold.tried_on)
        return self._reader.relative_error(values, self._weights(), self._exact, amax)

    def _weights(self) -> NDArray[np.float32]:
        return self._choice.weights_of(self._reading.node)

    def _values(self, part: Part) -> NDArray[np.float32]:
        factors = self._choice.factors_of(self._reading.labels)
        return (part.values[self._reading.tensor] / factors).astype(np.float32)


def _choose_product(choice: FactorChoice, form: Form) -> float | None:
    """Chooses factors that cancel in products of two activations."""
    producers = [choice.producers[name] for name in form.producers]
    if choice.least[form.representatives].any():  # factors that cancel may be of any level
        return None
    if any(producer.tensor not in choice.observed.peaks for producer in producers):
        return None
    nodes = [product.node for product in form.products if product.node in choice.layers]
    if not nodes:
        return None
    one_scale = any(_has_one_scale(choice, node) for node in nodes)

    def of_sides(measured: Mapping[str, _Floats], combine: np.ufunc) -> tuple[_Floats, _Floats]:
        sides = (_zeros(form), _zeros(form))
        for producer in producers:
            positive = choice.channels.powers[producer.labels] > 0
            for side, held in zip(sides, (positive, ~positive), strict=True):
                _combine(side, choice, form, producer.labels[held], measured[producer.tensor][held], combine)
        return sides

    powers = of_sides(choice.observed.powers, np.add)
    folds = [
        tuple(of_sides(part.peaks, np.maximum) for part in (fold.found_with, fold.tried_on))
        for fold in choice.observed.folds
    ]

    def error(strength: float | None) -> float:
        total = 0.0
        for found, tried in folds:
            factors = _ones(form) if strength is None else product_factors(*found, strength)
            squares = np.square(factors)
            total += product_error(
                tried[0] / factors, tried[1] * factors, powers[0] / squares, powers[1] * squares, one_scale
            )
        return total

    errors = {strength: error(strength) for strength in (0.0, *_STRENGTHS)}
    best = min(errors, key=lambda strength: errors[strength])
    if errors[best] > _WORTHWHILE * error(None):
        return None
    choice.factors[form.representatives] = product_factors(*of_sides(choice.observed.peaks, np.maximum), best)
    return best


def _has_one_scale(choice: FactorChoice, product: str) -> bool:
    """Whether both operands of a product have one scale, as slices of one tensor have."""
    first, second = (value.name or "" for value in choice.nodes[product].inputs[:2] if value is not None)
    configs = choice.placement.configs
    return configs.dominator(first) == configs.dominator(second)


@dataclass(frozen=True)
class FactorChoice:
    """The factors of a network's channels, and what their choice rests on.

    Attributes:
        model: The float model; not changed.
        placement: The placement for this model.
        method: The calibration method that the model will be calibrated with.
        channels: The channels of the model.
        producers: The producers by the name of their node.
        labels: Tensor name to the channels of its elements, for every tensor that was observed.
        observed: What was measured of these tensors, before any factor is applied.
        nodes: The model's nodes by name.
        changes: The changes of constants, by name of the node and index of its input.
        layers: The weighted nodes that run in INT8, by name.
        copied: For each representative, whether factors other than 1 need a copy of a node.
        factors: The factors of the representatives, float64 of shape (number of channels,). They begin as 1,
            and those that choose write into this array.
        least: The least factors of the representatives of channels that pass a bound; more than 1 where the
            factor has to stay 1, and 0 for channels that pass none.
    """

    model: ir.Model
    placement: Placement
    method: str
    channels: NetworkChannels
    producers: Mapping[str, Producer]
    labels: Mapping[str, Channels]
    observed: Observations
    nodes: Mapping[str, ir.Node]
    changes: Mapping[tuple[str, int], list[Change]]
    layers: Mapping[str, Layer]
    copied: NDArray[np.bool_]
    factors: NDArray[np.float64]
    least: NDArray[np.float64]

    @classmethod
    def begin(
        cls,
        model: ir.Model,
        placement: Placement,
        channels: NetworkChannels,
        shapes: Shapes,
        forms: Sequence[Form],
        feeds: Iterable[FeedDict],
        method: str,
    ) -> FactorChoice:
        """Runs the float network, and begins with factors of 1.

        Args:
            model: The float model; not changed.
            placement: The placement for this model.
            channels: The channels of the model.
            shapes: The shapes of the model's tensors.
            forms: The forms of these channels.
            feeds: The samples that factors are chosen with.
            method: The calibration method that the model will be calibrated with.

        Raises:
            CalibrationDataError: The model fails on a batch.
        """
        producers = {producer.node: producer for producer in channels.producers}
        read = {reading.tensor: reading.labels for form in forms for reading in form.readings}
        multiplied = [producers[name] for form in forms if form.products for name in form.producers]
        shared = [name for group in placement.shared for name in group]
        labels = {
            **{name: _labels(name, channels, shapes) for name in shared},
            **{producer.tensor: producer.labels for producer in multiplied},
            **{clip.tensor: clip.labels for clip in channels.clips},
            **read,
        }
        nodes = {node.name or "": node for node in model.graph}
        quantized = frozenset(placement.quantized_nodes)
        observed = observe(model, labels, read, feeds)
        copied = np.zeros(len(channels.representatives), np.bool_)
        for copy in channels.copies:
            copied[channels.representatives[copy.channels]] = True
        return cls(
            model,
            placement,
            method,
            channels,
            producers,
            labels,
            observed,
            nodes,
            changes_by_constant(channels),
            {layer.name: layer for layer in find_layers(model.graph, placement) if layer.name in quantized},
            copied,
            np.ones(len(channels.representatives)),
            _least_factors(channels, observed),
        )

    def factors_of(self, labels: Channels) -> NDArray[np.float64]:
        """The factors of channels as they are now, of the shape of ``labels``."""
        return factors_of(self.channels, self.factors, labels)

    def weights_of(self, node: str) -> NDArray[np.float32]:
        """The weights of a layer with the factors as they are now.

        Args:
            node: Name of the layer.
        """
        weights = constant_input(self.nodes[node], 1)
        assert weights is not None, f"'{node}' has constant weights"
        return changed_constant(weights, self.channels, self.factors, self.changes[node, 1])


def _least_factors(channels: NetworkChannels, observed: Observations) -> NDArray[np.float64]:
    """The least factor of each representative with which bounds stay a margin away from the peaks."""
    least = np.zeros(len(channels.representatives))
    for clip in channels.clips:
        peaks = observed.peaks.get(clip.tensor, np.zeros(clip.labels.shape))
        # Of a channel that was always zero, and of one that is multiplied, nothing is known.
        unknown = (peaks == 0) | (channels.powers[clip.labels] < 0)
        needed = np.where(unknown, np.inf, CLIP_MARGIN * peaks / clip.bound)
        np.maximum.at(least, channels.representatives[clip.labels].ravel(), needed.ravel())
    return least


def _labels(tensor: str, channels: NetworkChannels, shapes: Shapes) -> Channels:
    if tensor in channels.tensors:
        return channels.tensors[tensor]
    return np.full((1,) * len(shapes.shapes.get(tensor, ())), FIXED, np.int64)


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
            held = [numbers[choice.channels.representatives[choice.labels[name]]].ravel() for name in group]
            for number in np.unique(np.concatenate(held)).tolist():
                if number >= 0:
                    _match(choice, forms[number], group)


def _match(choice: FactorChoice, form: Form, group: Sequence[str]) -> None:
    if not form.readings or (choice.factors[form.representatives] == 1).all():
        return
    if choice.least[form.representatives].any():
        return
    inside: list[float] = []
    outside: list[float] = []
    for name in group:
        held = np.isin(choice.channels.representatives[choice.labels[name]], form.representatives)
        if held.any() and not held.all():
            return
        (inside if held.all() else outside).append(_peak(choice, name))
    if inside and outside and min(max(inside), max(outside)) > 0:
        choice.factors[form.representatives] *= max(inside) / max(outside)


def _peak(choice: FactorChoice, tensor: str) -> float:
    """The largest magnitude of a tensor with the factors as they are now."""
    return float((choice.observed.peaks[tensor] / choice.factors_of(choice.labels[tensor])).max())


#: Stands in for methods that choose ranges with more than a histogram.
_METHOD = "mse"


class ReaderError(LayerAlone):
    """A layer by itself, without its bias, whose error with quantized operands is measured.

    Args:
        model: The model that the layer belongs to.
        layer: A layer with constant weights as its second input.
        placement: The placement for this model.
        method: The calibration method.
    """

    def __init__(self, model: ir.Model, layer: Layer, placement: Placement, method: str) -> None:
        super().__init__(model, layer, placement)
        self._threshold = METHODS.get(method, METHODS[_METHOD])

    def threshold(self, values: NDArray[np.float32]) -> float:
        """The range that calibration finds for the layer's input.

        Args:
            values: The layer's input.
        """
        histogram = Histogram()
        histogram.observe(values)
        return self._threshold(histogram) or 1.0

    def relative_error(
        self,
        values: NDArray[np.float32],
        weights: NDArray[np.float32],
        exact: NDArray[np.float32],
        amax: float,
    ) -> float:
        """The squared error with quantized operands, over the sum of squares of the exact output.

        Args:
            values: The layer's input.
            weights: The layer's weights.
            exact: The exact output.
            amax: The range of the input.
        """
        # Squares of float32 numbers may be beyond float32.
        signal = exact.astype(np.float64).reshape(-1)
        error = self.run_int8(values, weights, amax).reshape(-1) - signal
        return float(error @ error) / (float(signal @ signal) or 1.0)
