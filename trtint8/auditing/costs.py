"""What INT8 costs beside FP16, by kind: kernels that FP16 does not need, and products that gain nothing.

Times are estimated, or of engines that were timed layer by layer with ``trtexec``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from calibrators.checks import FilePath
from calibrators.errors import UnsupportedError
from trtint8.auditing.results import (
    COST_KINDS,
    AuditedEngine,
    AuditedKernel,
    AuditedLayer,
    Cost,
    CostKind,
    CostSource,
)
from trtint8.engine.kernels import parts_of
from trtint8.engine.timings import nodes_by_layer, nodes_of, only_converts, read_layers, read_profile

#: Parts of an engine whose kernels compute products.
COMPUTING = frozenset({"INT8 compute", "float compute", "attention"})

#: What ``trtexec``'s files of one engine are told apart by, as the script of a search names them.
_PROFILE, _LAYERS = ".profile.json", ".layers.json"


def read_measured(
    layer_times: Mapping[str, FilePath],
    precisions: Collection[str],
    work: Mapping[str, int],
) -> dict[str, tuple[AuditedKernel, ...]]:
    """Reads the layers of engines that ``trtexec`` timed.

    Args:
        layer_times: Precision of an engine to the file that ``--exportProfile`` wrote. Beside
            ``NAME.profile.json``, a file ``NAME.layers.json`` of ``--exportLayerInfo`` says which nodes and
            types the layers have; without it only their names say that.
        precisions: The precisions that are audited.
        work: Name of each ONNX node that computes products to the number of its multiply-adds.

    Returns:
        Precision to the layers with their measured times.

    Raises:
        BuildError: A file is damaged, or of another program.
        UnsupportedError: There is no such precision, or no layer of the file belongs to the model.
    """
    measured = {}
    for precision, path in layer_times.items():
        if precision not in precisions:
            raise UnsupportedError(
                f"there is no engine in '{precision}' to put '{path}' beside; choose among "
                f"{', '.join(precisions)}"
            )
        measured[precision] = _read(Path(path), work)
        if not any(node in work for kernel in measured[precision] for node in kernel.onnx_nodes):
            raise UnsupportedError(
                f"no layer in '{path}' has the name of a convolution or matrix product of this model; give "
                "the file of its engine, and what trtexec exports of its layers as NAME.layers.json beside it"
            )
    return measured


def _read(path: Path, work: Mapping[str, int]) -> tuple[AuditedKernel, ...]:
    seconds = read_profile(path)
    beside = path.with_name(path.name.removesuffix(_PROFILE) + _LAYERS)
    report = read_layers(beside) if path.name.endswith(_PROFILE) and beside.exists() else None
    report = report.renamed(work) if report else None
    known = nodes_by_layer(report)
    listed = (
        dict(zip(known, zip(report.layers, parts_of(report), strict=True), strict=True)) if report else {}
    )
    kernels = []
    for name, time in seconds.items():
        nodes = nodes_of(name, known)
        layer, part = listed.get(name, (None, None))
        precision = layer.precision if layer else None
        if only_converts(name):
            part = "reformat"
        elif part in (None, "other"):
            # TensorRT has many kinds of kernels with products, which their nodes tell.
            part = "other"
            if any(node in work for node in nodes):
                part = "INT8 compute" if precision == "INT8" else "float compute"
        kernels.append(AuditedKernel(name, part, precision, nodes, None, 0, time, None))
    return tuple(kernels)


def layers_beside(
    engines: Iterable[AuditedEngine], measured: Mapping[str, Sequence[AuditedKernel]], work: Mapping[str, int]
) -> tuple[AuditedLayer, ...]:
    """The estimated and the measured time of each node that computes products; none without measured ones.

    Args:
        engines: The engines whose times are estimated.
        measured: Precision to the layers of the engine that was timed.
        work: Name of each ONNX node that computes products to the number of its multiply-adds.
    """
    if not measured:
        return ()
    estimated = {engine.precision: by_node(engine.kernels, work, _time) for engine in engines}
    timed = {precision: by_node(kernels, work, _time) for precision, kernels in measured.items()}
    return tuple(
        AuditedLayer(
            node,
            {precision: times[node] for precision, times in estimated.items() if node in times},
            {precision: times[node] for precision, times in timed.items() if node in times},
        )
        for node in work
    )


def costs_of(
    half: Sequence[AuditedKernel],
    int8: Sequence[AuditedKernel],
    work: Collection[str],
    source: CostSource = "estimated",
) -> tuple[Cost, ...]:
    """What an engine in INT8 takes longer for than one in FP16.

    Args:
        half: The kernels of the engine in FP16.
        int8: The kernels of the engine in INT8.
        work: Names of the ONNX nodes that compute products.
        source: Where the times of the kernels come from.

    Returns:
        The kinds that cost something, the dearest first; none where the time of a kernel is not known.
    """
    if any(kernel.seconds is None for kernel in (*half, *int8)):
        return ()
    fused = {node for kernel in int8 if kernel.part == "attention" for node in kernel.onnx_nodes}
    lost = [kernel for kernel in half if kernel.part == "attention" and fused.isdisjoint(kernel.onnx_nodes)]
    parted = {node for kernel in lost for node in kernel.onnx_nodes}
    pieces = [kernel for kernel in int8 if not parted.isdisjoint(kernel.onnx_nodes)]
    rest = [kernel for kernel in int8 if parted.isdisjoint(kernel.onnx_nodes)]
    own = {node for node in work if node not in parted}
    before, after = (by_node(_computing(kernels), own, _time) for kernels in (half, rest))
    slower = {node: after[node] - before[node] for node in after if after[node] > before.get(node, math.inf)}
    small = [kernel for kernel in _computing(rest) if not slower.keys().isdisjoint(kernel.onnx_nodes)]
    found: dict[CostKind, tuple[list[AuditedKernel], float]] = {
        "requantization": _more(rest, half, "requantization"),
        "reformat": _more(rest, half, "reformat"),
        "lost fusion": (pieces, _total(pieces) - _total(lost)),
        "small products": (small, sum(slower.values())),
    }
    costs = [
        Cost(
            kind, len(kernels), _dearest(kernels, slower if kind == "small products" else ()), seconds, source
        )
        for kind, (kernels, seconds) in found.items()
        if kernels and seconds > 0
    ]
    return tuple(sorted(costs, key=lambda cost: (-cost.seconds, COST_KINDS.index(cost.kind))))


def _more(
    int8: Sequence[AuditedKernel], half: Sequence[AuditedKernel], part: str
) -> tuple[list[AuditedKernel], float]:
    """The kernels of a part in INT8, and what they take more than those in FP16."""
    kernels, others = ([one for one in engine if one.part == part] for engine in (int8, half))
    return kernels, _total(kernels) - _total(others)


def _dearest(kernels: Iterable[AuditedKernel], among: Collection[str]) -> tuple[str, ...]:
    """The nodes of kernels, the dearest first; of each kernel only those among some, if it has such."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        own = [node for node in kernel.onnx_nodes if node in among] or kernel.onnx_nodes
        for node in own:
            seconds[node] += _time(kernel) / len(own)
    return tuple(sorted(seconds, key=lambda node: (-seconds[node], node)))


def _computing(kernels: Iterable[AuditedKernel]) -> list[AuditedKernel]:
    return [kernel for kernel in kernels if kernel.part in COMPUTING]


def by_node(
    kernels: Iterable[AuditedKernel], nodes: Collection[str], time: Callable[[AuditedKernel], float]
) -> dict[str, float]:
    """The seconds of each node; a kernel of several counts for each of them in equal shares.

    Args:
        kernels: The kernels.
        nodes: Names of the nodes.
        time: Gives the time of a kernel.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        own = [node for node in kernel.onnx_nodes if node in nodes]
        for node in own:
            seconds[node] += time(kernel) / len(own)
    return dict(seconds)


def _time(kernel: AuditedKernel) -> float:
    """The time of a kernel, halfway between the two ends of an estimate; 0 where it is not known."""
    seconds = kernel.seconds or 0.0
    return seconds if kernel.cached_seconds is None else (seconds + kernel.cached_seconds) / 2


def _total(kernels: Iterable[AuditedKernel]) -> float:
    return sum(map(_time, kernels))
