"""The bars of a report: the layers by how much noise they add in INT8, the largest share first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtint8.sensitivity.results import LayerSensitivity, Sensitivity
from trtint8.validation.significance import Share


@dataclass(frozen=True)
class Bar:
    """One layer; all levels are in decibels.

    Attributes:
        node: The name of the layer's node.
        operator: The node's operator.
        noise_share: The layer's share of the noise of all layers, each measured alone, in [0, 1].
        width: ``noise_share`` divided by the largest share of a layer, in [0, 1].
        weights_part: The part of the layer's noise that its weights cause, in [0, 1]; None where neither part
            is known.
        alone_db: SQNR of the network's output with only this layer in INT8.
        alone_half_db: Half the width of the 95 % interval of ``alone_db``; None where it is infinite.
        without_db: SQNR of the network's output with every layer except this one in INT8.
        weights_db: SQNR of the layer's own output with only its weights quantized; None where it has none.
        activations_db: SQNR of the layer's own output with only its activations quantized; None where it has
            none.
        cumulative_db: SQNR of the layer's output with every layer in INT8; None where it was not measured.
        agreement: Share of samples with FP32's class, with only this layer in INT8; None for a model that is
            no classifier.
        suspects: What is known to cost accuracy in this layer, in words.
    """

    node: str
    operator: str
    noise_share: float
    width: float
    weights_part: float | None
    alone_db: float
    alone_half_db: float | None
    without_db: float
    weights_db: float | None
    activations_db: float | None
    cumulative_db: float | None
    agreement: Share | None
    suspects: tuple[str, ...]


def make_bars(sensitivity: Sensitivity) -> tuple[Bar, ...]:
    """Makes one bar per layer, in descending order of their shares of the noise."""
    largest = max((layer.noise_share for layer in sensitivity.layers), default=0.0) or 1.0
    ordered = sorted(sensitivity.layers, key=lambda layer: -layer.noise_share)
    return tuple(_bar(layer, largest) for layer in ordered)


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


def _bar(layer: LayerSensitivity, largest_share: float) -> Bar:
    alone = layer.only.sqnr_db
    half = layer.only.interval_db[1] - alone
    return Bar(
        layer.node,
        layer.operator,
        layer.noise_share,
        layer.noise_share / largest_share,
        weights_part(layer.weights_db, layer.activations_db),
        alone,
        half if math.isfinite(half) else None,
        layer.without.sqnr_db,
        layer.weights_db,
        layer.activations_db,
        layer.cumulative_db,
        layer.only.agreement,
        tuple(suspect.message for suspect in layer.suspects),
    )
