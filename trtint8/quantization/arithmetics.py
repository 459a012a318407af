"""The integers that each backend makes of floating-point numbers, as data."""

from __future__ import annotations

from dataclasses import dataclass

from trtint8.quantization.config import Policy, TensorQuantConfig
from trtint8.quantization.integer.rounding import Rounding


@dataclass(frozen=True)
class Arithmetic:
    """How a backend turns activations and weights into integers.

    Attributes:
        activations: The config of an activation, with one scale per tensor.
        weights: The config of weights; :meth:`weights_along` adds the axis of the channels.
        per_channel: Whether weights have one scale per channel.
    """

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
        return self.weights.along(axis if self.per_channel else None)


def _int8(rounding: Rounding, quant_min: int = -128) -> TensorQuantConfig:
    return TensorQuantConfig(rounding=rounding, quant_min=quant_min)


_UINT8 = TensorQuantConfig(policy=Policy(symmetric=False), quant_min=0, quant_max=255)

#: TensorRT on a GPU, from Q/DQ pairs in the graph.
EXPLICIT = Arithmetic(_int8(Rounding.HALF_EVEN), _int8(Rounding.HALF_EVEN))

#: TensorRT on a GPU, from calibrators or dynamic ranges.
IMPLICIT = Arithmetic(_int8(Rounding.HALF_EVEN), _int8(Rounding.HALF_UP, -127))

#: NVIDIA's deep learning accelerator.
DLA = Arithmetic(_int8(Rounding.HALF_AWAY_FROM_ZERO), _int8(Rounding.HALF_AWAY_FROM_ZERO, -127))

#: ncnn on a CPU.
NCNN = Arithmetic(_int8(Rounding.HALF_AWAY_FROM_ZERO, -127), _int8(Rounding.HALF_AWAY_FROM_ZERO, -127))

#: QNNPACK on a CPU.
QNNPACK = Arithmetic(_UINT8, _UINT8, per_channel=False)
