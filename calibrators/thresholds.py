"""From a histogram of |x| to amax, the positive end of the range that INT8 will cover.

All methods are pure functions of one stored histogram, so changing the method never runs the model again.

Why the entropy search here is not the literal one. NVIDIA's slides (S. Migacz, "8-bit Inference with
TensorRT", GTC 2017, S7310) bin everything, zeros included. After a ReLU half of all values are zero: one
bin outweighs the rest, every candidate that keeps this bin to itself looks almost perfect, and the search
ends at the smallest candidate (for a half-normal distribution with outliers at 20 it gives 1.25, where
99.99 % of the values reach to 3.8). Signed histograms put the same spike into the middle. Networks that
were calibrated so lose most of their accuracy. Two things prevent it, as in NVIDIA's later
pytorch-quantization: magnitudes instead of signed values, so that all 128 levels serve one side; and the
first bin, where exact and almost exact zeros gather that every scale represents equally well, takes the
count of its neighbour. Further, Q is built from the bins inside the range only and P keeps the clipped
mass in its last bin, so that clipping costs divergence; where the last bin of a candidate is empty and
mass is clipped, the divergence is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram

#: Magnitudes that symmetric INT8 tells apart: 0..127.
LEVELS = 128

#: The share of all values, in percent, that :func:`percentile` keeps unclipped.
PERCENTILE = 99.99

_Floats = NDArray[np.float64]


def minmax(histogram: Histogram) -> float:
    """The largest finite magnitude observed: nothing is clipped."""
    return histogram.amax


def percentile(histogram: Histogram, percent: float = PERCENTILE) -> float:
    """The highest bin edge below which at most ``percent`` per cent of all values lie, zeros among them.

    Args:
        histogram: Of the tensor's magnitudes.
        percent: In (0, 100]; 100 is :func:`minmax`.

    Returns:
        That edge, or the first bin's upper edge where it would be zero; never more than the largest
        magnitude.

    Raises:
        ValueError: ``percent`` is not in (0, 100].
    """
    if not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} is not in (0, 100]; try {PERCENTILE}")
    if percent == 100 or not histogram.amax:
        return histogram.amax
    # Whole numbers throughout: ties are common in the thin tail, and rounding would move the edge.
    allowed = math.floor(Fraction(str(percent)) * histogram.total / 100)
    index = int(np.searchsorted(np.cumsum(histogram.counts) + histogram.zeros, allowed, side="right"))
    return min(max(index, 1) * histogram.bin_width, histogram.amax)


def entropy(histogram: Histogram, levels: int = LEVELS) -> float:
    """The range whose quantized distribution diverges least from the original one.

    Minimizes the Kullback-Leibler divergence over all ranges of at least ``levels`` bins (S7310; see the
    module's text for where this departs from the slides). Of equal ranges the widest is taken.

    Args:
        histogram: Of the tensor's magnitudes.
        levels: How many magnitudes the quantized type tells apart.

    Returns:
        The upper edge of the last bin in range; never more than the largest magnitude.
    """
    counts = _occupied(histogram)
    if len(counts) <= levels:
        return histogram.amax
    counts[0] = counts[1]
    candidates = np.arange(levels, len(counts) + 1)
    divergence = kl_divergence(counts, candidates, levels)
    best = candidates[len(candidates) - 1 - int(np.argmin(divergence[::-1]))]
    return min(float(best) * histogram.bin_width, histogram.amax)


def kl_divergence(counts: _Floats, candidates: NDArray[np.int64], levels: int = LEVELS) -> _Floats:
    """KL(P || Q) in nats of every candidate range.

    P is the first ``i`` bins with all that lies beyond added to the last of them; Q is these bins without
    the addition, merged to ``levels`` groups whose mean is spread back over their non-empty bins. With
    prefix sums of h, [h > 0] and h ln h a candidate takes one look-up a level.

    Args:
        counts: h, shape (bins,), float64, not negative.
        candidates: Bins in range, int64, shape (n,), each at least 1 and at most ``len(counts)``.
        levels: Groups of bins in Q; group k holds the bins from ceil(k*i/levels) on.

    Returns:
        Divergences, shape (n,); infinite where Q has nothing and P has something.
    """
    mass = _prefix_sums(counts)
    filled = _prefix_sums((counts > 0).astype(np.float64))
    h_ln_h = _prefix_sums(_x_ln_x(counts))
    total = mass[-1]

    edges = -(-np.arange(levels + 1) * candidates[:, None] // levels)
    group_mass = np.diff(mass[edges], axis=1)
    group_filled = np.diff(filled[edges], axis=1)
    ln_q = np.log(np.divide(group_mass, group_filled, out=np.ones_like(group_mass), where=group_filled > 0))

    last = counts[candidates - 1]
    clipped = total - mass[candidates]
    p_ln_p = h_ln_h[candidates] - _x_ln_x(last) + _x_ln_x(last + clipped)
    p_ln_q = (group_mass * ln_q).sum(axis=1) + clipped * ln_q[:, -1]
    inside = np.maximum(mass[candidates], 1.0)
    divergence = (p_ln_p - p_ln_q) / total - np.log(total) + np.log(inside)
    return np.where((last == 0) & (clipped > 0), np.inf, divergence)


def mse(histogram: Histogram, levels: int = LEVELS) -> float:
    """The range with the least mean squared error of quantizing and clipping.

    Args:
        histogram: Of the tensor's magnitudes.
        levels: How many magnitudes the quantized type tells apart.

    Returns:
        The centre of the bin that ends the range; never more than the largest magnitude.
    """
    counts = _occupied(histogram)
    if len(counts) < 2:
        return histogram.amax
    candidates = np.arange(1, len(counts))
    error = quantization_error(counts, candidates, levels)
    best = candidates[int(np.argmin(error))]
    return min((float(best) + 0.5) * histogram.bin_width, histogram.amax)


def quantization_error(counts: _Floats, candidates: NDArray[np.int64], levels: int = LEVELS) -> _Floats:
    """Sum of squared errors, in squared bin widths, of ranges that end at the centre of a bin.

    Every value stands at its bin's centre. With prefix sums of h, h c and h c^2 a candidate takes one
    look-up a level.

    Args:
        counts: h, shape (bins,), float64, not negative.
        candidates: The last bin in range, int64, shape (n,).
        levels: How many magnitudes the quantized type tells apart.

    Returns:
        Errors, shape (n,).
    """
    centres = np.arange(len(counts)) + 0.5
    moment0, moment1, moment2 = (_prefix_sums(counts * centres**k) for k in range(3))
    step = (candidates + 0.5) / (levels - 1)
    value = np.arange(levels) * step[:, None]
    # A bin rounds to level k where its centre lies between (k - 1/2) step and (k + 1/2) step.
    upper = np.ceil((np.arange(levels) + 0.5) * step[:, None] - 0.5).astype(np.int64)
    upper[:, -1] = len(counts)
    edges = np.concatenate([np.zeros((len(candidates), 1), np.int64), upper], axis=1).clip(0, len(counts))
    s0, s1, s2 = (np.diff(moment[edges], axis=1) for moment in (moment0, moment1, moment2))
    error: _Floats = (s2 - 2 * value * s1 + value**2 * s0).sum(axis=1)
    return error


METHODS: Mapping[str, Callable[[Histogram], float]] = {
    "entropy": entropy,
    "percentile": percentile,
    "mse": mse,
    "minmax": minmax,
}


def _occupied(histogram: Histogram) -> _Floats:
    """The counts up to the last non-empty bin, as float64."""
    filled = np.flatnonzero(histogram.counts)
    return histogram.counts[: filled[-1] + 1 if len(filled) else 0].astype(np.float64)


def _prefix_sums(values: _Floats) -> _Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _x_ln_x(x: _Floats) -> _Floats:
    product: _Floats = x * np.log(np.where(x > 0, x, 1.0))
    return product
