"""The bars of a report: the layers by how much noise they add in INT8, the largest share first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtint8.sensitivity.results import LayerSensitivity, Sensitivity


@dataclass(frozen=True)
class Bar:
    """One layer.

    Attributes:
        layer: What the layer costs.
        width: The layer's share of the noise divided by the largest share of a layer, in [0, 1].
    """

    layer: LayerSensitivity
    width: float

    @property
    def weights_part(self) -> float | None:
        """The part of the layer's noise that its weights cause; see :func:`weights_part`."""
        return weights_part(self.layer.weights_db, self.layer.activations_db)

    @property
    def alone_half_db(self) -> float | None:
        """Half the width of the 95 % interval of the SQNR with the layer alone in INT8; None if infinite."""
        half = self.layer.only.interval_db[1] - self.layer.only.sqnr_db
        return half if math.isfinite(half) else None


def make_bars(sensitivity: Sensitivity) -> tuple[Bar, ...]:
    """Makes one bar per layer, in descending order of their shares of the noise."""
    largest = max((layer.noise_share for layer in sensitivity.layers), default=0.0) or 1.0
    ordered = sorted(sensitivity.layers, key=lambda layer: -layer.noise_share)
    return tuple(Bar(layer, layer.noise_share / largest) for layer in ordered)


def weights_part(weights_db: float | None, activations_db: float | None) -> float | None:
    """The part of a layer's noise that its weights cause, from two SQNRs of the same signal.

    An SQNR of x dB means that the noise has 10^(-x/10) of the signal's power. The powers of both noises are
    assumed to add up.

    Args:
        weights_db: SQNR with only the weights quantized; None where the layer has no quantized weights.
        activations_db: SQNR with only the activations quantized; None where the layer has none.

    Returns:
        The part, in [0, 1]; None where there are neither weights nor activations, or there is no noise.
    """
    weights, activations = (0.0 if db is None else _noise(db) for db in (weights_db, activations_db))
    total = weights + activations
    return weights / total if 0 < total < math.inf else None


def _noise(db: float) -> float:
    """The power of the noise in units of the signal's; infinite where no float holds it."""
    return 10 ** (-db / 10) if db > -3000 else math.inf
