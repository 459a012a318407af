"""Why a layer may suffer from INT8, told from its ranges, its weights and its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.histograms.histogram import Histogram

#: Operators whose outputs have few large values among many small ones, or the reverse.
_DELICATE = (
    "Softmax",
    "LayerNormalization",
    "RMSNormalization",
    "GroupNormalization",
    "InstanceNormalization",
)

#: A range so many times that of 99.9 % of the values leaves those fewer than 16 of the 127 steps.
_OUTLIERS = 8.0
_NEARLY_ALL = 0.999

_CLIPPED = 0.01

#: Channels of weights with one scale that differ by so much; and the largest channel of an activation beside
#: the median one, which leaves the latter 8 of the 127 steps.
_UNEVEN_WEIGHTS, _UNEVEN_ACTIVATIONS = 100.0, 16.0

#: Fewer dead channels than this share are ordinary.
_DEAD = 0.1


@dataclass(frozen=True)
class Suspect:
    """Something that is known to cost accuracy.

    Attributes:
        kind: ``never-activated``, ``outliers``, ``clipped``, ``dead-channels``, ``uneven-channels`` or
            ``delicate-neighbour``.
        message: What was seen, in words.
    """

    kind: str
    message: str


def range_suspects(tensor: str, amax: float, histogram: Histogram | None) -> list[Suspect]:
    """What the range of an activation gives away.

    Args:
        tensor: Its name.
        amax: The range that it is quantized with.
        histogram: Of its magnitudes; None where the table was imported.
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
    clipped = histogram.above(amax) / histogram.total
    if clipped > _CLIPPED:
        message = f"{100 * clipped:.1f} % of '{tensor}' lies beyond its range of {amax:.3g} and is cut off"
        found.append(Suspect("clipped", message))
    return found


def weight_suspects(tensor: str, weights: NDArray[np.float32], axis: int | None) -> list[Suspect]:
    """What a layer's weights give away.

    Args:
        tensor: Their name.
        weights: Any shape.
        axis: The axis along which scales lie; None for one scale.
    """
    channels = np.abs(weights).max(axis=tuple(i for i in range(weights.ndim) if i != (axis or 0)))
    found = []
    dead = int((channels == 0).sum())
    if dead:
        found.append(
            Suspect("dead-channels", f"{dead} of {len(channels)} channels of '{tensor}' are all zero")
        )
    alive = channels[channels > 0]
    # A scale a channel copes with any difference.
    if axis is None and len(alive) and alive.max() / alive.min() > _UNEVEN_WEIGHTS:
        times = f"{alive.max() / alive.min():.0f}x"
        message = f"the channels of '{tensor}' differ by {times} in range, and one scale serves them all"
        found.append(Suspect("uneven-channels", message))
    return found


def channel_suspects(tensor: str, channels: NDArray[np.float64], samples: int) -> list[Suspect]:
    """What the channels of an activation give away.

    Args:
        tensor: Its name.
        channels: The largest magnitude in each.
        samples: How many samples were looked at.
    """
    found = []
    alive = channels[channels > 0]
    dead = len(channels) - len(alive)
    if dead / len(channels) > _DEAD:
        message = f"{dead} of {len(channels)} channels of '{tensor}' stayed zero in {samples} samples"
        found.append(Suspect("dead-channels", message))
    if len(alive) and alive.max() / np.median(alive) > _UNEVEN_ACTIVATIONS:
        reach = f"one channel of '{tensor}' reaches {alive.max():.3g}, the median one {np.median(alive):.3g}"
        cure = "equalizing weights helps where the layer before is a convolution"
        found.append(Suspect("uneven-channels", f"{reach}, and one scale serves them all: {cure}"))
    return found


def neighbour_suspects(value: ir.Value) -> list[Suspect]:
    """What the operator before an activation gives away."""
    producer = value.producer()
    if producer is None or producer.op_type not in _DELICATE:
        return []
    message = (
        f"'{value.name}' comes from the {producer.op_type} '{producer.name}': few large values among many "
        "small ones, which one scale serves badly"
    )
    return [Suspect("delicate-neighbour", message)]


def quantile(histogram: Histogram, share: float) -> float:
    """The magnitude below which a share of the values lies that are not zero, as the bins tell.

    Args:
        histogram: Of the magnitudes.
        share: In [0, 1].

    Returns:
        The upper edge of the bin; 0 for a histogram without values.
    """
    counts = np.cumsum(histogram.counts)
    if not counts[-1]:
        return 0.0
    index = int(np.searchsorted(counts, share * counts[-1]))
    return min(float((index + 1) * histogram.bin_width), histogram.amax)
