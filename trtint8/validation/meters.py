"""Meters: what one metric measured on one model so far. Meters of single batches merge exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtint8.validation.significance import Comparison, Share, compare_hits, compare_values


class Meter(Protocol):
    """One metric on one model. It holds no function of a user, so that it can be sent to other processes."""

    def merge(self, other: Any) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        ...

    def value(self) -> Share | float:
        """The metric over all batches."""
        ...

    def against(self, other: Any, name: str) -> Comparison | None:
        """Compares the metric with its value on another model.

        Args:
            other: The meter of the same metric on the other model, for the same samples.
            name: The other model's name.

        Returns:
            The comparison; None where samples have no values of their own.
        """
        ...


class HitMeter:
    """Whether a model is right on each sample, at one byte per sample.

    Args:
        parts: One array per batch: bool, shape (samples,).
    """

    def __init__(self, parts: Sequence[NDArray[np.bool_]] = ()) -> None:
        self._parts = list(parts)

    def merge(self, other: HitMeter) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        self._parts += other._parts

    def value(self) -> Share:
        """The share of samples on which the model is right."""
        return Share(sum(int(part.sum()) for part in self._parts), sum(map(len, self._parts)))

    def against(self, other: HitMeter, name: str) -> Comparison:
        """Compares with another model's meter by McNemar's test."""
        return compare_hits(np.concatenate(self._parts), np.concatenate(other._parts), name)


class ValueMeter:
    """One number per batch or per sample, each with the number of samples that it counts for.

    Args:
        parts: One pair of arrays per batch: values and weights, both float64 of shape (values,).
    """

    def __init__(self, parts: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]] = ()) -> None:
        self._parts = list(parts)

    def merge(self, other: ValueMeter) -> None:
        """Adds what the same metric measured on the same model in later batches."""
        self._parts += other._parts

    def value(self) -> float:
        """The mean over samples: a batch's value counts as often as it has samples."""
        values, weights = self._joined()
        return float(np.average(values, weights=weights))

    def against(self, other: ValueMeter, name: str) -> Comparison | None:
        """Compares by a paired bootstrap over samples, or over batches where there is one value per batch."""
        values, weights = self._joined()
        unit = "samples" if (weights == 1).all() else "batches"
        return compare_values(values, other._joined()[0], weights, name, unit)

    def _joined(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values, weights = zip(*self._parts, strict=True)
        return np.concatenate(values), np.concatenate(weights)
