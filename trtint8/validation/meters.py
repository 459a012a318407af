"""What single metrics showed on one model: it grows batch by batch, and meters of batches merge exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtint8.validation.significance import Comparison, Share, compare_hits, compare_values


class Meter(Protocol):
    """One metric on one model. It holds no function of a user, so that it can be sent."""

    def merge(self, other: Any) -> None:
        """Takes what was seen in batches after its own."""
        ...

    def value(self) -> Share | float:
        """The metric over all batches."""
        ...

    def against(self, other: Any, name: str) -> Comparison | None:
        """Compares with the same metric on another model; None where samples have no values of their own."""
        ...


class HitMeter:
    """Right or wrong, a sample: keeps one byte of each.

    Args:
        parts: For each batch, bool, shape (samples,).
    """

    def __init__(self, parts: Sequence[NDArray[np.bool_]] = ()) -> None:
        self._parts = list(parts)

    def merge(self, other: HitMeter) -> None:
        """Takes what was seen in batches after its own."""
        self._parts += other._parts

    def value(self) -> Share:
        """The share that is right."""
        return Share(sum(int(part.sum()) for part in self._parts), sum(map(len, self._parts)))

    def against(self, other: HitMeter, name: str) -> Comparison:
        """McNemar's test."""
        return compare_hits(np.concatenate(self._parts), np.concatenate(other._parts), name)


class ValueMeter:
    """A number a batch, or a sample: keeps them, and for how many samples each stands.

    Args:
        parts: For each batch values and weights, float64, shapes (values,).
    """

    def __init__(self, parts: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]] = ()) -> None:
        self._parts = list(parts)

    def merge(self, other: ValueMeter) -> None:
        """Takes what was seen in batches after its own."""
        self._parts += other._parts

    def value(self) -> float:
        """The mean over samples: a batch's value counts as often as it has samples."""
        values, weights = self._joined()
        return float(np.average(values, weights=weights))

    def against(self, other: ValueMeter, name: str) -> Comparison | None:
        """A paired bootstrap over samples, or over batches where these have one value."""
        values, weights = self._joined()
        unit = "samples" if (weights == 1).all() else "batches"
        return compare_values(values, other._joined()[0], weights, name, unit)

    def _joined(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values, weights = zip(*self._parts, strict=True)
        return np.concatenate(values), np.concatenate(weights)
