"""`trtint8 bench`: engines side by side."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from calibrators.batches import open_batches
from calibrators.errors import CalibrationDataError
from calibrators.feeds import FeedDict, batch_rows
from trtint8.bench import BenchReport, bench
from trtint8.build_options import BuildOptions
from trtint8.builder import build_engine
from trtint8.cli.data_options import add_data_options, preprocessing_from
from trtint8.cli.output import print_json, print_table, say
from trtint8.cli.run import input_specs
from trtint8.cuda import gpu_names, require_gpu
from trtint8.model import load_model, prepare, runnable
from trtint8.runtime import Engine

EXAMPLE = (
    "examples:\n  trtint8 bench int8.engine fp16.engine --batch-size 8\n"
    "  trtint8 bench resnet50.engine --baseline resnet50.onnx --cuda-graph --json"
)

#: Batch size where neither the user nor a profile says.
_DEFAULT_BATCH = 1

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
    if options.seconds <= 0:
        raise CalibrationDataError(f"--seconds is {options.seconds:g}; give a positive number")
    reports = []
    for name, engine in _engines(options):
        with engine:
            reports.append(_measure(name, engine, options))
    for warning in itertools.chain.from_iterable(report.warnings for report in reports):
        say(f"warning: {warning}")
    if options.json:
        print_json({"gpu": gpu_names()[options.device], "reports": [_as_dict(report) for report in reports]})
        return
    title = f"Batch {reports[0].batch_size} on {gpu_names()[options.device]}, times in ms"
    print_table(title, ("", *(report.name for report in reports)), rows(reports))


def rows(reports: Sequence[BenchReport]) -> list[tuple[str, ...]]:
    """A row a figure, a column an engine."""
    slowest = min(report.throughput for report in reports)
    table: list[tuple[str, ...]] = [
        ("inferences/s", *(f"{report.throughput:.1f}" for report in reports)),
        ("samples/s", *(f"{report.samples_per_second:.1f}" for report in reports)),
    ]
    if len(reports) > 1:
        table.append(("against the slowest", *(f"{report.throughput / slowest:.2f}x" for report in reports)))
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
    precisions = {"FP32": False} if flavor.strongly_typed_only else {"FP32": False, "FP16": True}
    for name, fp16 in precisions.items():
        with runnable(prepared.graph_model) as serialized:
            built = build_engine(
                serialized,
                prepared.inputs,
                flavor=flavor,
                profiles=profiles,
                options=BuildOptions(fp16=fp16),
            )
        yield name, Engine.load(built.plan, device=options.device)


def _measure(name: str, engine: Engine, options: argparse.Namespace) -> BenchReport:
    feed = _feed(engine, options)
    context = engine.new_context(cuda_graph=options.cuda_graph)
    return bench(
        context,
        feed,
        name=name,
        batch_size=batch_rows(feed) or 1,
        seconds=options.seconds,
        transfers=not options.no_transfers,
        cuda_graph=options.cuda_graph,
    )


def _feed(engine: Engine, options: argparse.Namespace) -> FeedDict:
    """One batch of the data, or random values of that size."""
    size = options.batch_size
    if size is None and engine.profiles:
        size = next((sizes.opt[0] for sizes in engine.profiles[0].values() if sizes.opt), None)
    specs = input_specs(engine.inputs)
    static = next((spec.static_batch for spec in specs if spec.static_batch is not None), None)
    data = options.data or f"random:{size or static or _DEFAULT_BATCH}"
    batches = open_batches(
        data, specs, batch_size=None if static else size, preprocessing=preprocessing_from(options)
    )
    return next(iter(batches))


def _as_dict(report: BenchReport) -> dict[str, Any]:
    derived = {"throughput": report.throughput, "samples_per_second": report.samples_per_second}
    return {**dataclasses.asdict(report), **derived, "warnings": list(report.warnings)}
