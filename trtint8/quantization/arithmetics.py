"""The integers that each backend makes of floating-point numbers, as data."""

from __future__ import annotations

from dataclasses import dataclass

from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.rounding import Rounding


@dataclass(frozen=True)
class Arithmetic:
    """How a backend turns activations and weights into integers.

    Attributes:
        activations: The config of an activation, with one scale per tensor.
        weights: The config of weights, without the axis of their channels.
    """

    activations: TensorQuantConfig
    weights: TensorQuantConfig


def _int8(rounding: Rounding, quant_min: int = -128) -> TensorQuantConfig:
    return TensorQuantConfig(rounding=rounding, quant_min=quant_min)


#: TensorRT on a GPU, from Q/DQ pairs in the graph.
EXPLICIT = Arithmetic(_int8(Rounding.HALF_EVEN), _int8(Rounding.HALF_EVEN))

#: TensorRT on a GPU, from calibrators or dynamic ranges.
IMPLICIT = Arithmetic(_int8(Rounding.HALF_EVEN), _int8(Rounding.HALF_UP, -127))

#: NVIDIA's deep learning accelerator.
DLA = Arithmetic(_int8(Rounding.HALF_AWAY_FROM_ZERO), _int8(Rounding.HALF_AWAY_FROM_ZERO, -127))
