"""The arithmetic of factors: pure functions on ranges of channels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Limits of the factors: channels that are nearly always zero would give weights of extreme magnitudes.
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-3, 1e3

#: The strengths with which ranges are moved from activations to weights.
STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)

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
    return np.where(alive, np.clip(factors, SMALLEST_FACTOR, LARGEST_FACTOR), 1.0)


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
    return np.where(alive, np.clip(factors, SMALLEST_FACTOR, LARGEST_FACTOR), 1.0)


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
