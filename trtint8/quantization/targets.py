"""How each backend quantizes: configs as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from calibrators.errors import UnsupportedError
from trtint8.quantization.config import Policy, TensorQuantConfig
from trtint8.quantization.integer.rounding import Rounding


@dataclass(frozen=True)
class Target:
    """What a backend does with activations and weights.

    Attributes:
        name: Its name.
        activations: The config of an activation, one scale a tensor.
        weights: The config of weights, for an axis to be filled in.
        per_channel: Whether weights have a scale a channel.
    """

    name: str
    activations: TensorQuantConfig
    weights: TensorQuantConfig
    per_channel: bool = True

    def weights_along(self, axis: int | None) -> TensorQuantConfig:
        """The config of weights whose channels lie along an axis; one scale where there is none."""
        policy = dataclasses.replace(self.weights.policy, axis=axis if self.per_channel else None)
        return dataclasses.replace(self.weights, policy=policy)


def _int8(rounding: Rounding, least: int = -128) -> TensorQuantConfig:
    return TensorQuantConfig(rounding=rounding, quant_min=least)


_UINT8 = TensorQuantConfig(policy=Policy(symmetric=False), quant_min=0, quant_max=255)

#: Name to target. ``tensorrt-gpu`` is explicit quantization, ``tensorrt-gpu-implicit`` that of calibrators.
TARGETS = {
    target.name: target
    for target in (
        Target("tensorrt-gpu", _int8(Rounding.HALF_EVEN), _int8(Rounding.HALF_EVEN)),
        Target("tensorrt-gpu-implicit", _int8(Rounding.HALF_EVEN), _int8(Rounding.HALF_UP, -127)),
        Target("dla", _int8(Rounding.HALF_AWAY_FROM_ZERO), _int8(Rounding.HALF_AWAY_FROM_ZERO, -127)),
        Target("ncnn", _int8(Rounding.HALF_AWAY_FROM_ZERO, -127), _int8(Rounding.HALF_AWAY_FROM_ZERO, -127)),
        Target("qnnpack", _UINT8, _UINT8, per_channel=False),
    )
}


def target_named(name: str) -> Target:
    """A target by its name.

    Raises:
        UnsupportedError: There is none of that name.
    """
    if name not in TARGETS:
        raise UnsupportedError(f"there is no target '{name}'; use one of {', '.join(TARGETS)}")
    return TARGETS[name]
