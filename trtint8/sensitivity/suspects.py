"""Reasons why a layer may lose accuracy in INT8: in its ranges, its weights and its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import LEVELS
from calibrators.operators import operator_of

#: With a range more than eight times that of 99.9 % of the values, these have fewer than 16 of 127 steps.
_OUTLIERS = 8.0
_NEARLY_ALL = 0.999

#: The share of values beyond the range from which clipping is reported.
_CLIPPED = 0.01

#: The ratios from which channels with one common scale are reported: for weights the largest channel over the
#: smallest, for activations the largest over the median channel, which then has 8 of the 127 steps.
_UNEVEN_WEIGHTS, _UNEVEN_ACTIVATIONS = 100.0, 16.0

#: Channels of weights that are smaller than the largest by this factor are as good as zero.
_NOTHING = 1e-5


@dataclass(frozen=True)
class Suspect:
    """A property of a layer that is known to cost accuracy.

    Attributes:
        kind: ``never-activated``, ``outliers``, ``clipped``, ``uneven-channels`` or ``delicate-neighbour``.
        message: What was found, in words.
    """

    kind: str
    message: str


def range_suspects(tensor: str, amax: float, histogram: Histogram | None) -> list[Suspect]:
    """What is suspicious about the range of an activation.

    Args:
        tensor: The name of the activation.
        amax: The range that it is quantized with.
        histogram: The histogram of its magnitudes; None where the table has none.

    Returns:
        The findings: ``never-activated``, or any of ``outliers`` and ``clipped``.
    """
    if histogram is None:
        return []
    if histogram.amax == 0:
        return [
            Suspect(
                "never-activated", f"'{tensor}' was zero in all calibration samples: its range is a guess"
            )
        ]
    found = []
    bulk = quantile(histogram, _NEARLY_ALL)
    if bulk and amax / bulk > _OUTLIERS:
        steps = max(1, round(127 * bulk / amax))
        found.append(
            Suspect(
                "outliers",
                f"{100 * _NEARLY_ALL:g} % of '{tensor}' lies below {bulk:.3g}, but its range reaches "
                f"{amax:.3g}: nearly all values share {steps} of 127 steps",
            )
        )
    # What is less than half a step beyond is rounded to the last step.
    clipped = histogram.above(amax * (1 + 0.5 / (LEVELS - 1))) / histogram.total
    if clipped > _CLIPPED:
        message = f"{100 * clipped:.1f} % of '{tensor}' lies beyond its range of {amax:.3g} and is cut off"
        found.append(Suspect("clipped", message))
    return found


def weight_suspects(tensor: str, weights: NDArray[np.float32], axis: int | None) -> list[Suspect]:
    """What is suspicious about a layer's weights.

    Args:
        tensor: The name of the weights.
        weights: The weights, float32 of any shape.
        axis: The axis with one scale per index; None for one scale per tensor.

    Returns:
        At most one finding, ``uneven-channels``. Channels of zeros cost nothing.
    """
    if axis is not None:  # with one scale per channel, differences between channels cost nothing
        return []
    channels = np.abs(weights).max(axis=tuple(range(1, weights.ndim)))
    # What is left of a sine of pi is no channel that needs a finer scale.
    alive = channels[channels > channels.max() * _NOTHING]
    if not len(alive) or alive.max() / alive.min() <= _UNEVEN_WEIGHTS:
        return []
    times = f"{alive.max() / alive.min():.0f}x"
    message = f"the channels of '{tensor}' differ by {times} in range, and one scale serves them all"
    return [Suspect("uneven-channels", message)]


def channel_suspects(tensor: str, channels: NDArray[np.float64]) -> list[Suspect]:
    """What is suspicious about the channels of an activation.

    Args:
        tensor: The name of the activation.
        channels: The largest magnitude of each channel, float64 of shape (channels,).

    Returns:
        At most one finding, ``uneven-channels``. Channels of zeros cost nothing.
    """
    alive = channels[channels > 0]
    if not len(alive) or alive.max() / np.median(alive) <= _UNEVEN_ACTIVATIONS:
        return []
    reach = f"one channel of '{tensor}' reaches {alive.max():.3g}, the median one {np.median(alive):.3g}"
    cure = "`trtint8 quantize --equalize` helps where the float network allows it"
    return [Suspect("uneven-channels", f"{reach}, and one scale serves them all: {cure}")]


def neighbour_suspects(value: ir.Value) -> list[Suspect]:
    """What is suspicious about the operator that produces an activation.

    Args:
        value: The activation.

    Returns:
        At most one finding, ``delicate-neighbour``.
    """
    producer = value.producer()
    if producer is None or not operator_of(producer).few_large:
        return []
    message = (
        f"'{value.name}' comes from the {producer.op_type} '{producer.name}': few large values among many "
        "small ones, which one scale serves badly"
    )
    return [Suspect("delicate-neighbour", message)]


def quantile(histogram: Histogram, share: float) -> float:
    """The magnitude below which a share of the nonzero values lies, to the width of a bin.

    Args:
        histogram: A histogram of magnitudes.
        share: The share of the values that are not zero, in [0, 1].

    Returns:
        The upper edge of the bin in which the share is reached; 0 for a histogram without values.
    """
    bins = histogram.filled()
    counts = np.cumsum(bins.counts)
    if not len(counts):
        return 0.0
    return min(float(bins.high[np.searchsorted(counts, share * counts[-1])]), histogram.amax)
