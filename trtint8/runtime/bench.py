"""Latency and throughput of engines, measured and reported as trtexec does.

As there, the copies of some inferences overlap with the computation of others: contexts on streams of their
own take turns, uploads are one inference ahead, and computations follow one another. Engines are measured one
after another on the same inputs, with float engines of the same model beside them.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from calibrators.checks import PATH_TYPES, FilePath, is_number, several
from calibrators.cuda import Event, gpu_names, gpu_uuid, require_gpu, turn_on_gpu
from calibrators.data.batches import warning_of_inputs
from calibrators.data.feeds import FeedDict, Floats, NamedArrays, batch_rows, is_float
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource, open_data
from calibrators.errors import Argument, CalibrationDataError, EngineError, GpuMemoryError
from calibrators.progress import progress_bar
from calibrators.records import NonNegative, Positive, PositiveCount, Result
from trtint8.builder.build import Build
from trtint8.builder.config import BuildOptions
from trtint8.engine.file import TensorSpec, input_specs
from trtint8.engine.profiles import Profile
from trtint8.engine.timings import read_exported_times
from trtint8.models.model import ModelSource, load_model, prepare
from trtint8.models.serialization import runnable
from trtint8.models.torch_export import AnyModel, open_module
from trtint8.quantization.float16 import to_float16
from trtint8.runtime.bindings import NO_CODE, LoadingOptions
from trtint8.runtime.engine import Engine
from trtint8.runtime.execution import ExecutionContext

#: Phases that every measurement has.
_PHASES = ("latency", "compute")

#: How many inferences are queued in the stream after the one that runs, so that the GPU never waits for
#: Python.
_QUEUED = 2


@dataclass(frozen=True)
class Summary:
    """Times of one phase, in milliseconds.

    Attributes:
        min: The shortest time.
        max: The longest time.
        mean: The mean.
        median: The median.
        p90: The 90th percentile.
        p95: The 95th percentile.
        p99: The 99th percentile.
    """

    min: NonNegative
    max: NonNegative
    mean: NonNegative
    median: NonNegative
    p90: NonNegative
    p95: NonNegative
    p99: NonNegative


@dataclass(frozen=True)
class BenchReport(Result):
    """The measurements of one engine.

    Attributes:
        name: The engine's name in the report.
        batch_size: Samples per inference.
        transfers: Whether every inference copied its inputs to the GPU and its outputs back.
        cuda_graph: Whether inferences were launched as a CUDA graph.
        inferences: Number of inferences that were measured.
        seconds: How long all of them took together, in seconds.
        phases: Phase to its times: ``latency`` (transfers and computation), ``enqueue`` (work of the host),
            ``h2d`` (upload), ``compute`` and ``d2h`` (download); without transfers only ``latency``,
            ``enqueue`` and ``compute``. Times that ``trtexec`` exported may lack ``enqueue``.
        cpu_ms: CPU time of this process per inference, in all its threads, in milliseconds. A driver may use
            CPU time while it waits. None if it was not measured.
        overlapped: Whether copies overlapped with the computation of other inferences.
    """

    _also_in_json: ClassVar[tuple[str, ...]] = ("throughput", "samples_per_second", "warnings")

    name: str
    batch_size: PositiveCount
    transfers: bool
    cuda_graph: bool
    inferences: PositiveCount
    seconds: Positive
    phases: Mapping[str, Summary]
    cpu_ms: NonNegative | None = None
    overlapped: bool = False

    def __post_init__(self) -> None:
        missing = [phase for phase in _PHASES if phase not in self.phases]
        if missing:
            raise ValueError(f"the phases lack `{missing[0]}`")

    @property
    def throughput(self) -> float:
        """Inferences per second."""
        return self.inferences / self.seconds

    @property
    def samples_per_second(self) -> float:
        """Samples per second."""
        return self.throughput * self.batch_size

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons why the GPU is not always busy, in words for the user."""
        messages = []
        compute, enqueue = self.phases["compute"], self.phases.get("enqueue")
        if enqueue is not None and enqueue.mean > compute.mean:
            advice = "use a larger batch" if self.cuda_graph else "use a CUDA graph or a larger batch"
            messages.append(
                f"{self.name}: the host needs {enqueue.mean:.3f} ms to enqueue what the GPU computes in "
                f"{compute.mean:.3f} ms, so it limits the throughput; {advice}"
            )
        for phase, what in (("h2d", "upload"), ("d2h", "download")):
            if phase in self.phases and self.phases[phase].median > compute.median:
                messages.append(
                    f"{self.name}: the {what} takes {self.phases[phase].median:.3f} ms and the computation "
                    f"{compute.median:.3f} ms; keep the data on the GPU, or measure without transfers"
                )
        return tuple(messages)


