"""What an audit finds: kernels, bytes, multiply-adds and estimated times of several engines of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from calibrators import records
from calibrators.records import Count, NonNegative
from trtint8.auditing.gpus import Gpu
from trtint8.engine.kernels import Traffic

#: What limits a kernel in the estimate.
Bound = Literal["memory", "compute"]

#: What makes INT8 slower: kernels that round sums to INT8 again, that convert tensors, that were one fused
#: kernel in FP16, and products that take longer in INT8 than in FP16.
CostKind = Literal["requantization", "reformat", "lost fusion", "small products"]

#: All kinds, in the order of definition.
COST_KINDS: tuple[CostKind, ...] = get_args(CostKind)

#: Where the times of costs come from.
CostSource = Literal["estimated", "measured"]


@dataclass(frozen=True)
class AuditedKernel:
    """One kernel of an engine, with its estimated time.

    Attributes:
        name: The builder's name for the kernel.
        part: Its purpose; see :data:`trtint8.engine.kernels.Part`.
        precision: The type in which it computes; None if it has no tensors of such types.
        onnx_nodes: Names of the ONNX nodes that it computes.
        traffic: What it reads and writes per inference; None where a shape is not known.
        multiply_adds: Multiply-adds of the ONNX nodes that it computes, per inference.
        seconds: The estimated time in seconds: the longer of moving the bytes and computing the products,
            plus the start of the kernel. None if the bytes are not known.
        bound: Which of the two is longer.
        cached_seconds: The same if activations that fit come from the GPU's L2 cache; None if that is not
            known.
    """

    name: str
    part: str
    precision: str | None
    onnx_nodes: tuple[str, ...]
    traffic: Traffic | None
    multiply_adds: Count
    seconds: NonNegative | None
    bound: Bound | None
    cached_seconds: NonNegative | None = None


@dataclass(frozen=True)
class AuditedPart:
    """All kernels of one part of an engine.

    Attributes:
        part: The purpose of the kernels; see :data:`trtint8.engine.kernels.Part`.
        kernels: The number of kernels.
        traffic: What they read and write per inference; None where that of one is not known.
        seconds: Their estimated time in seconds; None where that of one is not known.
    """

    part: str
    kernels: Count
    traffic: Traffic | None
    seconds: NonNegative | None


@dataclass(frozen=True)
class AuditedEngine:
    """One engine of the model.

    Attributes:
        precision: What it was built in: "FP32", "FP16", "INT8" or "INT8+FP16".
        kernels: Its kernels, in the order in which they run.
        parts: Its kernels by part.
        traffic: What it reads and writes per inference; None where that of a kernel is not known.
        cacheable: Bytes of ``traffic`` in activations that fit into half of the GPU's L2 cache, where they
            may stay from one kernel to the next.
        multiply_adds: Type to the number of multiply-adds that are computed in it, per inference.
        seconds: The sum of the estimated times of its kernels, in seconds; None where one is not known.
        weights_bytes: Size of its weights in bytes; None where the builder did not report it.
        unplaced: Names of ONNX nodes with products that no kernel names. These products are not counted.
        cached_seconds: The sum of the estimated times if activations that fit come from the GPU's L2 cache;
            None if a time is not known.
    """

    precision: str
    kernels: tuple[AuditedKernel, ...]
    parts: tuple[AuditedPart, ...]
    traffic: Traffic | None
    cacheable: Count
    multiply_adds: Mapping[str, Count]
    seconds: NonNegative | None
    weights_bytes: Count | None
    unplaced: tuple[str, ...]
    cached_seconds: NonNegative | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The estimated times in seconds, with all activations from memory and from the L2 cache.

        The expected time lies between the two. Both are the same if the cache's bandwidth is not known. They
        are None if the time of a kernel is not known.
        """
        if self.seconds is None:
            return None
        return self.seconds, self.seconds if self.cached_seconds is None else self.cached_seconds

    def part(self, name: str) -> AuditedPart:
        """Returns the kernels of one part; they may be none."""
        empty = AuditedPart(name, 0, Traffic(0, 0), 0.0)
        return next((part for part in self.parts if part.part == name), empty)


@dataclass(frozen=True)
class AuditedLayer:
    """A node that computes products, with its times in the engines.

    Attributes:
        node: The name of the ONNX node.
        estimated: Precision of an engine to the estimated seconds of the kernels that compute the node.
        measured: Precision of an engine to the seconds that were measured, where it was timed.
    """

    node: str
    estimated: Mapping[str, NonNegative]
    measured: Mapping[str, NonNegative]


@dataclass(frozen=True)
class Cost:
    """What INT8 takes longer for than FP16, of one kind.

    Attributes:
        kind: What makes it slower.
        kernels: The number of kernels of that kind in the INT8 engine.
        layers: Names of the ONNX nodes that they belong to, the dearest first.
        seconds: How much longer INT8 takes for them, in seconds.
        source: Where the times come from.
    """

    kind: CostKind
    kernels: Count
    layers: tuple[str, ...]
    seconds: NonNegative
    source: CostSource


@dataclass(frozen=True, repr=False)
class Audit(records.Result):
    """Engines of one model in several precisions, side by side: an estimate from compiled graphs, no timing.

    Attributes:
        model: The model's name.
        gpu: The GPU that times are estimated for.
        flavor: "tensorrt" or "rtx".
        tensorrt_version: The version that built the engines.
        compute_capability: The compute capability that the engines were built for, like "8.9"; "current" if
            TensorRT builds only for the GPU on which it runs.
        shapes: Name of each input to its dimensions.
        engines: The engines, in the order FP32, FP16, INT8, INT8+FP16.
        verdict: How INT8 compares with FP16, in one sentence.
        reasons: Names of the ONNX nodes that lose most in INT8, the worst first; empty where INT8 gains.
        uncounted: Names of ONNX nodes whose multiply-adds are not known, because a shape is not known or the
            node contains graphs.
        model_fingerprint: Identifies the model.
        table_fingerprint: Identifies the calibration table.
        left_out: Names of the nodes at the end of the model that no engine has, to their operators: plugins
            of TensorRT, and all that follows them.
        costs: What takes longer in the faster INT8 engine than in the FP16 engine, the largest first. Other
            parts may gain more.
        measured_seconds: Precision of each engine that was timed, to the seconds of its layers.
        layers: The nodes that compute products, with their estimated and measured times; empty where no
            engine was timed.
        warnings: What the calibration and the audit warned of.
    """

    model: str
    gpu: Gpu
    flavor: str
    tensorrt_version: str
    compute_capability: str
    shapes: Mapping[str, tuple[int, ...]]
    engines: tuple[AuditedEngine, ...]
    verdict: str
    reasons: tuple[str, ...]
    uncounted: tuple[str, ...]
    model_fingerprint: str
    table_fingerprint: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    costs: tuple[Cost, ...] = ()
    measured_seconds: Mapping[str, NonNegative] = field(default_factory=dict)
    layers: tuple[AuditedLayer, ...] = ()
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Audit: '{self.model}' on {self.gpu.name}: {self.verdict}>"

    @property
    def of_another_gpu(self) -> bool:
        """True if the engines were built for another compute capability than the GPU has."""
        return self.compute_capability != self.gpu.compute_capability

    def engine(self, precision: str) -> AuditedEngine:
        """The engine of a precision.

        Raises:
            KeyError: There is none.
        """
        return {engine.precision: engine for engine in self.engines}[precision]
