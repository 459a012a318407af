"""The noise of a network's outputs relative to their signal, for each sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The level of outputs without an error, in decibels: float32 resolves about 140 dB.
LOWEST_DB = -140.0

#: The level of outputs that are not finite or have another shape, where the float network's are finite: as
#: much noise as signal.
NOTHING_RIGHT_DB = 0.0

#: Elements that are compared at once: as float64, the logits of a language model would take gigabytes.
_BLOCK = 1 << 18


def noise_levels(
    wanted: Sequence[NDArray[Any]], got: Sequence[NDArray[Any]], rows: int
) -> NDArray[np.float64]:
    """The level of the noise below the signal: minus the SQNR, in decibels.

    Args:
        wanted: The float network's outputs.
        got: The quantized network's outputs, of the same number.
        rows: How many samples lie along axis 0 of every output; 1 takes each output as a whole.

    Returns:
        float64, shape (rows,): the mean over the floating-point outputs that have a signal, each not less
        than -140 dB; -140 dB where there is none. An output that is not finite or has another shape, where
        the float network's is finite, counts as 0 dB.
    """
    levels = np.array([_levels(a, b, rows) for a, b in zip(wanted, got, strict=True)])
    known = np.isfinite(levels)
    sums = np.where(known, levels, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), LOWEST_DB)


def _levels(wanted: NDArray[Any], got: NDArray[Any], rows: int) -> NDArray[np.float64]:
    """The levels of one output; not a number where there is nothing to compare."""
    if not np.issubdtype(wanted.dtype, np.floating):
        return np.full(rows, np.nan)
    if wanted.shape != got.shape:
        return np.full(rows, NOTHING_RIGHT_DB)
    signal, noise = _powers(wanted.reshape(rows, -1), got.reshape(rows, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        levels: NDArray[np.float64] = np.maximum(10 * np.log10(noise / signal), LOWEST_DB)
    levels = np.where(np.isfinite(noise), levels, NOTHING_RIGHT_DB)
    return np.where((signal > 0) & np.isfinite(signal), levels, np.nan)


def _powers(wanted: NDArray[Any], got: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sums of the squares of signal and error in each row."""
    rows, elements = wanted.shape
    signal, noise = np.zeros((2, rows))
    width = max(1, _BLOCK // rows)
    for start in range(0, elements, width):
        exact, other = (array[:, start : start + width].astype(np.float64) for array in (wanted, got))
        error = exact - other
        signal += np.einsum("ij,ij->i", exact, exact)
        noise += np.einsum("ij,ij->i", error, error)
    return signal, noise


def mean_level(levels: Sequence[float]) -> float:
    """The mean of noise levels: the power mean of the noise powers with the exponent 1/6.

    The mean of the powers themselves would be decided by the one sample that is unlike all others; the mean
    of the decibels would accept that some samples are ruined for others that become still better.

    Args:
        levels: In decibels, at least one.

    Returns:
        The mean in decibels.
    """
    return 60 * math.log10(math.fsum(10 ** (level / 60) for level in levels) / len(levels))


def is_clearly_better(
    levels: Sequence[float], others: Sequence[float], advantage: float, standard_errors: float
) -> bool:
    """Whether noise is lower by more than chance explains.

    Args:
        levels: Noise levels in decibels, one per sample.
        others: Those of something else on the same samples.
        advantage: Decibels that the first may be worse by.
        standard_errors: By how many standard errors of the paired differences it has to be lower.
    """
    own, other = (np.array(values) for values in (levels, others))
    differences = 10 ** ((own - advantage) / 60) - 10 ** (other / 60)
    if len(differences) < 2:
        return bool(differences.mean() < 0)
    error = differences.std(ddof=1) / math.sqrt(len(differences))
    return bool(differences.mean() < -standard_errors * error)
