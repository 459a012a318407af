"""What each backend computes with integers, as data: a further backend is a further row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from calibrators.checks import check_choice
from trtint8.quantization.config import TensorQuantConfig
from trtint8.quantization.integer.rounding import Rounding

#: The names of the arithmetics.
ArithmeticName = Literal["explicit", "implicit", "dla", "ncnn", "qnnpack"]


class Storage(Enum):
    """Which activations become integers."""

    PAIRS = "pairs"
    """Those that would get a Q/DQ pair, for the nodes that would read it."""
    GROUPS = "groups"
    """The outputs of fused groups that lie between operators with integer kernels, for all who read them."""
    INPUTS = "inputs"
    """What products with constant weights read, for those products."""


@dataclass(frozen=True)
class Arithmetic:
    """How a backend turns activations and weights into integers, and computes with them.

    Attributes:
        activations: The config of an activation, with one scale per tensor.
        weights: The config of weights, without the axis of their channels.
        name: The name by which users choose the backend.
        storage: Which activations become integers.
        target: The name of the target whose placement says which products run on integers; None where
            ``products`` says so.
        products: Operators that run on integers where their weights are constant; images have two spatial
            dimensions.
        per_channel: Whether weights have one scale per output channel.
        fused: Operators that become a part of the product before them, so that nothing is stored in between.
        fuses_elementwise: Whether elementwise operators in a row are one kernel.
        fixed_point: Whether biases are integers, and sums become the integers of the output by a multiplier
            of 31 bits and a rounding shift; else sums become float32 and are scaled.
        largest_sum: The largest magnitude that an accumulator holds.
    """

    activations: TensorQuantConfig
    weights: TensorQuantConfig
    name: str
    storage: Storage = Storage.PAIRS
    target: str | None = None
    products: frozenset[str] = frozenset()
    per_channel: bool = True
    fused: frozenset[str] = frozenset()
    fuses_elementwise: bool = False
    fixed_point: bool = False
    largest_sum: int = 2**31 - 1


def _int8(rounding: Rounding, quant_min: int = -128) -> TensorQuantConfig:
    return TensorQuantConfig(rounding=rounding, quant_min=quant_min)


_UINT8 = TensorQuantConfig(quant_min=0, quant_max=255, symmetric=False)

_NCNN = TensorQuantConfig(rounding=Rounding.HALF_AWAY_FROM_ZERO, quant_min=-127, inverse=True)

#: Activation functions that every TensorRT computes in the kernel of the product before them.
FUSED_ACTIVATIONS = frozenset(
    {"Clip", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Tanh"}
)

#: The layers that ncnn and QNNPACK run on integers.
_MOBILE = frozenset({"Conv", "Gemm", "MatMul"})

#: TensorRT on a GPU, from Q/DQ pairs in the graph.
EXPLICIT = Arithmetic(
    _int8(Rounding.HALF_EVEN),
    _int8(Rounding.HALF_EVEN),
    "explicit",
    target="tensorrt",
    fused=FUSED_ACTIVATIONS,
)

#: TensorRT on a GPU, from calibrators or dynamic ranges.
IMPLICIT = Arithmetic(
    _int8(Rounding.HALF_EVEN),
    _int8(Rounding.HALF_UP, -127),
    "implicit",
    Storage.GROUPS,
    "tensorrt",
    fused=FUSED_ACTIVATIONS | {"Add"},
    fuses_elementwise=True,
)

#: NVIDIA's deep learning accelerator.
DLA = Arithmetic(
    _int8(Rounding.HALF_AWAY_FROM_ZERO),
    _int8(Rounding.HALF_AWAY_FROM_ZERO, -127),
    "dla",
    Storage.GROUPS,
    "dla",
    fused=FUSED_ACTIVATIONS | {"Add"},
    fuses_elementwise=True,
)

#: ncnn on a CPU: ``float2int8`` of its sources adds one half away from zero and clips to 127 on both sides.
NCNN = Arithmetic(_NCNN, _NCNN, "ncnn", Storage.INPUTS, products=_MOBILE, fused=FUSED_ACTIVATIONS)

#: QNNPACK on a CPU: ``pytorch_qnnp_q31_requantize`` of its sources. Sums are followed exactly up to 2^29,
#: which a product of 8,000 pairs of the largest integers reaches.
QNNPACK = Arithmetic(
    _UINT8,
    _UINT8,
    "qnnpack",
    Storage.GROUPS,
    products=_MOBILE,
    per_channel=False,
    fused=frozenset({"Clip", "Relu"}),
    fixed_point=True,
    largest_sum=2**29 - 1,
)

#: Name to arithmetic.
ARITHMETICS = {one.name: one for one in (EXPLICIT, IMPLICIT, DLA, NCNN, QNNPACK)}


def arithmetic_named(name: str) -> Arithmetic:
    """Finds an arithmetic by its name.

    Args:
        name: A key of :data:`ARITHMETICS`.

    Raises:
        UnsupportedError: There is none of that name.
    """
    check_choice("arithmetic", name, tuple(ARITHMETICS))
    return ARITHMETICS[name]
