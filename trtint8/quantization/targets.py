"""How each backend quantizes activations and weights, as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from calibrators.errors import UnsupportedError
from trtint8.quantization.config import Policy, TensorQuantConfig
from trtint8.quantization.integer.rounding import Rounding


@dataclass(frozen=True)
class Target:
    """How a backend quantizes activations and weights.

    Attributes:
        name: The name of the backend.
        activations: The config of an activation, with one scale per tensor.
        weights: The config of weights; :meth:`weights_along` adds the axis of the channels.
        per_channel: Whether weights have one scale per channel.
    """

    name: str
    activations: TensorQuantConfig
    weights: TensorQuantConfig
    per_channel: bool = True

    def weights_along(self, axis: int | None) -> TensorQuantConfig:
        """The config of weights.

        Args:
            axis: The axis of the weights' channels; None for one scale.

        Returns:
            The config, with one scale per channel where an axis is given and the backend takes such scales.
        """
        policy = dataclasses.replace(self.weights.policy, axis=axis if self.per_channel else None)
        return dataclasses.replace(self.weights, policy=policy)


def _int8(rounding: Rounding, quant_min: int = -128) -> TensorQuantConfig:
    return TensorQuantConfig(rounding=rounding, quant_min=quant_min)


_UINT8 = TensorQuantConfig(policy=Policy(symmetric=False), quant_min=0, quant_max=255)

#: Name to target. ``tensorrt-gpu`` is explicit quantization, ``tensorrt-gpu-implicit`` quantization by
#: calibrators or dynamic ranges.
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
    """Finds a target by its name.

    Raises:
        UnsupportedError: There is no target of that name.
    """
    if name not in TARGETS:
        raise UnsupportedError(f"there is no target '{name}'; use one of {', '.join(TARGETS)}")
    return TARGETS[name]
