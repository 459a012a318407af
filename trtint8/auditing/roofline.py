"""Estimates the time of each kernel: as long as it takes to move its bytes, or to compute its products."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from trtint8.auditing.gpus import Gpu
from trtint8.auditing.results import AuditedEngine, AuditedKernel, AuditedPart, Bound
from trtint8.engine.layers import Layer, LayerReport
from trtint8.engine.parts import PARTS, parts_of
from trtint8.engine.traffic import Traffic, activation_sizes, total_traffic, traffic_of

#: Operations of a multiply-add.
_OPERATIONS = 2

#: Parts of an engine whose kernels compute products.
COMPUTING = frozenset({"INT8 compute", "float compute", "attention"})


def estimate_engine(
    precision: str, report: LayerReport, work: Mapping[str, int], gpu: Gpu, weights_bytes: int | None = None
) -> AuditedEngine:
    """Estimates the time of every kernel of an engine.

    Args:
        precision: What the engine was built in, like "INT8".
        report: The engine's layers.
        work: Name of each ONNX node that computes products to the number of its multiply-adds.
        gpu: The GPU.
        weights_bytes: Size of the engine's weights in bytes; None where it is not known.

    Returns:
        The engine's kernels with their estimated times, and their sums.
    """
    report = report.renamed(work)
    found = zip(report.layers, parts_of(report), strict=True)
    layers = [(layer, part) for layer, part in found if part is not None]
    placed = _placed_work(layers, work)
    kernels = tuple(
        _estimate(layer, part, multiply_adds, gpu)
        for (layer, part), multiply_adds in zip(layers, placed, strict=True)
    )
    by_type: Counter[str] = Counter()
    for kernel in kernels:
        if kernel.multiply_adds:
            by_type[kernel.precision or "unknown"] += kernel.multiply_adds
    named = {node for layer, _ in layers for node in layer.onnx_nodes}
    return AuditedEngine(
        precision,
        kernels,
        _parts(kernels),
        total_traffic(kernel.traffic for kernel in kernels),
        _cacheable((layer for layer, _ in layers), gpu),
        dict(by_type),
        _sum([kernel.seconds for kernel in kernels]),
        weights_bytes,
        tuple(node for node in work if node not in named),
    )


def seconds_per_node(engine: AuditedEngine, nodes: Mapping[str, int]) -> dict[str, float]:
    """The estimated time that ONNX nodes with products take, with the requantization of their sums.

    A kernel of several such nodes counts for each of them in equal shares.

    Args:
        engine: The engine.
        nodes: Name of each ONNX node that computes products to the number of its multiply-adds.

    Returns:
        Name of each node to seconds.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for kernel in engine.kernels:
        own = [node for node in kernel.onnx_nodes if node in nodes]
        if kernel.seconds is not None and (kernel.part in COMPUTING or kernel.part == "requantization"):
            for node in own:
                seconds[node] += kernel.seconds / len(own)
    return dict(seconds)


def _placed_work(layers: Sequence[tuple[Layer, str]], work: Mapping[str, int]) -> list[int]:
    """The multiply-adds of each kernel."""
    placed = [0] * len(layers)
    for node, amount in work.items():
        mentions = [index for index, (layer, _) in enumerate(layers) if node in layer.onnx_nodes]
        # Kernels beside the product have the node's name as well. Where there are no others, the node itself
        # became point-wise, as small products do.
        computing = [index for index in mentions if layers[index][1] in COMPUTING] or mentions[:1]
        for position, index in enumerate(computing):
            # Where several kernels compute one node, each has an equal share; none is lost to rounding.
            placed[index] += (amount + position) // len(computing)
    return placed


def _estimate(layer: Layer, part: str, multiply_adds: int, gpu: Gpu) -> AuditedKernel:
    traffic = traffic_of(layer)
    computing = _OPERATIONS * multiply_adds / gpu.operations_per_second(layer.precision)
    seconds: float | None = None
    bound: Bound | None = None
    if traffic is not None:
        moving = traffic.total / (1e9 * gpu.bandwidth_gbs)
        seconds, bound = max(moving, computing), "compute" if computing > moving else "memory"
    return AuditedKernel(
        layer.name, part, layer.precision, layer.onnx_nodes, traffic, multiply_adds, seconds, bound
    )


def _cacheable(layers: Iterable[Layer], gpu: Gpu) -> int:
    """Bytes that are read and written of activations that fit into half of the GPU's L2 cache."""
    # The other half holds weights, and what the kernel writes.
    room = gpu.cache_mb * (1 << 20) / 2
    return sum(_cacheable_of(layer, room) for layer in layers)


def _cacheable_of(layer: Layer, room: float) -> int:
    """Bytes of a kernel's traffic in activations of at most ``room`` bytes; 0 where it is not known."""
    traffic = traffic_of(layer)
    if traffic is None:
        return 0
    sizes, inputs = activation_sizes(layer), len(layer.inputs)
    read = sum(size for size in sizes[:inputs] if size <= room)
    written = sum(size for size in sizes[inputs:] if size <= room)
    # A kernel that only moves values may read less than whole tensors.
    return min(read, traffic.read) + written


def _parts(kernels: Sequence[AuditedKernel]) -> tuple[AuditedPart, ...]:
    parts = []
    for part in PARTS:
        own = [kernel for kernel in kernels if kernel.part == part]
        if own:
            traffic: Traffic | None = total_traffic(kernel.traffic for kernel in own)
            parts.append(AuditedPart(part, len(own), traffic, _sum([kernel.seconds for kernel in own])))
    return tuple(parts)


def _sum(seconds: Sequence[float | None]) -> float | None:
    """The sum; None where one of the summands is not known."""
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None
