"""Engines of one model in FP32, FP16 and INT8 side by side, with times that are estimated for a GPU.

A kernel takes as long as it takes to start it, and to move its bytes or to compute its products. Where its
bytes come from is not known, so there are two estimates: all bytes from memory, and activations that fit from
the L2 cache. The network's multiply-adds are counted at given shapes of its inputs. One sentence says what
INT8 changes beside FP16, and which layers are the reason.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx_ir as ir

from calibrators.checks import keeping_warnings
from calibrators.data.inputs import InputShapes, OpenShape
from calibrators.data.samples import SampleSizes
from calibrators.errors import UnsupportedError, titled
from calibrators.operators import operator_of
from calibrators.progress import job
from calibrators.tables.ranges import TableSource, as_table
from calibrators.tensorrt import flavor as flavors
from calibrators.tensorrt.flavor import Flavor, Target, title_of
from trtint8.auditing.costs import COMPUTING, by_node, costs_of, layers_beside, read_measured
from trtint8.auditing.gpus import Gpu, at_costs_of, find_gpu
from trtint8.auditing.results import Audit, AuditedEngine, AuditedKernel, AuditedPart, Bound, Cost
from trtint8.builder.build import Build, BuiltEngine
from trtint8.builder.config import BuildOptions, given_options, nearest_capability
from trtint8.builder.refusals import quantization_target
from trtint8.engine.kernels import PARTS, Traffic, activation_sizes, parts_of, total_traffic, traffic_of
from trtint8.engine.layers import Layer, LayerReport
from trtint8.engine.profiles import Profile, optimal_shapes
from trtint8.models.graph import holds_graphs, modules_of, values_read
from trtint8.models.model import Model, ModelSource, load_float_model, prepare
from trtint8.models.outputs.picked import left_out_nodes, runnable_part
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.serialization import runnable
from trtint8.models.shapes import StaticShapes, multiply_adds
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph, with_float16
from trtint8.quantization.targets import KERNEL_START
from trtint8.quantization.targets import Target as QuantizationTarget


@dataclass(frozen=True)
class EstimatorOptions:
    """How engines are built.

    Attributes:
        target: Which TensorRT builds.
        profile: Shapes of dynamic inputs, of which the optimal ones are taken.
        build: All other options of the builds; its ``fp16`` has no effect.
        progress: Whether a progress bar is shown for every build.
    """

    target: Target = "auto"
    profile: Profile | None = None
    build: BuildOptions = dataclasses.field(default_factory=BuildOptions)
    progress: bool = True


def run_build(
    build: Build, graph_model: ir.Model, peaks: Mapping[str, float], name: str, *, int8: bool
) -> BuiltEngine:
    """Builds an engine of a model whose types the build decides, in FP16 where it says so.

    Args:
        build: The build.
        graph_model: The model, in float32 outside of its Q/DQ pairs.
        peaks: Name of each tensor to its largest magnitude, which decides what stays in FP32.
        name: The model's name in messages.
        int8: Whether the model has Q/DQ pairs.

    Raises:
        BuildError: TensorRT refuses the model.
        GpuUnavailableError: This TensorRT needs a GPU to build.
    """
    if build.options.fp16 and build.flavor.strongly_typed_only:
        target = quantization_target(build.flavor, build.options)
        graph_model, _ = with_float16(graph_model, target, float32_io=True, peaks=peaks, name=name)
    with runnable(graph_model) as serialized:
        return build.run(serialized, int8=int8)


@dataclass(frozen=True)
class Estimator:
    """What all builds of one model share: engines for one set of shapes, on one GPU.

    Attributes:
        flavor: The TensorRT that builds.
        model: The prepared float model, whose inputs have the optimal shapes alone, so that the builder lists
            every dimension. An engine for a range of shapes may have a few kernels more.
        work: The model's multiply-adds.
        compute_capability: What engines are built for; None where TensorRT builds only for the GPU on which
            it runs.
        options: How engines are built.
        gpu: The GPU that times are estimated for; None for this machine's, on which engines can be timed.
    """

    flavor: Flavor
    model: Model
    work: Work
    compute_capability: str | None
    options: EstimatorOptions
    gpu: Gpu | None

    @classmethod
    def open(
        cls, prepared: Model, sizes: Mapping[str, SampleSizes], gpu: Gpu | None, options: EstimatorOptions
    ) -> Estimator:
        """Prepares builds.

        Args:
            prepared: From :func:`trtint8.models.model.prepare`; not changed.
            sizes: Input name to the sizes that samples had, which a dynamic input gets where the profile
                leaves it out; may lack inputs.
            gpu: The GPU that times are estimated for; None for this machine's.
            options: How engines are built.

        Raises:
            BuildError: The profile does not fit the model.
            UnsupportedError: This TensorRT is not installed.
        """
        flavor, given = flavors.load(options.target), [options.profile] if options.profile else []
        fixed = at_shapes(prepared, optimal_shapes(given, prepared.inputs, sizes))
        if gpu is not None:
            capability = nearest_capability(flavor, gpu.compute_capability)
        else:
            capability = "current" if flavor.has_compute_capabilities else None
        return cls(flavor, fixed, count_work(fixed.graph_model), capability, options, gpu)

    @property
    def of_another_gpu(self) -> bool:
        """Whether TensorRT cannot build engines in INT8 for the GPU, and builds them for another one here."""
        return self.gpu is not None and self.compute_capability not in (None, self.gpu.compute_capability)

    @property
    def reservation(self) -> str:
        """What an estimate for another GPU than the one that engines are built for does not say."""
        gpu, builder = self.gpu, title_of(self.flavor.name)
        assert gpu is not None
        return (
            f"{builder} has no INT8 for compute capability {gpu.compute_capability} of {gpu.name}, so the "
            f"graphs are those for {self.compute_capability}; the full TensorRT has, and requantizes within "
            "convolutions, so that these can be much faster in INT8 there: time engines on the device with "
            "'trtint8 bench'"
        )

    @property
    def quantization_target(self) -> QuantizationTarget:
        """What Q/DQ pairs are placed for: what the builder runs in INT8, at the costs of the GPU."""
        own = quantization_target(self.flavor, self.options.build)
        return at_costs_of(own, [self.gpu] if self.gpu else [])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of each input to its dimensions."""
        return {spec.name: _fixed(spec.shape) for spec in self.model.inputs}

    def build(
        self, precision: str, graph_model: ir.Model, peaks: Mapping[str, float], *, fp16: bool
    ) -> BuiltEngine:
        """Builds one engine.

        Args:
            precision: What to call its types, like "INT8+FP16".
            graph_model: ``model``, with Q/DQ pairs or without.
            peaks: Name of each tensor to its largest magnitude, which decides what stays in FP32.
            fp16: Whether what is outside INT8 is FP16.

        Raises:
            BuildError: TensorRT refuses the model.
            GpuUnavailableError: This TensorRT needs a GPU to build.
        """
        build = Build(
            self.flavor,
            self.model.inputs,
            compute_capabilities=[self.compute_capability] if self.compute_capability else [],
            options=dataclasses.replace(self.options.build, fp16=fp16),
            progress=self.options.progress,
        )
        return run_build(build, graph_model, peaks, self.model.name, int8="INT8" in precision)

    def estimate(
        self, precision: str, graph_model: ir.Model, peaks: Mapping[str, float], *, fp16: bool
    ) -> AuditedEngine:
        """Builds one engine, as :meth:`build` does, and estimates its time on the GPU that is named.

        Returns:
            The engine's kernels with their estimated times.

        Raises:
            UnsupportedError: This TensorRT does not list the layers of its engines.
        """
        assert self.gpu is not None
        built = self.build(precision, graph_model, peaks, fp16=fp16)
        if built.report is None:
            raise UnsupportedError(
                f"{self.flavor} does not list the layers of its engines, which an audit is made of; take "
                "TensorRT for RTX, or detailed profiling verbosity"
            )
        return estimate_engine(
            precision, built.report, self.work.multiply_adds, self.gpu, built.weights_bytes
        )


