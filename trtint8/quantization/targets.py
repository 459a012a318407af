"""What each TensorRT runs in INT8, as data: operators, sizes, attention and compute capabilities.

Where a fact comes from stands beside it. "Layer dump" is what TensorRT for RTX 1.7.1 lists of the engines
that it builds; "Model Optimizer" is ``modelopt/onnx/quantization/graph_utils.py`` of NVIDIA's nvidia-modelopt
0.47.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from calibrators.errors import Argument, UnsupportedError
from trtint8.quantization.config import DLA, EXPLICIT, Arithmetic

#: The names of the targets.
TargetName = Literal["tensorrt", "tensorrt-8.6", "tensorrt-10", "tensorrt-11", "rtx", "dla"]


@dataclass(frozen=True)
class AttentionLimits:
    """The attentions that run as one INT8 kernel; others lose the fusion that they have in floating point.

    Attributes:
        head_sizes: The numbers of channels per head.
        longest_keys: The largest number of keys.
        longest_queries: The largest number of queries; None for any.
        several_heads: Whether an attention with a dimension of heads needs two or more of them.
        most_vectors: The largest number of matrices of scores (samples times heads, as far as both are fixed)
            of an attention with one query; None for any.
    """

    head_sizes: tuple[int, ...] = (16, 32, 64)
    longest_keys: int = 512
    longest_queries: int | None = 512
    several_heads: bool = False
    most_vectors: int | None = None


@dataclass(frozen=True)
class SmallSizes:
    """The sizes below which INT8 gains nothing over FP16, or loses.

    A convolution of ``channels`` input channels (of its group) and output channels runs in INT8. With fewer
    of either it does in two cases. In groups: the output channels are a multiple of ``multiple``, and the
    kernel is at least 3 in every dimension. Without groups: the input or the output channels are such a
    multiple, the kernel is as large in every dimension, and either it reads an input of the model or one of
    the two numbers reaches ``channels``.

    Attributes:
        channels: The number of channels from which on a convolution runs in INT8 in any case.
        multiple: What the number of channels of a smaller convolution is to be a multiple of.
        inner: A matrix product that adds fewer products per element, or has fewer columns, stays in float.
        vectors: Whether a product of a matrix and a vector stays in float.
    """

    channels: int = 16
    multiple: int = 8
    inner: int = 16
    vectors: bool = True


@dataclass(frozen=True)
class KernelLimits:
    """The largest convolutions of an accelerator.

    Attributes:
        spatial: The number of spatial dimensions.
        kernel: The largest kernel in one dimension.
        stride: The largest stride of a Conv.
    """

    spatial: int
    kernel: int
    stride: int


#: The time that a kernel takes to start in a CUDA graph, in seconds. Kernels of 64 kB take that long on an
#: L40, and 1.3 times as long on an A100 (github.com/te42kyfo/gpu-benches, gpu-small-kernels).
KERNEL_START = 1e-6


@dataclass(frozen=True)
class KernelCosts:
    """What decides whether a product is faster in INT8 than in FP16, where a kernel more requantizes it.

    The operators are those that layer dumps of TensorRT for RTX show. The figures are those of an RTX 4090,
    which counts where no GPU is named (:data:`trtint8.auditing.gpus.GPUS`).

    Attributes:
        operations_per_byte: The FP16 operations that a GPU computes in the time in which its memory moves one
            byte; a multiply-add is two operations, and INT8 has twice as many.
        cached_bytes: The largest activation that may stay in the L2 cache from one kernel to the next.
        cache_speed: How many times as many bytes the L2 cache moves in the same time.
        start_bytes: The bytes that the memory moves while a kernel starts.
        channels: The channels of a group that INT8 has at least; fewer are padded.
        fused: Operators with one operand that become a part of the FP16 kernel before them.
        fused_with_constant: The same with two operands, where the other one is constant.
        gates: Functions of a value that are multiplied by it in the same kernel.
        alone: Operators that are kernels of their own, which take in neither scaling nor other operators.
        float32: Operators whose output is FP16 only where a product reads it in FP16.
    """

    operations_per_byte: int = 330
    cached_bytes: int = 36 << 20
    cache_speed: int = 5
    start_bytes: int = round(KERNEL_START * 1008e9)
    channels: int = 4
    fused: frozenset[str] = frozenset(
        {
            "BatchNormalization",
            "Cast",
            "Clip",
            "Dropout",
            "Elu",
            "Erf",
            "Gelu",
            "HardSigmoid",
            "HardSwish",
            "Identity",
            "LeakyRelu",
            "PRelu",
            "Relu",
            "Selu",
            "Sigmoid",
            "Tanh",
        }
    )
    fused_with_constant: frozenset[str] = frozenset({"Add", "Max", "Min", "Mul", "Sub"})
    gates: frozenset[str] = frozenset({"HardSigmoid", "Sigmoid", "Tanh"})
    alone: frozenset[str] = frozenset({"AveragePool"})
    float32: frozenset[str] = frozenset(
        {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"}
    )


@dataclass(frozen=True)
class Target:
    """What quantized models are built for.

    Attributes:
        name: The name by which users choose the target.
        arithmetic: How activations and weights become integers.
        refused: Operators that have no INT8 kernel, and the reason in words for the user; also
            "grouped ConvTranspose".
        attention: The attentions that run as one INT8 kernel; None where none does.
        small: The sizes below which layers stay in float; None where nothing is known of them.
        kernels: The largest convolutions; None where any size runs in INT8.
        one_scale_with_float16: Whether, with FP16 around it, a convolution stores less where its weights are
            dequantized by one scale (:mod:`trtint8.quantization.quantize`).
        costs_with_float16: What INT8 costs with FP16 around it, on each GPU that the engine is for; empty
            where nothing is known of it.
        types_in_graph: Whether FP16 has to stand in the graph, because this TensorRT has no switch for it.
        loads_plans: Whether it is a full TensorRT, whose plans run on a GPU.
        reads_through: Operators behind which a layer is known to still read the integers of a pair.
        capability: The oldest compute capability with INT8, like (7, 5); None where it does not matter.
        capabilities: The only compute capabilities that engines are built for; None where all newer ones are.
    """

    name: str
    arithmetic: Arithmetic = EXPLICIT
    refused: Mapping[str, str] = field(default_factory=dict)
    attention: AttentionLimits | None = AttentionLimits()
    small: SmallSizes | None = None
    kernels: KernelLimits | None = None
    one_scale_with_float16: bool = False
    costs_with_float16: tuple[KernelCosts, ...] = ()
    types_in_graph: bool = False
    loads_plans: bool = True
    reads_through: frozenset[str] = frozenset()
    capability: tuple[int, int] | None = None
    capabilities: tuple[str, ...] | None = None


#: Model Optimizer's ``find_nodes_from_convs_to_exclude`` and ``find_nodes_from_matmul_to_exclude``, which
#: name slower engines as the reason.
_SMALL = SmallSizes()

#: NVIDIA's "MHA Fusion" (TensorRT Developer Guide, quoted in github.com/NVIDIA/TensorRT/issues/2981): compute
#: capability 7.5 or newer, heads of 16, 32 or 64 channels, at most 512 queries and keys, and pairs before the
#: first product, after the softmax and after the second product.
_ATTENTION = AttentionLimits()

#: What the layer dump shows for the compute capabilities 8.0, 8.6, 8.9 and 12.0 alike
#: (scripts/attention_grid.py): any number of queries is fused, and with one head the fusion is lost. One
#: query has a kernel of its own from four heads on, which FP16 alone has.
_RTX_ATTENTION = AttentionLimits(longest_queries=None, several_heads=True, most_vectors=3)

_DLA_PRODUCT = "the DLA has no matrix product, so it runs on the GPU"

#: Name to target. ``tensorrt`` is for models whose TensorRT is not known yet: it quantizes what at least one
#: of the others runs in INT8.
TARGETS = {
    target.name: target
    for target in (
        Target("tensorrt", attention=AttentionLimits(longest_queries=None)),
        Target(
            "tensorrt-8.6",
            # github.com/NVIDIA/TensorRT/issues/1934: refused in 8.4, and fixed by 10.9.
            refused={"grouped ConvTranspose": "TensorRT 8.6 refuses grouped ones in INT8"},
            attention=_ATTENTION,
            small=_SMALL,
            capability=(6, 1),
        ),
        # TensorRT 10 supports Turing and newer (support matrix of 10.5 and newer), and so does 11.
        Target("tensorrt-10", attention=_ATTENTION, small=_SMALL, capability=(7, 5)),
        Target("tensorrt-11", attention=_ATTENTION, small=_SMALL, capability=(7, 5), types_in_graph=True),
        Target(
            "rtx",
            # Layer dump: 12 forms were tried (one scale or one per channel, with and without a pair behind).
            refused={"ConvTranspose": "TensorRT for RTX has no INT8 kernel for it"},
            attention=_RTX_ATTENTION,
            # Layer dump: a Conv with one scale per channel writes float32, with one scale FP16. A matrix
            # product writes FP16 either way.
            one_scale_with_float16=True,
            costs_with_float16=(KernelCosts(),),
            types_in_graph=True,
            loads_plans=False,
            # Layer lists of engines: a layer reads such an output in INT8, and what a Resize gives in float.
            reads_through=frozenset(
                {
                    "Concat",
                    "Flatten",
                    "Identity",
                    "MaxPool",
                    "Pad",
                    "Reshape",
                    "Slice",
                    "Split",
                    "Squeeze",
                    "Transpose",
                    "Unsqueeze",
                }
            ),
            # ComputeCapability of its module, which need not be installed here. For 7.5 the layer dump shows
            # kernels that dequantize and multiply in float.
            capabilities=("8.0", "8.6", "8.9", "12.0", "12.1"),
        ),
        Target(
            "dla",
            DLA,
            # "DLA Supported Layers and Restrictions" in NVIDIA's TensorRT documentation.
            refused={
                "Gemm": _DLA_PRODUCT,
                "MatMul": _DLA_PRODUCT,
                "grouped ConvTranspose": "the DLA has no grouped ones",
            },
            attention=None,
            loads_plans=False,
            kernels=KernelLimits(spatial=2, kernel=32, stride=8),
        ),
    )
}


#: The target where none is named.
DEFAULT = TARGETS["tensorrt"]

#: A full TensorRT that takes types from the graph.
TYPED = next(one for one in TARGETS.values() if one.types_in_graph and one.loads_plans)

#: Compute capabilities of the Jetsons (developer.nvidia.com/cuda/gpus) to their series, the newest first.
JETSONS = {"11.0": "Thor", "8.7": "Orin", "7.2": "Xavier", "6.2": "TX2", "5.3": "Nano"}


def refuse_capability(builder: str, capability: str, available: Sequence[str]) -> NoReturn:
    """Refuses a GPU for which a TensorRT does not build in INT8, and says which way leads there.

    Args:
        builder: The TensorRT, as messages call it.
        capability: The GPU's compute capability.
        available: Those that it builds for.

    Raises:
        UnsupportedError: Always.
    """
    series = JETSONS.get(capability)
    gpu = f"{capability} (Jetson {series})" if series else capability
    place = "the Jetson (docs/how-to/jetson.md)" if series else "the machine that has it"
    raise UnsupportedError(
        f"{builder} builds no INT8 for compute capability {gpu}; choose among {', '.join(available)}, or for "
        f"this GPU make a Q/DQ model for the full TensorRT with 'trtint8 quantize', and build it on {place}"
    )


def target_named(name: str, compute_capability: str | None = None) -> Target:
    """Finds a target by its name.

    Args:
        name: A key of :data:`TARGETS`.
        compute_capability: The GPU's, like "8.6"; None where it is not known.

    Raises:
        UnsupportedError: There is no target of that name, it has no INT8 on that GPU, or it stands for
            several, of which each has other GPUs.
    """
    if not isinstance(name, str) or name not in TARGETS:
        raise UnsupportedError(f"there is no target '{name}'; use one of {', '.join(TARGETS)}")
    target = TARGETS[name]
    if compute_capability is not None:
        major, _, minor = str(compute_capability).partition(".")
        if not (major.isdigit() and minor.isdigit()):
            raise UnsupportedError(f"'{compute_capability}' is no compute capability; write it like 8.6")
        if name == "tensorrt":
            raise UnsupportedError(
                f"{Argument('compute_capability')} is the GPU of one target; add {Argument('target', '...')}"
            )
        if target.capabilities is not None and f"{int(major)}.{int(minor)}" not in target.capabilities:
            refuse_capability(f"target '{name}'", f"{int(major)}.{int(minor)}", target.capabilities)
        if target.capability is not None and (int(major), int(minor)) < target.capability:
            oldest = ".".join(map(str, target.capability))
            raise UnsupportedError(
                f"target '{name}' has no INT8 for compute capability {compute_capability}; it needs {oldest} "
                "or newer"
            )
    return target