def bench_contexts(
    context: ExecutionContext,
    feeds: NamedArrays,
    *,
    beside: Sequence[ExecutionContext] = (),
    name: str,
    batch_size: int,
    seconds: float = 3.0,
    warm_up: float = 0.2,
    transfers: bool = True,
    cuda_graph: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> BenchReport:
    """Runs an engine again and again on one feed.

    Args:
        context: A context of the engine, which nothing else uses at the same time.
        feeds: Input name to array.
        beside: More contexts of the engine, which take turns with the first one, so that copies overlap with
            computation. They are left out without transfers, and where there is no room for them.
        name: The engine's name in the report.
        batch_size: Number of samples in ``feeds``.
        seconds: How long to measure, in seconds.
        warm_up: How long to run before measuring, in seconds, until clock rates have risen and kernels are
            loaded.
        transfers: Whether to copy inputs and outputs in every inference; else the inputs are uploaded once.
        cuda_graph: Whether the context launches CUDA graphs; only reported.
        clock: Function that returns the time in seconds.
        cpu_clock: Function that returns the CPU time of this process in seconds.

    Returns:
        The measurements.

    Raises:
        TrtInt8Error: The feed does not fit, or TensorRT fails.
    """
    with context.device.active():
        context.bind(feeds)
        context.upload()
        contexts = [context, *(_bound(beside, feeds) if transfers else ())]
        _run(contexts, warm_up, transfers, clock)
        started, cpu_started = clock(), cpu_clock()
        times = _run(contexts, seconds, transfers, clock)
        took, cpu_took = clock() - started, cpu_clock() - cpu_started
    phases = {phase: summarize(values) for phase, values in times.items()}
    inferences = len(times["enqueue"])
    return BenchReport(
        name,
        batch_size,
        transfers,
        cuda_graph,
        inferences,
        took,
        phases,
        1e3 * cpu_took / inferences,
        len(contexts) > 1,
    )


def _bound(contexts: Sequence[ExecutionContext], feeds: NamedArrays) -> Sequence[ExecutionContext]:
    """Contexts that are bound to a feed; none where one of them cannot be."""
    try:
        for context in contexts:
            context.bind(feeds)
    except (EngineError, GpuMemoryError):
        # The GPU is full, or the engine was built without profile sharing.
        return ()
    return contexts


def summarize(milliseconds: Sequence[float] | Floats) -> Summary:
    """Summarizes times: extremes, mean, median and percentiles.

    As in trtexec, the p-th percentile is the largest time that remains when the largest (100 - p) percent of
    the times, rounded down, are left out, so that it is always a time that was measured.

    Args:
        milliseconds: At least one time, in milliseconds.
    """
    ordered = np.sort(np.asarray(milliseconds, np.float64))
    ranked = {p: float(ordered[len(ordered) - 1 - int((100 - p) / 100 * len(ordered))]) for p in (90, 95, 99)}
    return Summary(
        float(ordered[0]),
        float(ordered[-1]),
        float(ordered.mean()),
        float(np.median(ordered)),
        ranked[90],
        ranked[95],
        ranked[99],
    )


@dataclass(frozen=True)
class _Marks:
    """CUDA events between the phases of one inference."""

    begin: Event
    uploaded: Event
    started: Event
    computed: Event
    end: Event


def _run(
    contexts: Sequence[ExecutionContext], seconds: float, transfers: bool, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Runs at least one inference; returns phase to the milliseconds of every inference."""
    names = (*_PHASES, "enqueue", *(("h2d", "d2h") if transfers else ()))
    times: dict[str, list[float]] = {name: [] for name in names}
    new_event = contexts[0].device.new_event
    free = deque(_Marks(*(new_event() for _ in range(5))) for _ in range(_QUEUED + 1))
    turns = itertools.cycle(contexts)
    computing: tuple[ExecutionContext, _Marks] | None = None
    queued: deque[_Marks] = deque()
    started = clock()
    while True:
        context, marks = next(turns), free.popleft()
        marks.begin.record(context.stream)
        if transfers:
            context.upload()
        marks.uploaded.record(context.stream)
        if computing is not None:
            # Behind the computation before it, but not behind the download of that: so this is queued first.
            context.device.wait_for_stream(context.stream.handle, computing[0].stream.handle)
            queued.append(_download(*computing, transfers))
        times["enqueue"].append(_enqueue(context, marks, clock))
        if len(contexts) > 1:
            computing = context, marks
        else:
            queued.append(_download(context, marks, transfers))
        stop = clock() - started >= seconds
        if stop and computing is not None:
            queued.append(_download(*computing, transfers))
        while queued and (stop or not free):
            done = queued.popleft()
            _collect(done, times, transfers)
            free.append(done)
        if stop:
            return times


def _enqueue(context: ExecutionContext, marks: _Marks, clock: Callable[[], float]) -> float:
    """Queues one inference; returns the milliseconds that enqueuing took on the host."""
    marks.started.record(context.stream)
    before = clock()
    context.enqueue()
    after = clock()
    marks.computed.record(context.stream)
    return 1e3 * (after - before)


def _download(context: ExecutionContext, marks: _Marks, transfers: bool) -> _Marks:
    if transfers:
        context.queue_download()
    marks.end.record(context.stream)
    return marks


def _collect(marks: _Marks, times: dict[str, list[float]], transfers: bool) -> None:
    marks.end.synchronize()
    compute = marks.computed.milliseconds_since(marks.started)
    times["compute"].append(compute)
    if not transfers:
        times["latency"].append(compute)
        return
    times["h2d"].append(marks.uploaded.milliseconds_since(marks.begin))
    times["d2h"].append(marks.end.milliseconds_since(marks.computed))
    times["latency"].append(times["h2d"][-1] + compute + times["d2h"][-1])


#: One context uploads, one computes, one downloads.
_OVERLAPPING = 3


@dataclass(frozen=True)
class BenchOptions:
    """How engines are measured.

    Attributes:
        seconds: How long each engine is measured, in seconds.
        transfers: Whether copies to and from the GPU are part of an inference.
        cuda_graph: Whether an inference is launched as a CUDA graph.
        device: Index of the GPU.
        loading: How engines are loaded; the float model may use its plugins, too.

    Raises:
        CalibrationDataError: ``seconds`` is not a positive number.
    """

    seconds: float = 3.0
    transfers: bool = True
    cuda_graph: bool = False
    device: int = 0
    loading: LoadingOptions = NO_CODE

    def __post_init__(self) -> None:
        if not (is_number(self.seconds) and 0 < self.seconds < math.inf):  # false for NaN, too
            given = f"{self.seconds:g}" if is_number(self.seconds) else f"{self.seconds!r:.80}"
            raise CalibrationDataError(f"{Argument('seconds')} is {given}; give a positive number")


@dataclass(frozen=True)
class Benchmarks(Result):
    """The measurements of several engines.

    Attributes:
        gpu: Name of the GPU.
        inputs: The data with which the engines were fed, or ``random``.
        reports: One report per engine, in the order in which they were given.
    """

    gpu: str
    inputs: str
    reports: tuple[BenchReport, ...]


def bench(
    engines: Sequence[FilePath],
    *,
    data: DataSource | None = None,
    baseline: AnyModel | None = None,
    seconds: float = 3.0,
    transfers: bool = True,
    cuda_graph: bool = False,
    device: int = 0,
    allow_host_code: bool = False,
    plugins: Sequence[FilePath] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    example_inputs: object = None,
) -> Benchmarks:
    """Measures latency and throughput of engines, one after another on one GPU.

    Args:
        engines: Engine files. A file that ends in ``.json`` has times that ``trtexec --exportTimes`` wrote on
            any machine. These times are shown beside the others. If all files are of this kind, no GPU is
            needed.
        data: The inputs: one batch of this data is fed repeatedly. By default random values.
        baseline: A float model: engines of it in FP32 and in FP16 are built and measured as well.
        seconds: How long each engine is measured, in seconds.
        transfers: Whether copies to and from the GPU are part of an inference.
        cuda_graph: Whether an inference is launched as a CUDA graph.
        device: Index of the GPU.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use, also those of ``baseline``.
        batch_size: Samples per batch. By default random values have the optimal batch size of the first
            profile. Files of ``trtexec`` do not have the batch size; by default their times count as those of
            single samples.
        limit: Use only this many samples of ``data``.
        preprocessing: How raw images become inputs.
        example_inputs: What the forward of ``baseline`` takes, if it is a ``torch.nn.Module``; see
            :func:`model_inputs`.

    Returns:
        One report per engine: times of each phase in milliseconds, inferences and samples per second.

    Raises:
        GpuUnavailableError: There is no usable GPU.
        BuildError: A file is not from ``trtexec --exportTimes``, or is damaged.
        EngineError: An engine file is unusable.
        CalibrationDataError: The data or the options do not fit an engine.

    Examples:
        >>> measured = trtint8.bench(["model.engine"], baseline="model.onnx")
        >>> fastest = max(measured.reports, key=lambda report: report.throughput)
    """
    loading = LoadingOptions(allow_host_code, plugins)
    opened = None if baseline is None else open_module(baseline, example_inputs)
    data_options = DataOptions(batch_size, limit, preprocessing=preprocessing)
    options = BenchOptions(seconds, transfers, cuda_graph, device, loading)
    engines = several(engines)
    if not engines:
        raise CalibrationDataError(f"{Argument('engines')} is empty; give at least one")
    size = batch_size or 1
    exported = [
        _exported(Path(path), size)
        if isinstance(path, PATH_TYPES) and Path(path).suffix.lower() == ".json"
        else None
        for path in engines
    ]
    own = [path for path, times in zip(engines, exported, strict=True) if times is None]
    if not own:
        if data is not None or baseline is not None:
            raise CalibrationDataError(
                f"{Argument('baseline' if data is None else 'data', '...')} has no effect on times of "
                "trtexec; give an engine as well"
            )
        return Benchmarks(_ELSEWHERE, _data_name(None), tuple(filter(None, exported)))
    require_gpu("measuring an engine")
    measured = []
    seen: list[object] = []
    count = len(own) + (len(_BASELINES) if baseline is not None else 0)
    with (
        turn_on_gpu(gpu_uuid(options.device), "measuring an engine"),
        progress_bar("Measuring engines", count) as advance,
    ):
        for name, engine in _engines(own, opened, options):
            known = engine.info.calibrated_inputs if data is not None and engine.info is not None else None
            # What has no sidecar, as an engine of the float model, is fed what the engine before was. One
            # warning of other preprocessing is enough for all engines of a calibration.
            if known is not None and (data_options.preprocessing is None or known.preprocessing not in seen):
                data_options = data_options.calibrated(known, f"the engine '{name}'")
                seen.append(known.preprocessing)
            with engine:
                measured.append(_measure(name, engine, data, data_options, options))
            advance(1)
    following = iter(measured)
    reports = [times or next(following) for times in exported]
    return Benchmarks(gpu_names()[options.device], _data_name(data), (*reports, *following))


#: What is built of a float model to compare with, and whether it is in FP16.
_BASELINES = {"FP32": False, "FP16": True}

#: The GPU of times that were all measured elsewhere.
_ELSEWHERE = "another machine"


def _exported(path: Path, batch_size: int) -> BenchReport:
    """The measurements that ``trtexec --exportTimes`` wrote.

    Raises:
        BuildError: The file is damaged, or of another program.
    """
    times = read_exported_times(path)
    copied = "h2d" in times.phases or "d2h" in times.phases
    phases = {phase: summarize(values) for phase, values in times.phases.items()}
    inferences = len(times.phases["compute"])
    return BenchReport(
        f"{path.name}, by trtexec",
        batch_size,
        copied,
        False,
        inferences,
        times.seconds,
        phases,
        overlapped=copied,
    )


def _data_name(data: DataSource | None) -> str:
    if data is None:
        return "random"
    return os.fspath(data) if isinstance(data, PATH_TYPES) else type(data).__name__


def _engines(
    paths: Sequence[FilePath], baseline: ModelSource | None, options: BenchOptions
) -> Iterator[tuple[str, Engine]]:
    """Loads or builds one engine after another, so that they do not share the GPU's memory."""
    plugins = options.loading.plugins
    for path in paths:
        engine = Engine.load(
            path, device=options.device, plugins=plugins, allow_host_code=options.loading.allow_host_code
        )
        profiles, flavor = engine.profiles, engine.flavor
        yield Path(path).name, engine
    if baseline is None:
        return
    prepared = prepare(load_model(baseline))
    for name, fp16 in _BASELINES.items():
        graph_model = prepared.graph_model
        build_options = BuildOptions(fp16=fp16, device=options.device, plugins=plugins)
        if fp16 and flavor.strongly_typed_only:
            graph_model, _ = to_float16(graph_model, float32_io=True, peaks=None, name=prepared.name)
        with runnable(graph_model) as serialized:
            built = Build(flavor, prepared.inputs, profiles, options=build_options).run(serialized)
        yield name, Engine.load(built.plan, device=options.device, plugins=plugins)


def _measure(
    name: str, engine: Engine, data: DataSource | None, data_options: DataOptions, options: BenchOptions
) -> BenchReport:
    feed = _feed(name, engine, data, data_options)
    first, *beside = _contexts(engine, options)
    return bench_contexts(
        first,
        feed,
        beside=beside,
        name=name,
        batch_size=_batch_size(engine, feed),
        seconds=options.seconds,
        transfers=options.transfers,
        cuda_graph=options.cuda_graph,
    )


def _contexts(engine: Engine, options: BenchOptions) -> list[ExecutionContext]:
    """The contexts that take turns: several where copies are to overlap with computation."""
    contexts = [engine.new_context(cuda_graph=options.cuda_graph)]
    try:
        while options.transfers and len(contexts) < _OVERLAPPING:
            contexts.append(engine.new_context(cuda_graph=options.cuda_graph))
    except (EngineError, GpuMemoryError):
        # There is no room for as many.
        return contexts[:1]
    return contexts


def _batch_size(engine: Engine, feed: FeedDict) -> int:
    """The number of samples in a feed; only inputs with a dynamic batch count, where there are any."""
    dynamic = {spec.name: feed[spec.name] for spec in engine.inputs if spec.shape and spec.shape[0] is None}
    return batch_rows(dynamic or feed) or 1


def _feed(name: str, engine: Engine, data: DataSource | None, options: DataOptions) -> FeedDict:
    """One batch of the data, or random values of that size."""
    if data is None:
        if options.preprocessing is not None or options.limit is not None:
            raise CalibrationDataError(
                f"{Argument('limit', '...')} and the options for images have no effect without "
                f"{Argument('data', '...')}"
            )
        return random_feed(engine.inputs, engine.profiles, options.batch_size)
    specs, size = input_specs(engine.inputs), options.batch_size
    if size is None and engine.profiles and not any(spec.static_batch for spec in specs):
        size = next((sizes.opt[0] for sizes in engine.profiles[0].values() if sizes.opt), None)
    calibrated = engine.info.calibrated_inputs if engine.info else None
    batches = open_data(data, specs, replace(options, batch_size=size))
    with warning_of_inputs(calibrated, f"the engine '{name}'", batches) as (watched,):
        return next(iter(watched))


def random_feed(
    inputs: Sequence[TensorSpec], profiles: Sequence[Profile], batch_size: int | None
) -> FeedDict:
    """Random values for a measurement, in the optimal shapes of the first profile.

    Args:
        inputs: The engine's inputs.
        profiles: The engine's optimization profiles.
        batch_size: Number of samples, for inputs whose first dimension is dynamic; None for that of the
            profile.

    Returns:
        Standard normal values; zeros for inputs that are not floating-point.

    Raises:
        CalibrationDataError: ``batch_size`` is not positive or differs from the engine's fixed batch size, or
            the shape of an input is unknown.
    """
    if batch_size is not None:
        firsts = {spec.shape[0] for spec in inputs if spec.shape}
        if batch_size < 1:
            raise CalibrationDataError(f"{Argument('batch_size')} is {batch_size}; give a positive integer")
        if None not in firsts and firsts != {batch_size}:
            raise CalibrationDataError(
                f"{Argument('batch_size')} is {batch_size} but the engine has a fixed batch of "
                f"{' and '.join(sorted(map(str, firsts)))}; leave it out"
            )
    random, feed = np.random.default_rng(0), {}
    for spec in inputs:
        tuned = profiles[0][spec.name].opt if profiles and spec.name in profiles[0] else spec.shape
        if batch_size is not None and spec.shape and spec.shape[0] is None:
            tuned = (batch_size, *tuned[1:])
        shape = tuple(dim for dim in tuned if isinstance(dim, int))
        if len(shape) < len(tuned):
            raise CalibrationDataError(
                f"no profile says a shape for input '{spec.name}'; give {Argument('data', '...')}"
            )
        dtype = np.dtype(spec.dtype)
        # Integers are mostly indices, and 0 is a valid index into every table.
        # NumPy knows BF16 and FP8 as types of kind V.
        floating = is_float(dtype) or dtype.kind == "V"
        values = random.standard_normal(shape, np.float32) if floating else np.zeros(shape)
        feed[spec.name] = values.astype(dtype)
    return feed
