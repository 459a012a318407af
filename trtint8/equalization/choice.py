"""Chooses the factors of a form by the error that quantization leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from trtint8.equalization.factor_choice import FactorChoice
from trtint8.equalization.factors import STRENGTHS, migration_factors, product_error, product_factors
from trtint8.equalization.following.channel_classes import Channels
from trtint8.equalization.following.channels import Reading
from trtint8.equalization.following.weights import input_ranges
from trtint8.equalization.forms import Form
from trtint8.equalization.ranges import Fold, Part
from trtint8.equalization.reader_error import ReaderError

#: Factors are applied where they reduce the squared error to this share at most. A copy of a normalization
#: costs time in the engine, so it must gain more.
_WORTHWHILE, _WORTH_A_COPY = 0.8, 0.6

_Floats = NDArray[np.float64]


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
            factors = _ones(form) if strength is None else migration_factors(made, read, strength)
            choice.factors[form.representatives] = factors
            for layer in layers:
                total += layer.error()
        return total

    errors = {strength: error(strength) for strength in STRENGTHS}
    best = min(errors, key=lambda strength: errors[strength])
    worthwhile = errors[best] <= (
        _WORTH_A_COPY if choice.copied[form.representatives].any() else _WORTHWHILE
    ) * error(None)
    factors = migration_factors(made_with(choice.observed.peaks), read, best) if worthwhile else _ones(form)
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

    errors = {strength: error(strength) for strength in (0.0, *STRENGTHS)}
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
