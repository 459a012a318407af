"""How far outputs are from the reference's, element by element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Metrics that every output has of its own. The first three come from one look at the values.
OUTPUT_METRICS = ("sqnr", "cosine", "max_error", "token_cosine")


@dataclass(frozen=True)
class Fidelity:
    """How close one output is to FP32's.

    Attributes:
        name: The output.
        sqnr_db: Signal to quantization noise, 10 log10(sum(fp32^2) / sum((fp32 - int8)^2)) over all
            samples, in decibels; infinite where they are equal.
        cosine: Cosine of the angle between the two, over all samples.
        max_error: The largest |fp32 - int8|.
        token_cosine: Mean of the cosines of the vectors along the last axis, over samples and positions (all
            axes before the last), padding included; None where it was not asked for or the output has no
            such axes.
    """

    name: str
    sqnr_db: float
    cosine: float
    max_error: float
    token_cosine: float | None = None


class FidelityMeter:
    """Sums of all outputs, a batch at a time.

    Args:
        names: The outputs.
        tokens: Compute ``token_cosine`` as well.
    """

    def __init__(self, names: Sequence[str], *, tokens: bool) -> None:
        self._tokens = tokens
        self._sums = {name: np.zeros(4) for name in names}
        self._largest = dict.fromkeys(names, 0.0)
        self._cosines = dict.fromkeys(names, (0.0, 0))

    def add(self, outputs: Mapping[str, NDArray[Any]], reference: Mapping[str, NDArray[Any]]) -> None:
        """Takes one batch of both sides, with equal shapes."""
        for name in self._sums:
            wanted, got = reference[name].astype(np.float64), outputs[name].astype(np.float64)
            error = wanted - got
            pairs = ((wanted, wanted), (got, got), (wanted, got), (error, error))
            self._sums[name] += [np.vdot(a, b) for a, b in pairs]
            # np.maximum, unlike max, keeps a NaN.
            self._largest[name] = float(np.maximum(self._largest[name], np.abs(error).max(initial=0.0)))
            if self._tokens and wanted.ndim > 1:
                cosines = row_cosines(got, wanted)
                total, count = self._cosines[name]
                self._cosines[name] = (total + float(cosines.sum()), count + cosines.size)

    def value(self) -> tuple[Fidelity, ...]:
        """What all batches together say, in the order of the outputs."""
        return tuple(self._fidelity(name) for name in self._sums)

    def _fidelity(self, name: str) -> Fidelity:
        wanted, got, product, noise = self._sums[name]
        norm = math.sqrt(wanted * got)
        total, count = self._cosines[name]
        return Fidelity(
            name,
            decibels(float(wanted), float(noise)),
            float(product / norm) if norm else float(noise == 0),
            self._largest[name],
            total / count if count else None,
        )


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise) of two powers; infinite without noise, minus infinite without signal."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def row_cosines(got: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines of the vectors along the last axis.

    Args:
        got: float64, shape (..., width).
        wanted: The same shape.

    Returns:
        float64, shape (...). Two zero vectors have cosine 1, a zero vector and another one 0.
    """
    squares = (wanted * wanted).sum(axis=-1) * (got * got).sum(axis=-1)
    equal = (wanted == got).all(axis=-1)
    cosines = (wanted * got).sum(axis=-1) / np.sqrt(np.where(squares == 0, 1.0, squares))
    return np.asarray(np.where(squares == 0, equal, cosines), np.float64)
