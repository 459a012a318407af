"""Sums over samples of a noise's power and its signal's, and the level and the interval that they give."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trtint8.validation.significance import t95

DECIBELS = 10 / math.log(10)

#: Half the width, in decibels, of the interval by which a noise that gradients predict misses the exact one,
#: beside what the number of samples adds: the ratio of the two varies by 0.25 to 0.35 dB over the layers of
#: trained networks.
GRADIENTS_DB = 0.7

#: The same where the noise is as large as the signal, for what gradients leave out grows with its amplitude.
#: Layers of text detectors and readers with 8 to 20 dB were predicted 3 to 5 dB too low.
LARGE_NOISE_DB = 12.0

#: The largest noise of a single layer that is reported, in units of the signal: that of outputs which have
#: nothing in common with the float network's. Gradients know no such limit: in a network that carries every
#: small change on to large ones they predict powers of 10 and more.
_LARGEST_NOISE = 2.0

#: ``samples`` are those of the noise, ``judged`` those whose class is known.
_SUMS = ("samples", "signal", "signal2", "noise", "noise2", "both", "product", "got2", "judged", "agree")

#: Where not every sample shows the noise, ``shown`` counts those that do, and the sums of the noise are
#: estimates for all samples: what each shown one counts is its noise divided by its chance to be drawn. The
#: others are sums of the chances not to be drawn, and of these times what each counts and the square of that.
_DRAWN = ("shown", "missed", "missed_noise", "missed_noise2")

#: Samples with the label's class before and after, or not.
HITS = ("hit", "gained", "lost", "neither")

_NAMES = (*_SUMS, *_DRAWN, *HITS)

#: Name of a sum to its column, and how many columns there are.
COLUMN = {name: index for index, name in enumerate(_NAMES)}
COLUMNS = len(COLUMN)

#: The columns that count samples, and the one column that may be negative.
COUNTED = tuple(COLUMN[name] for name in ("samples", "judged", "agree", "shown", *HITS))
SIGNED = COLUMN["product"]


@np.errstate(over="ignore")  # a limit that is no number limits nothing
def limited(sums: NDArray[np.float64], predicted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Sums whose noise, where gradients predict it, is at most what outputs can be wrong by.

    Args:
        sums: Float64 of shape (variants, columns); not changed.
        predicted: Which variants' noise gradients predict, shape (variants,).

    Returns:
        Sums of the same shape.
    """
    sums = sums.copy()
    signal, noise = (sums[:, COLUMN[name]] for name in ("signal", "noise"))
    np.minimum(noise, _LARGEST_NOISE * signal, out=noise, where=predicted & (signal > 0))
    np.add(signal, noise, out=sums[:, COLUMN["got2"]], where=predicted)
    return sums


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # of powers whose squares are no number
def half_widths(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half the widths of the 95 % intervals of the levels 10 log10(signal / noise).

    They come from the variance, to first order, of the logarithm of a ratio of means (the delta method), and
    Student's t distribution, as the variance is not known from few samples. Where samples were drawn, the
    variance of drawing them is added.

    Args:
        sums: Float64 of shape (variants, columns).

    Returns:
        Decibels, float64 of shape (variants,); 0 without noise or signal, and of a single sample.
    """
    column = {name: sums[:, index] for name, index in COLUMN.items()}
    known = (column["noise"] > 0) & (column["signal"] > 0)
    count = np.maximum(column["samples"], 1)
    s, n = (np.where(known, column[name] / count, 1.0) for name in ("signal", "noise"))
    spread = (column["signal2"] / count - s * s) / (s * s) + (column["noise2"] / count - n * n) / (n * n)
    covariance = (column["both"] / count - s * n) / (s * n)
    variance = np.maximum(spread - 2 * covariance, 0) / np.maximum(count - 1, 1)
    variance += _drawing_variances(sums) / np.square(n * count)
    shown, places = np.unique(column["shown"], return_inverse=True)
    quantiles = np.array([t95(max(1, int(samples) - 1)) for samples in shown])[places]
    return np.where(known, quantiles * DECIBELS * np.sqrt(variance), 0.0)


def _drawing_variances(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The variances that drawing some of the samples adds to sums of noise powers, shape (variants,).

    Of a fixed number of samples drawn with unequal chances, it is about the sum over the drawn ones of the
    squares of what each counts less the mean of that, times the chance that it is not drawn (Hajek,
    "Asymptotic Theory of Rejective Sampling with Varying Probabilities from a Finite Population", 1964).
    """
    noise, shown, missed, first, second = (
        sums[:, COLUMN[name]] for name in ("noise", "shown", "missed", "missed_noise", "missed_noise2")
    )
    mean = noise / np.maximum(shown, 1)
    spread = second - 2 * mean * first + mean * mean * missed
    variances: NDArray[np.float64] = np.maximum(spread, 0) * shown / np.maximum(shown - 1, 1)
    return variances
