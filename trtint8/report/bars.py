"""The layers by what they cost in INT8, the worst first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtint8.sensitivity.results import LayerSensitivity, Sensitivity
from trtint8.validation.significance import Share


@dataclass(frozen=True)
class Bar:
    """One layer.

    Attributes:
        node: Its name.
        operator: Its operator.
        noise_share: Its part of the noise that all layers make, each alone.
        width: That over the loudest layer's, in [0, 1].
        weights_part: How much of its noise its weights make, in [0, 1]; None where neither part is known.
        alone_db: SQNR of the output with this layer alone in INT8.
        alone_half_db: Half of its 95 % interval; None where the level is infinite.
        without_db: SQNR with every layer in INT8 but this one.
        gain_db: How much keeping it in float would gain; None where a level is infinite.
        weights_db: SQNR of its own output with its weights alone quantized.
        activations_db: The same with its activations alone.
        cumulative_db: SQNR of what leaves it with every layer in INT8.
        agreement: Share of samples with FP32's class, with this layer alone in INT8.
        suspects: What about it is known to cost accuracy, in words.
    """

    node: str
    operator: str
    noise_share: float
    width: float
    weights_part: float | None
    alone_db: float
    alone_half_db: float | None
    without_db: float
    gain_db: float | None
    weights_db: float | None
    activations_db: float | None
    cumulative_db: float | None
    agreement: Share | None
    suspects: tuple[str, ...]


def bars(sensitivity: Sensitivity) -> tuple[Bar, ...]:
    """A bar a layer, the one first that makes most of the noise."""
    loudest = max((layer.noise_share for layer in sensitivity.layers), default=0.0) or 1.0
    ordered = sorted(sensitivity.layers, key=lambda layer: -layer.noise_share)
    return tuple(_bar(layer, loudest, sensitivity.quantized.sqnr_db) for layer in ordered)


def weights_part(weights_db: float | None, activations_db: float | None) -> float | None:
    """The weights' part of a layer's noise, from two levels of the same signal.

    A level of x dB is noise of 10^(-x/10) of the signal; the noise of both is taken to add up.

    Args:
        weights_db: With the weights alone quantized; None where it has none.
        activations_db: With the activations alone quantized; None where it has none.

    Returns:
        In [0, 1]; None where there is neither, or no noise.
    """
    weights, activations = (0.0 if db is None else 10 ** (-db / 10) for db in (weights_db, activations_db))
    total = weights + activations
    return weights / total if 0 < total < math.inf else None


def _bar(layer: LayerSensitivity, loudest: float, quantized_db: float) -> Bar:
    alone, without = layer.only.sqnr_db, layer.without.sqnr_db
    finite = math.isfinite(without) and math.isfinite(quantized_db)
    return Bar(
        layer.node,
        layer.operator,
        layer.noise_share,
        layer.noise_share / loudest,
        weights_part(layer.weights_db, layer.activations_db),
        alone,
        layer.only.interval_db[1] - alone if math.isfinite(alone) else None,
        without,
        without - quantized_db if finite else None,
        layer.weights_db,
        layer.activations_db,
        layer.cumulative_db,
        layer.only.agreement,
        tuple(suspect.message for suspect in layer.suspects),
    )
