"""`trtint8 bench`: engines side by side."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

from trtint8.cli.output import print_json, print_table, say
from trtint8.cli.verbs import Once, Way, add_arguments, values_of
from trtint8.runtime.bench import BenchReport, bench

EXAMPLE = (
    "examples:\n  trtint8 bench int8.engine fp16.engine --batch-size 8\n"
    "  trtint8 bench resnet50.engine --baseline resnet50.onnx --cuda-graph --json\n"
    "  trtint8 bench int8.times.json fp16.times.json --batch-size 8"
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
    add_arguments(
        parser,
        bench,
        json="all figures",
        engines=Way(metavar="ENGINE"),
        transfers=Way(help="do not measure the copies to and from the GPU with each inference"),
        baseline=Way(metavar="FP32.onnx", action=Once),
    )


def run(options: argparse.Namespace) -> None:
    """Measures and prints."""
    result = bench(**values_of(bench, options))
    reports = result.reports
    for warning in itertools.chain.from_iterable(report.warnings for report in reports):
        say(f"warning: {warning}")
    if options.json:
        print_json(result)
        return
    title = f"{result.gpu}, inputs: {result.inputs}, times in ms"
    print_table(title, ("figure", *(report.name for report in reports)), rows(reports))


def rows(reports: Sequence[BenchReport]) -> list[tuple[str, ...]]:
    """One row per figure, one column per engine."""
    # Samples per second are compared, since engines may have different batch sizes.
    slowest = min(report.samples_per_second for report in reports)
    table: list[tuple[str, ...]] = [
        ("batch", *(str(report.batch_size) for report in reports)),
        ("inferences/s", *(f"{report.throughput:.1f}" for report in reports)),
        ("samples/s", *(f"{report.samples_per_second:.1f}" for report in reports)),
    ]
    table.append(("copies", *map(_copies, reports)))
    if len(reports) > 1:
        speedups = (f"{report.samples_per_second / slowest:.2f}x" for report in reports)
        table.append(("against the slowest", *speedups))
    if all(report.cpu_ms is not None for report in reports):
        table.append(("CPU time per inference", *(f"{report.cpu_ms:.3f}" for report in reports)))
    for phase, title in _PHASES.items():
        if any(phase in report.phases for report in reports):
            table += [
                (f"{title}, {statistic}", *(_time(report, phase, statistic) for report in reports))
                for statistic in _STATISTICS
            ]
    return table


def _time(report: BenchReport, phase: str, statistic: str) -> str:
    """One time of a phase in milliseconds; empty where the phase was not measured."""
    return f"{getattr(report.phases[phase], statistic):.3f}" if phase in report.phases else ""


def _copies(report: BenchReport) -> str:
    if not report.transfers:
        return "none"
    return "overlapped" if report.overlapped else "not overlapped"
