"""`trtint8 bench`: engines side by side."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrators.cuda import gpu_names, require_gpu
from calibrators.data.batches import open_batches
from calibrators.data.feeds import FeedDict, batch_rows, is_float
from calibrators.errors import CalibrationDataError
from trtint8.builder.build import build_engine
from trtint8.builder.options import BuildOptions
from trtint8.cli.data_options import add_data_options, preprocessing_from
from trtint8.cli.output import print_json, print_table, say
from trtint8.cli.run import input_specs
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import Profile
from trtint8.models.model import load_model, prepare, runnable
from trtint8.quantization.float16.convert import to_float16
from trtint8.runtime.bench import BenchReport, bench
from trtint8.runtime.engine import Engine

EXAMPLE = (
    "examples:\n  trtint8 bench int8.engine fp16.engine --batch-size 8\n"
    "  trtint8 bench resnet50.engine --baseline resnet50.onnx --cuda-graph --json"
)

_PHASES = {
    "latency": "latency",
    "enqueue": "enqueue",
    "h2d": "upload",
    "compute": "GPU compute",
    "d2h": "download",
}
_STATISTICS = ("min", "max", "mean", "median", "p90", "p95", "p99")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("engines", metavar="ENGINE", nargs="+")
    parser.add_argument("--data", metavar="DATA", help="real inputs; by default random ones, for timing only")
    parser.add_argument(
        "--baseline", metavar="FP32.onnx", help="also build and time FP32 and FP16 engines of this model"
    )
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="to measure; default 3")
    parser.add_argument("--no-transfers", action="store_true", help="leave copies to and from the GPU out")
    parser.add_argument("--cuda-graph", action="store_true", help="launch a CUDA graph")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="the GPU's index; default 0")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Measures and prints."""
    require_gpu("measuring an engine")
    if not 0 < options.seconds < math.inf:  # false for NaN, too
        raise CalibrationDataError(f"--seconds is {options.seconds:g}; give a positive number")
    reports = []
    for name, engine in _engines(options):
        with engine:
            reports.append(_measure(name, engine, options))
    for warning in itertools.chain.from_iterable(report.warnings for report in reports):
        say(f"warning: {warning}")
    gpu, inputs = gpu_names()[options.device], options.data or "random"
    if options.json:
        print_json({"gpu": gpu, "inputs": inputs, "reports": [_as_dict(report) for report in reports]})
        return
    title = f"{gpu}, inputs: {inputs}, times in ms"
    print_table(title, ("", *(report.name for report in reports)), rows(reports))


def rows(reports: Sequence[BenchReport]) -> list[tuple[str, ...]]:
    """A row a figure, a column an engine."""
    # By samples, since engines may have different batches.
    slowest = min(report.samples_per_second for report in reports)
    table: list[tuple[str, ...]] = [
        ("batch", *(str(report.batch_size) for report in reports)),
        ("inferences/s", *(f"{report.throughput:.1f}" for report in reports)),
        ("samples/s", *(f"{report.samples_per_second:.1f}" for report in reports)),
    ]
    if len(reports) > 1:
        speedups = (f"{report.samples_per_second / slowest:.2f}x" for report in reports)
        table.append(("against the slowest", *speedups))
    for phase, title in _PHASES.items():
        if phase in reports[0].phases:
            table += [
                (f"{title}, {statistic}", *(f"{getattr(r.phases[phase], statistic):.3f}" for r in reports))
                for statistic in _STATISTICS
            ]
    return table


def _engines(options: argparse.Namespace) -> Iterator[tuple[str, Engine]]:
    """Loaded one after another, so that they do not share the GPU's memory."""
    for path in options.engines:
        engine = Engine.load(path, device=options.device)
        profiles, flavor = engine.profiles, engine.flavor
        yield Path(path).name, engine
    if options.baseline is None:
        return
    prepared = prepare(load_model(options.baseline))
    for name, fp16 in {"FP32": False, "FP16": True}.items():
        graph_model, build_options = prepared.graph_model, BuildOptions(fp16=fp16)
        if fp16 and flavor.strongly_typed_only:
            build_options = BuildOptions()
            graph_model, _ = to_float16(graph_model, float32_io=True, peaks={}, name=prepared.name)
        with runnable(graph_model) as serialized:
            built = build_engine(
                serialized,
                prepared.inputs,
                flavor=flavor,
                profiles=profiles,
                options=build_options,
            )
        yield name, Engine.load(built.plan, device=options.device)


