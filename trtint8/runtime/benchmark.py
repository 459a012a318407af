"""Measures engines one after another on the same inputs, and float engines of the same model beside them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrators.checks import is_number
from calibrators.cuda import gpu_names, require_gpu
from calibrators.data.feeds import FeedDict, batch_rows, is_float
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource, open_data
from calibrators.errors import Argument, CalibrationDataError, EngineError, GpuMemoryError
from trtint8.builder.build import build_engine
from trtint8.builder.options import BuildOptions
from trtint8.engine.file import TensorSpec
from trtint8.engine.inputs import input_specs
from trtint8.engine.profiles import Profile
from trtint8.models.model import ModelSource, load_model, prepare
from trtint8.models.serialization import runnable
from trtint8.quantization.float16.convert import to_float16
from trtint8.runtime.bench import BenchReport, bench
from trtint8.runtime.engine import Engine
from trtint8.runtime.execution import ExecutionContext
from trtint8.runtime.loading import NO_CODE, LoadingOptions

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
class Benchmarks:
    """The measurements of several engines.

    Attributes:
        gpu: Name of the GPU.
        inputs: The data with which the engines were fed, or ``random``.
        reports: One report per engine, in the order in which they were given.
    """

    gpu: str
    inputs: str
    reports: tuple[BenchReport, ...]


def benchmark(
    engines: Sequence[str | os.PathLike[str]],
    *,
    data: DataSource | None = None,
    baseline: ModelSource | None = None,
    data_options: DataOptions,
    options: BenchOptions,
) -> Benchmarks:
    """Measures latency and throughput of engines, one after another on one GPU.

    Args:
        engines: Engine files.
        data: The data, of which one batch is used for all inferences; None for random values.
        baseline: A float model: engines of it in FP32 and in FP16 are built and measured as well.
        data_options: How the data is read; ``batch_size`` also holds for random values.
        options: How the engines are measured.

    Returns:
        The measurements.

    Raises:
        GpuUnavailableError: There is no usable GPU.
        EngineError: An engine file is unusable.
        CalibrationDataError: The data or the options do not fit an engine.
    """
    require_gpu("measuring an engine")
    reports = []
    for name, engine in _engines(engines, baseline, options):
        with engine:
            reports.append(_measure(name, engine, data, data_options, options))
    return Benchmarks(gpu_names()[options.device], _data_name(data), tuple(reports))


def _data_name(data: DataSource | None) -> str:
    if data is None:
        return "random"
    return os.fspath(data) if isinstance(data, (str, os.PathLike)) else type(data).__name__


def _engines(
    paths: Sequence[str | os.PathLike[str]], baseline: ModelSource | None, options: BenchOptions
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
    for name, fp16 in {"FP32": False, "FP16": True}.items():
        graph_model = prepared.graph_model
        build_options = BuildOptions(fp16=fp16, device=options.device, plugins=plugins)
        if fp16 and flavor.strongly_typed_only:
            build_options = replace(build_options, fp16=None)
            graph_model, _ = to_float16(graph_model, float32_io=True, peaks=None, name=prepared.name)
        with runnable(graph_model) as serialized:
            built = build_engine(
                serialized,
                prepared.inputs,
                flavor=flavor,
                profiles=profiles,
                options=build_options,
            )
        yield name, Engine.load(built.plan, device=options.device, plugins=plugins)


def _measure(
    name: str, engine: Engine, data: DataSource | None, data_options: DataOptions, options: BenchOptions
) -> BenchReport:
    feed = _feed(engine, data, data_options)
    first, *beside = _contexts(engine, options)
    return bench(
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


def _feed(engine: Engine, data: DataSource | None, options: DataOptions) -> FeedDict:
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
    return next(iter(open_data(data, specs, replace(options, batch_size=size))))


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