def _fixed(shape: OpenShape) -> tuple[int, ...]:
    """The sizes of a shape, all of which are fixed."""
    return tuple(size for size in shape or () if isinstance(size, int))


#: Operations of a multiply-add.
_OPERATIONS = 2


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
        sum(_cacheable(layer, gpu.cached_bytes) for layer, _ in layers),
        dict(by_type),
        _sum([kernel.seconds for kernel in kernels]),
        weights_bytes,
        tuple(node for node in work if node not in named),
        _sum([kernel.cached_seconds for kernel in kernels]),
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
    kernels = [one for one in engine.kernels if one.part in COMPUTING or one.part == "requantization"]
    return by_node(kernels, nodes, lambda kernel: kernel.seconds or 0.0)


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
    seconds, cached_seconds = None, None
    bound: Bound | None = None
    if traffic is not None:
        moving = traffic.total / (1e9 * gpu.bandwidth_gbs)
        seconds = KERNEL_START + max(moving, computing)
        bound = "compute" if computing > moving else "memory"
        if gpu.cache_gbs is not None:
            cached = _cacheable(layer, gpu.cached_bytes)
            moving = (traffic.total - cached) / (1e9 * gpu.bandwidth_gbs) + cached / (1e9 * gpu.cache_gbs)
            cached_seconds = KERNEL_START + max(moving, computing)
    return AuditedKernel(
        layer.name,
        part,
        layer.precision,
        layer.onnx_nodes,
        traffic,
        multiply_adds,
        seconds,
        bound,
        cached_seconds,
    )


