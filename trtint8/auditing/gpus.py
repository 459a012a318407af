"""Memory bandwidth and tensor throughput of GPUs, as NVIDIA publishes them.

Throughputs are dense ones, without structured sparsity: where a data sheet gives only the sparse figure, it
is halved. FP16 is that with FP16 accumulation, which on GeForce is twice as fast as with FP32 accumulation.

The bandwidth of the L2 cache is published for few GPUs. Here it is what others have measured
(github.com/te42kyfo/gpu-benches, gpu-l2-cache and gpu-cache): A100 5400, H200 9800, L40 5200, A40 2430 GB/s.
Other GPUs of the same generation get as much per multiprocessor and clock: A40 stands for the chips GA10x,
L40 for Ada and Blackwell, and H200 for the H100, which has the same chip. That of T4 is from
arXiv:1903.07486.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from calibrators.checks import is_number
from calibrators.cuda import compute_capability, gpu_name
from calibrators.errors import UnsupportedError
from calibrators.records import Positive
from trtint8.quantization.targets import JETSONS, KERNEL_START, KernelCosts, Target

_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper, V2.1"
_ADA = "NVIDIA Ada GPU Architecture whitepaper, V2.02"
_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture whitepaper, V1.1"


@dataclass(frozen=True)
class Gpu:
    """One GPU, at the boost clock that NVIDIA publishes.

    Attributes:
        name: What it is called.
        compute_capability: Its compute capability, like "8.9".
        bandwidth_gbs: Bandwidth of its memory, in 10^9 bytes per second.
        fp32_tflops: Throughput of FP32 products in 10^12 operations per second: of TF32 on tensor cores if
            the GPU has them, because TensorRT uses them for FP32; else of the CUDA cores. A multiply-add is
            two operations.
        fp16_tflops: Throughput of FP16 products on tensor cores, in 10^12 operations per second.
        int8_tops: Throughput of INT8 products on tensor cores, in 10^12 operations per second.
        cache_mb: Size of its L2 cache, in 2^20 bytes.
        source: Where NVIDIA publishes these figures.
        cache_gbs: Bandwidth of the L2 cache, in 10^9 bytes per second; None where it is not known.

    Raises:
        UnsupportedError: A figure is not positive, or ``compute_capability`` is not written like "8.9".

    Examples:
        >>> from dataclasses import replace
        >>> from trtint8.auditing.gpus import find_gpu
        >>> slower = replace(find_gpu("RTX 4090"), name="RTX 4090, less memory clock", bandwidth_gbs=800)
        >>> audit = trtint8.audit("model.onnx", "table.json", slower)
    """

    name: str
    compute_capability: str
    bandwidth_gbs: Positive
    fp32_tflops: Positive
    fp16_tflops: Positive
    int8_tops: Positive
    cache_mb: Positive
    source: str
    cache_gbs: Positive | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+\.\d+", str(self.compute_capability)):
            raise UnsupportedError(
                f"the compute capability of '{self.name}' is {self.compute_capability!r}; write it like 8.9"
            )
        figures = ("bandwidth_gbs", "fp32_tflops", "fp16_tflops", "int8_tops", "cache_mb", "cache_gbs")
        for figure in figures[: None if self.cache_gbs is not None else -1]:
            value = getattr(self, figure)
            if not (is_number(value) and 0 < value < math.inf):
                raise UnsupportedError(f"{figure} of '{self.name}' is {value!r}; give a positive number")

    def operations_per_second(self, precision: str | None) -> float:
        """The throughput of products, in operations per second; a multiply-add is two operations.

        Args:
            precision: "INT8", "FP16", "BF16", "FP32"...; an unknown type is taken for FP32.
        """
        rates = {"INT8": self.int8_tops, "FP16": self.fp16_tflops, "BF16": self.fp16_tflops}
        return 1e12 * rates.get(precision or "", self.fp32_tflops)

    def costs(self, costs: KernelCosts) -> KernelCosts:
        """Returns the costs of a target's kernels on this GPU.

        Args:
            costs: Their costs on another GPU.
        """
        faster = 1.0 if self.cache_gbs is None else self.cache_gbs / self.bandwidth_gbs
        return replace(
            costs,
            operations_per_byte=max(
                1, round(self.operations_per_second("FP16") / (1e9 * self.bandwidth_gbs))
            ),
            cached_bytes=self.cached_bytes,
            cache_speed=max(1, round(faster)),
            start_bytes=round(KERNEL_START * 1e9 * self.bandwidth_gbs),
        )

    @property
    def cached_bytes(self) -> int:
        """The size of an activation that may stay in the L2 cache from one kernel to the next, in bytes."""
        # The other half holds weights, and what the kernel writes.
        return int(self.cache_mb * (1 << 20) / 2)


#: The GPUs that an audit can be made for. Where a source names a number of multiprocessors and a clock, the
#: whitepaper gives the rate of one multiprocessor, and the specifications of the card give the two.
GPUS = (
    Gpu("T4", "7.5", 320, 8.1, 65, 130, 4, "NVIDIA T4 data sheet, 2019", 1270),
    Gpu("A100", "8.0", 2039, 156, 312, 624, 40, "NVIDIA A100 data sheet, 2021: 80GB SXM", 5400),
    Gpu("A10", "8.6", 600, 62.5, 125, 250, 6, "NVIDIA A10 data sheet, 2021", 2030),
    Gpu("RTX 3060", "8.6", 360, 12.7, 51, 102, 3, f"{_GA102}: 28 multiprocessors at 1.777 GHz, 12 GB", 830),
    Gpu("RTX 3090", "8.6", 936, 35.6, 142, 284, 6, _GA102, 2310),
    Gpu(
        "Jetson AGX Orin",
        "8.7",
        204.8,
        21.2,
        42.5,
        85,
        4,
        "NVIDIA Jetson AGX Orin Technical Brief: 64GB, INT8 of the GPU; FP16 and TF32 follow from it",
        350,
    ),
    Gpu("L4", "8.9", 300, 60, 121, 242.5, 48, "NVIDIA L4 data sheet, 2023", 1740),
    Gpu("RTX 4070", "8.9", 504, 29.1, 116.6, 233.2, 36, f"{_ADA}: 46 multiprocessors at 2.475 GHz", 1670),
    Gpu("RTX 4090", "8.9", 1008, 82.6, 330.3, 660.6, 72, _ADA, 4740),
    Gpu("H100", "9.0", 3350, 494.5, 989.5, 1979, 50, "NVIDIA H100 data sheet, 2023: SXM", 9800),
    Gpu("RTX 5090", "12.0", 1792, 104.8, 419, 838, 96, _BLACKWELL, 6020),
)

#: Words that may be left out of a name.
_OPTIONAL = re.compile(r"nvidia|geforce|rtx|jetson|agx|tesla|[^a-z0-9]")


def find_gpu(name: str | Gpu) -> Gpu:
    """Finds a GPU of the table; figures that are given already stay.

    Args:
        name: Its name, like "RTX 4090"; "NVIDIA", "GeForce", "RTX", "Jetson", upper case and spaces do not
            matter. Or a compute capability like "8.9", which stands for its GPU with the fastest memory.

    Raises:
        UnsupportedError: The table does not have it.
    """
    found = name if isinstance(name, Gpu) else _of_name(name) or _of_capability(_number(name) or "")
    if found is not None:
        return found
    raise UnsupportedError(_unknown(name))


def capability_of(name: str) -> str:
    """The compute capability of a GPU; "current", for the GPU of this machine, stays.

    Args:
        name: Its name, as :func:`find_gpu` takes it, or that of a Jetson; or its compute capability, like
            "8.9" or "SM89".

    Raises:
        UnsupportedError: It is neither.
    """
    if str(name).lower() == "current":
        return "current"
    if (gpu := _of_name(name)) is not None:
        return gpu.compute_capability
    number = _number(name)
    if number is None:
        words = str(name).lower()
        number = next((found for found, series in JETSONS.items() if series.lower() in words), None)
    if number is None:
        raise UnsupportedError(_unknown(name))
    return number


def gpus_of(capabilities: Iterable[str], device: int = 0) -> tuple[Gpu, ...]:
    """The GPUs of the table that are named, or stand for compute capabilities, each once.

    Args:
        capabilities: What :func:`capability_of` takes.
        device: Index of this machine's GPU.

    Returns:
        The GPU of each name, for each compute capability its GPU with the fastest memory, and for this
        machine's GPU the one of its name, where the table has it. Those that the table lacks are left out.
    """
    found = (
        _of_this_machine(device)
        if str(name).lower() == "current"
        else _of_name(name) or _of_capability(capability_of(name))
        for name in capabilities
    )
    return tuple(dict.fromkeys(gpu for gpu in found if gpu is not None))


def at_costs_of(target: Target, gpus: Sequence[Gpu]) -> Target:
    """A target at what its kernels cost on some GPUs; unchanged where there is none, or nothing is known."""
    if not gpus or not target.costs_with_float16:
        return target
    known = target.costs_with_float16[0]
    return replace(target, costs_with_float16=tuple(gpu.costs(known) for gpu in gpus))


def _of_name(name: object) -> Gpu | None:
    plain = _plain(name) if isinstance(name, str) else None
    return next((gpu for gpu in GPUS if _plain(gpu.name) == plain), None)


def _of_capability(capability: str) -> Gpu | None:
    own = (gpu for gpu in GPUS if gpu.compute_capability == capability)
    return max(own, key=lambda gpu: gpu.bandwidth_gbs, default=None)


def _of_this_machine(device: int) -> Gpu | None:
    return _of_name(gpu_name(device)) or _of_capability(compute_capability(device))


def _number(name: object) -> str | None:
    """A compute capability that is written as a number; None for other text."""
    match = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)", str(name), re.IGNORECASE)
    return f"{match[1]}.{match[2]}" if match else None


def _unknown(name: object) -> str:
    """The refusal of what is no GPU of the table, with the names that are nearest first."""
    words = str(name).lower()
    near = sorted(GPUS, key=lambda gpu: -difflib.SequenceMatcher(None, gpu.name.lower(), words).ratio())
    return (
        f"there are no figures for a GPU '{name}'; choose among {', '.join(gpu.name for gpu in near)}, or "
        "give a compute capability, like 8.9"
    )


def _plain(name: str) -> str:
    return _OPTIONAL.sub("", name.lower())