def _measure(name: str, engine: Engine, options: argparse.Namespace) -> BenchReport:
    feed = _feed(engine, options)
    context = engine.new_context(cuda_graph=options.cuda_graph)
    return bench(
        context,
        feed,
        name=name,
        batch_size=_batch_size(engine, feed),
        seconds=options.seconds,
        transfers=not options.no_transfers,
        cuda_graph=options.cuda_graph,
    )


def _batch_size(engine: Engine, feed: FeedDict) -> int:
    """Samples in a feed; inputs of a fixed size beside dynamic ones do not count."""
    dynamic = {spec.name: feed[spec.name] for spec in engine.inputs if spec.shape and spec.shape[0] is None}
    return batch_rows(dynamic or feed) or 1


def _feed(engine: Engine, options: argparse.Namespace) -> FeedDict:
    """One batch of the data, or random values of that size."""
    preprocessing = preprocessing_from(options)
    if options.data is None:
        if preprocessing is not None or options.limit is not None:
            raise CalibrationDataError("--limit and the options for images have no effect without --data")
        return random_feed(engine.inputs, engine.profiles, options.batch_size)
    specs, size = input_specs(engine.inputs), options.batch_size
    if size is None and engine.profiles and not any(spec.static_batch for spec in specs):
        size = next((sizes.opt[0] for sizes in engine.profiles[0].values() if sizes.opt), None)
    batches = open_batches(
        options.data, specs, batch_size=size, limit=options.limit, preprocessing=preprocessing
    )
    return next(iter(batches))


def random_feed(
    inputs: Sequence[TensorSpec], profiles: Sequence[Profile], batch_size: int | None
) -> FeedDict:
    """Values to take the time with, in the shapes that the first profile is tuned for.

    Args:
        inputs: The engine's inputs.
        profiles: Its optimization profiles.
        batch_size: Replaces the first dimension where that is dynamic; None keeps the profile's.

    Returns:
        Standard normal values; zeros for inputs that are not floating-point.

    Raises:
        CalibrationDataError: ``batch_size`` is not positive or not the engine's fixed one, or a shape is not
            known.
    """
    if batch_size is not None:
        firsts = {spec.shape[0] for spec in inputs if spec.shape}
        if batch_size < 1:
            raise CalibrationDataError(f"--batch-size is {batch_size}; give a positive integer")
        if None not in firsts and firsts != {batch_size}:
            raise CalibrationDataError(
                f"--batch-size is {batch_size} but the engine has a fixed batch of "
                f"{' and '.join(sorted(map(str, firsts)))}; leave it out"
            )
    random, feed = np.random.default_rng(0), {}
    for spec in inputs:
        tuned = profiles[0][spec.name].opt if profiles and spec.name in profiles[0] else spec.shape
        if batch_size is not None and spec.shape and spec.shape[0] is None:
            tuned = (batch_size, *tuned[1:])
        shape = tuple(dim for dim in tuned if isinstance(dim, int))
        if len(shape) < len(tuned):
            raise CalibrationDataError(f"no profile says a shape for input '{spec.name}'; give --data")
        dtype = np.dtype(spec.dtype)
        # Integers are mostly indices, and 0 is one into any table.
        values = random.standard_normal(shape, np.float32) if is_float(dtype) else np.zeros(shape)
        feed[spec.name] = values.astype(dtype)
    return feed


def _as_dict(report: BenchReport) -> dict[str, Any]:
    derived = {"throughput": report.throughput, "samples_per_second": report.samples_per_second}
    return {**dataclasses.asdict(report), **derived, "warnings": list(report.warnings)}