def _cacheable(layer: Layer, room: float) -> int:
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


@dataclass(frozen=True)
class Work:
    """The multiply-adds of a model's main graph.

    Attributes:
        multiply_adds: Name of each node that computes products to their number per inference.
        uncounted: Names of such nodes whose shapes are not known, and of nodes with graphs of their own.
    """

    multiply_adds: Mapping[str, int]
    uncounted: tuple[str, ...]


def at_shapes(model: Model, shapes: InputShapes) -> Model:
    """A prepared model whose inputs have fixed shapes, with the shapes of all tensors that follow from them.

    Args:
        model: A prepared model; not changed.
        shapes: Name of each input with a dynamic dimension to its dimensions.

    Returns:
        A new model with the same fingerprint.
    """
    graph_model = model.graph_model.clone()
    graph = graph_model.graph
    for node in graph:
        for value in node.outputs:
            if value.shape is not None and not value.shape.is_static():
                value.shape = None
    for value in graph.inputs:
        if (name := value.name or "") in shapes:
            value.shape = ir.Shape(shapes[name])
    inference = InferShapesPass()
    return Model(inference(graph_model).model, model.name, model.fingerprint)


def count_work(graph_model: ir.Model) -> Work:
    """Counts the multiply-adds of convolutions and matrix products.

    Args:
        graph_model: A model whose inputs have fixed shapes (see :func:`at_shapes`); not changed.

    Returns:
        The multiply-adds per node of the main graph.
    """
    shapes = StaticShapes(graph_model)

    def sizes(value: ir.Value | None) -> tuple[int, ...] | None:
        found = shapes.of(value)
        return None if found is None or None in found else _fixed(found)

    counted: dict[str, int] = {}
    uncounted = []
    for node in _nodes_that_run(graph_model.graph):
        # Products of Attention, and in the graphs of nodes, are not counted.
        if operator_of(node).multiplies or holds_graphs(node):
            number = multiply_adds(node, sizes)
            if number is None:
                uncounted.append(node.name or "")
            else:
                counted[node.name or ""] = number
    return Work(counted, tuple(uncounted))


