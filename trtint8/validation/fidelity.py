"""How far a model's outputs are from the reference's, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.histograms.losses import decibels

#: Metrics that are measured for each output by itself. The first three are computed from the same sums.
OUTPUT_METRICS = ("sqnr", "cosine", "max_error", "token_cosine")

#: Elements that are compared at once: as float64, so many fit into a processor's cache.
_BLOCK = 1 << 15


@dataclass(frozen=True)
class Fidelity:
    """How close one output is to FP32's.

    Attributes:
        name: The name of the output.
        sqnr_db: Signal to quantization noise, 10 log10(sum(fp32^2) / sum((fp32 - int8)^2)) over all
            samples, in decibels; infinite where they are equal. NaN, as the other figures, where values are
            NaN, or where the output's shape depends on the values and differs from FP32's, or the model does
            not give it, as an engine gives no tensors inside the network.
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


def least_faithful(outputs: Sequence[Fidelity]) -> Fidelity | None:
    """The output with the lowest SQNR; None where no output has one.

    Args:
        outputs: The outputs.
    """
    comparable = [output for output in outputs if not math.isnan(output.sqnr_db)]
    return min(comparable, key=lambda output: output.sqnr_db, default=None)


class FidelityMeter:
    """Sums over the elements of outputs, kept for each batch until all are added up in the order of the data.

    So the result does not depend on where a batch was run.

    Args:
        names: Names of the outputs.
        tokens: Whether to compute ``token_cosine`` as well.
    """

    def __init__(self, names: Sequence[str], *, tokens: bool) -> None:
        self._names, self._tokens = tuple(names), tokens
        #: One array per batch: float64, shape (outputs, 7); six sums and the largest error.
        self._parts: list[NDArray[np.float64]] = []

    def add(self, outputs: Mapping[str, NDArray[Any]], reference: Mapping[str, NDArray[Any]]) -> None:
        """Adds one batch.

        Args:
            outputs: The model's outputs, by name.
            reference: The reference's outputs. One that the model does not give, or in another shape, has no
                fidelity: all its figures are NaN.
        """
        self._parts.append(np.array([self._part(outputs.get(name), reference[name]) for name in self._names]))

    def merge(self, other: FidelityMeter) -> None:
        """Adds what another meter of the same outputs has measured on later batches."""
        self._parts += other._parts

    def value(self) -> tuple[Fidelity, ...]:
        """The fidelity over all batches, in the order of the outputs."""
        parts = np.stack(self._parts)
        sums, largest = parts[:, :, :-1].sum(axis=0), parts[:, :, -1].max(axis=0)
        return tuple(map(_fidelity, self._names, sums.tolist(), largest.tolist()))

    def _part(self, output: NDArray[Any] | None, reference: NDArray[Any]) -> list[float]:
        if output is None or output.shape != reference.shape:
            cosines_of_tokens = [math.nan, 1.0] if self._tokens and reference.ndim > 1 else [0.0, 0.0]
            return [*[math.nan] * 4, *cosines_of_tokens, math.nan]
        sums, largest = np.zeros(6), 0.0
        for wanted, got in _in_blocks(reference, output):
            error = wanted - got
            pairs = ((wanted, wanted), (got, got), (wanted, got), (error, error))
            cosines = row_cosines(got, wanted) if self._tokens and reference.ndim > 1 else np.empty(0)
            sums += [*(inner_product(a, b) for a, b in pairs), float(cosines.sum()), cosines.size]
            largest = float(np.maximum(largest, np.abs(error).max(initial=0.0)))
        return [*sums.tolist(), largest]


def _in_blocks(
    reference: NDArray[Any], output: NDArray[Any]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Both arrays in runs of rows, float64 of shape (rows, last axis).

    As a whole the logits of a language model would take several times their memory.
    """
    if not reference.size:
        return
    width = reference.shape[-1] if reference.ndim else 1
    wanted, got = reference.reshape(-1, width), output.reshape(-1, width)
    rows = max(1, _BLOCK // width)
    for start in range(0, len(wanted), rows):
        yield wanted[start : start + rows].astype(np.float64), got[start : start + rows].astype(np.float64)


def _fidelity(name: str, sums: Sequence[float], largest: float) -> Fidelity:
    wanted, got, product, noise, cosines, count = sums
    norm = math.sqrt(wanted * got)
    return Fidelity(
        name,
        decibels(wanted, noise),
        product / norm if norm else float(noise == 0),
        largest,
        cosines / count if count else None,
    )


def inner_product(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The sum of the products of the elements of two arrays of one shape.

    Not ``numpy.vdot``, whose last bits depend on how many threads BLAS uses.
    """
    return float(np.einsum("i,i->", a.ravel(), b.ravel()))


def row_cosines(got: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines of the vectors along the last axis.

    Args:
        got: float64, shape (..., width).
        wanted: float64, of the same shape.

    Returns:
        float64, shape (...). The cosine of two zero vectors is 1, that of a zero vector and another one 0.
    """
    squares = (wanted * wanted).sum(axis=-1) * (got * got).sum(axis=-1)
    equal = (wanted == got).all(axis=-1)
    cosines = (wanted * got).sum(axis=-1) / np.sqrt(np.where(squares == 0, 1.0, squares))
    return np.asarray(np.where(squares == 0, equal, cosines), np.float64)