def _nodes_that_run(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes that depend on the values of an input; the builder computes others, which shapes decide."""
    fed = {value for value in graph.inputs if value.name not in graph.initializers}
    for node in graph:
        if node.op_type != "Shape" and any(value in fed for value in values_read(node)):
            fed.update(node.outputs)
            yield node


def audit(
    model: ModelSource,
    table: TableSource,
    gpu: str | Gpu,
    *,
    profile: Profile | None = None,
    target: Target = "auto",
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    layer_times: Mapping[str, str] | None = None,
    options: BuildOptions | None = None,
    progress: bool = True,
) -> Audit:
    """Estimates what INT8 would gain on a GPU, by comparing FP32, FP16 and INT8 engines. No GPU is needed.

    TensorRT for RTX builds the engines on any machine. The result is an estimate from the compiled graphs;
    nothing is timed. The time of a kernel is that of moving its bytes through the GPU's memory, or of
    computing its products on the tensor cores, whichever is longer.

    Args:
        model: A path, the serialized model or a ``ModelProto``; a float model.
        table: Its calibration table, or the file that holds it.
        gpu: Name of a GPU such as "RTX 4090" (see :data:`trtint8.auditing.gpus.GPUS`), a compute capability
            like "8.9", or the figures of a GPU.
        profile: Shapes of dynamic inputs. The optimal shapes are used. By default a batch of 8 of the largest
            calibration samples.
        target: Which TensorRT builds; ``auto`` takes the full TensorRT if it and a GPU are present, else
            TensorRT for RTX.
        keep_float: Names of nodes, or patterns, that stay in float.
        keep_int8: Names of nodes, or patterns, that are put in INT8 even if that is estimated to be slower.
        layer_times: Measured times of layers, for comparison with the estimated times. It maps the precision
            of an engine, such as ``FP16`` or ``INT8+FP16``, to the file that ``trtexec --exportProfile``
            wrote. The file ``NAME.layers.json`` of ``--exportLayerInfo`` is read together with
            ``NAME.profile.json``.
        options: All other options of the builds; ``fp16`` has no effect.
        progress: Show a progress bar on a terminal for every build.

    Returns:
        The engines side by side, with their kernels, bytes, multiply-adds, estimated times, and a verdict.

    Raises:
        ModelError: The model is unusable or quantized already, or a pattern matches nothing.
        TableError: The table is of another model, or lacks a range.
        BuildError: TensorRT refuses the model, the profile does not fit, or a file of ``trtexec`` is damaged.
        UnsupportedError: The GPU is not in the table, this TensorRT does not list the layers of an engine, or
            times are given of no engine of this model.
        GpuUnavailableError: This TensorRT needs a GPU to build.

    Examples:
        >>> audit = trtint8.audit("model.onnx", "table.json", "RTX 4090")
        >>> [engine.precision for engine in audit.engines]
        ['FP32', 'FP16', 'INT8', 'INT8+FP16']
    """
    wanted = EstimatorOptions(target, profile, given_options(options), progress)
    figures = find_gpu(gpu)
    loaded, ranges = load_float_model(model), as_table(table)
    with keeping_warnings(ranges.warnings) as said:
        prepared = prepare(loaded)
        estimator = Estimator.open(runnable_part(prepared), ranges.provenance.input_sizes, figures, wanted)
        fixed, peaks, work = estimator.model, ranges.peaks, estimator.work
        measured = read_measured(layer_times or {}, (_ALL_FLOAT, _FLOAT, *_INT8), work.multiply_adds)
        placed_for, shapes = estimator.quantization_target, estimator.shapes
        if estimator.of_another_gpu:  # what is slower in INT8 with this TensorRT may be faster with that one
            placed_for = replace(placed_for, costs_with_float16=())
        asked = QuantizeOptions(keep_float, keep_int8, placed_for)
        quantized, _ = quantize_graph(fixed, ranges, asked, largest=shapes)
        mixed, _ = quantize_graph(fixed, ranges, replace(asked, float16=True), largest=shapes)
        built = {"FP32": fixed.graph_model, "FP16": fixed.graph_model, "INT8": quantized, "INT8+FP16": mixed}
        engines = []
        with job(enabled=progress):
            for precision, graph_model in built.items():
                fp16 = "FP16" in precision
                engines.append(estimator.estimate(precision, graph_model, peaks, fp16=fp16))
        builder = title_of(estimator.flavor.name)
        if estimator.of_another_gpu:
            builder = f"kernels like those of {builder}"
        modules = modules_of(prepared.graph_model.graph)
        verdict, reasons = judge(engines, figures.name, builder, work.multiply_adds, modules)
        if estimator.of_another_gpu:
            verdict += f"; {estimator.reservation}"
        return Audit(
            model=loaded.name,
            gpu=figures,
            flavor=estimator.flavor.name,
            tensorrt_version=estimator.flavor.version,
            compute_capability=estimator.compute_capability or "current",
            shapes=shapes,
            engines=tuple(engines),
            verdict=verdict,
            reasons=reasons,
            uncounted=work.uncounted,
            model_fingerprint=loaded.fingerprint,
            table_fingerprint=ranges.fingerprint,
            left_out=left_out_nodes(prepared),
            costs=_costs(engines, measured, work.multiply_adds),
            measured_seconds={
                precision: sum(kernel.seconds or 0.0 for kernel in kernels)
                for precision, kernels in measured.items()
            },
            layers=layers_beside(engines, measured, work.multiply_adds),
            warnings=tuple(said),
        )


def _costs(
    engines: Sequence[AuditedEngine],
    measured: Mapping[str, Sequence[AuditedKernel]],
    work: Mapping[str, int],
) -> tuple[Cost, ...]:
    """What INT8 takes longer for than FP16: as it was measured, where both were, else as it is estimated."""
    timed = [kernels for precision, kernels in measured.items() if precision in _INT8]
    if _FLOAT in measured and timed:
        fastest = min(timed, key=lambda kernels: sum(kernel.seconds or 0.0 for kernel in kernels))
        return costs_of(measured[_FLOAT], fastest, work, "measured")
    half = next(engine for engine in engines if engine.precision == _FLOAT)
    int8 = _faster(engines)
    return costs_of(half.kernels, int8.kernels, work) if int8 else ()


def _faster(engines: Sequence[AuditedEngine]) -> AuditedEngine | None:
    """The faster one of the INT8 engines; None where the times of both are not known."""
    known = [engine for engine in engines if engine.precision in _INT8 and engine.seconds]
    return min(known, key=lambda engine: sum(engine.ends or ()), default=None)


#: INT8 is said to gain or lose something where the estimates differ by more than these factors.
_FASTER, _SLOWER = 1.1, 0.95

#: The number of layers that the sentence names.
_NAMED = 3

#: The least share of the bytes in requantization that the sentence names.
_WORTH_SAYING = 0.1

_ALL_FLOAT, _FLOAT, _INT8 = "FP32", "FP16", ("INT8", "INT8+FP16")


def judge(
    engines: Sequence[AuditedEngine],
    gpu: str,
    builder: str,
    work: Mapping[str, int],
    modules: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, tuple[str, ...]]:
    """Compares the faster one of the INT8 engines with the FP16 engine.

    Args:
        engines: The engines; one of them FP16, and one at least INT8.
        gpu: The name of the GPU.
        builder: The TensorRT whose kernels the estimate is of, in words: another one makes other kernels.
        work: Name of each ONNX node that computes products to the number of its multiply-adds.
        modules: Names of nodes to the modules of PyTorch that they come from.

    Returns:
        What INT8 changes beside FP16, as a sentence without a full stop; and the names of the ONNX nodes that
        take longer in INT8, the worst first, which are none where INT8 gains.
    """
    half = next(engine for engine in engines if engine.precision == _FLOAT)
    int8 = _faster(engines)
    if int8 is None or int8.traffic is None or half.traffic is None or not half.ends or not int8.ends:
        unknown = "the builder does not list the shapes and types of all tensors"
        return f"{unknown}, so INT8 and {_FLOAT} cannot be compared", ()
    slowest, fastest = sorted(before / after for before, after in zip(half.ends, int8.ends, strict=True))
    bytes_ratio = int8.traffic.total / half.traffic.total
    moved = f"{int8.precision} moves {bytes_ratio:.2g}x the bytes of {_FLOAT} here{_requantized(int8)}"
    # As it is spoken: "an RTX 4090", "a T4".
    article = "an" if gpu[0] in "AEFHILMNORSX" else "a"
    sentence = (
        f"{moved}; on {article} {gpu} with {builder} expect {_expected(slowest, fastest)} "
        f"({_estimated(half.ends, int8.ends)})"
    )
    if slowest >= _FASTER:
        return sentence, ()
    losses = _losses(half, int8, work)
    titles = [titled(name, modules.get(name, "")) for name in losses]
    return f"{sentence}{_attention(half, int8)}{_because(titles)}", tuple(losses)


def _expected(slowest: float, fastest: float) -> str:
    """The speed to expect, as a span where its ends differ."""
    if slowest >= _SLOWER and fastest < _FASTER:
        return "no gain"
    ends = dict.fromkeys((f"{slowest:.2g}", f"{fastest:.2g}"))
    return f"{' to '.join(ends)}x the speed of {_FLOAT}"


def _estimated(half: tuple[float, float], int8: tuple[float, float]) -> str:
    """The estimated times of both ends; only one where they are the same."""
    memory, cache = (
        f"{1e3 * one:.3g} beside {1e3 * other:.3g} ms" for one, other in zip(int8, half, strict=True)
    )
    if memory == cache:
        return f"estimated {memory}"
    return f"estimated {memory} with all bytes from memory, {cache} with what fits from the L2 cache"


def _losses(half: AuditedEngine, int8: AuditedEngine, work: Mapping[str, int]) -> list[str]:
    """The nodes that take longer in INT8, beginning with the one that loses most."""
    before, after = seconds_per_node(half, work), seconds_per_node(int8, work)
    lost = {node: after[node] - before.get(node, 0.0) for node in after}
    return sorted((node for node in lost if lost[node] > 0), key=lambda node: -lost[node])


def _because(losses: Sequence[str]) -> str:
    if not losses:
        return ""
    named, others = list(losses[:_NAMED]), len(losses) - _NAMED
    if others > 0:
        named.append(f"{others} other layer{'s' if others > 1 else ''}")
    listed = ", ".join(named[:-1]) + " and " + named[-1] if len(named) > 1 else named[0]
    return f"; {listed} {'take' if len(named) > 1 else 'takes'} longer in INT8"


def _requantized(int8: AuditedEngine) -> str:
    """Says which share of the bytes requantization moves; empty where it is small."""
    requantization, total = int8.part("requantization").traffic, int8.traffic
    share = requantization.total / total.total if requantization and total and total.total else 0.0
    return f", {100 * share:.0f} % of them in requantization" if share >= _WORTH_SAYING else ""


def _attention(half: AuditedEngine, int8: AuditedEngine) -> str:
    """Says how many fused attentions INT8 loses; empty where it loses none."""
    before, after = (engine.part("attention").kernels for engine in (half, int8))
    if after >= before:
        return ""
    return f"; {before - after} of {before} fused attentions are lost"
