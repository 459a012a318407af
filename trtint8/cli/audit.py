"""`trtint8 audit`: FP32, FP16 and INT8 engines of one model side by side, without running them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from calibrators.data.inputs import shape_text
from calibrators.errors import megabytes
from trtint8.auditing.audit import audit
from trtint8.auditing.gpus import GPUS
from trtint8.auditing.results import Audit, AuditedEngine, AuditedKernel, Cost
from trtint8.cli.output import named_nodes, print_json, print_line, print_table, say
from trtint8.cli.verbs import Once, Way, add_arguments, values_of
from trtint8.engine.kernels import PARTS, Traffic
from trtint8.report.text import layers_text, time_text

EXAMPLE = (
    "examples:\n  trtint8 audit resnet50.onnx resnet50.table.json --gpu 'RTX 4090'\n"
    "  trtint8 audit resnet50.onnx resnet50.table.json --gpu A10 --json > resnet50.audit.json\n\n"
    "Every kernel is estimated to take as long as moving its bytes through the GPU's memory (or through its\n"
    "L2 cache, where they fit), or computing its products on the tensor cores. That is no timing:\n"
    "'trtint8 bench' measures, on a GPU.\n\n"
    f"GPUs: {', '.join(gpu.name for gpu in GPUS)}."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    gpu = Way(
        ("--compute-capability", "--gpu"), "GPU", help="the GPU that times are estimated for", action=Once
    )
    times = Way(("--layer-times",), "PRECISION=FILE")
    add_arguments(parser, audit, without=("options",), json="the result", gpu=gpu, layer_times=times)
    parser.add_argument("--explain", action="store_true", help="list every kernel of every engine")


def run(options: argparse.Namespace) -> None:
    """Builds the engines, and prints them side by side."""
    result = audit(**values_of(audit, options))
    for message in _reservations(result):
        say(message)
    if options.json:
        print_json(result)
        return
    if options.explain:
        for engine in result.engines:
            _explain(engine)
    shapes = ", ".join(f"{name} {shape_text(shape)}" for name, shape in result.shapes.items())
    title = f"{result.model} on {result.gpu.name}, {shapes}: estimated from the compiled graphs, not timed"
    print_table(title, ("figure", *(engine.precision for engine in result.engines)), _rows(result))
    if result.layers:
        _print_layers(result)
    if result.costs:
        source = result.costs[0].source
        print_table(f"what INT8 costs beside FP16, {source}", _COSTS, map(_cost_row, result.costs))
    print_line(f"{result.verdict}.")


#: The columns of costs, and how many layers of each are named.
_COSTS, _NAMED = ("cost", "kernels", "layers", "ms"), 3


def _cost_row(cost: Cost) -> tuple[str, ...]:
    return cost.kind, str(cost.kernels), layers_text(cost.layers, _NAMED), f"{1e3 * cost.seconds:.4f}"


def _print_layers(audit: Audit) -> None:
    """Prints measured times beside the estimated ones."""
    precisions = [engine.precision for engine in audit.engines if engine.precision in audit.measured_seconds]
    columns = [f"{precision}, {how}" for precision in precisions for how in ("estimated", "measured")]
    rows = (
        (
            layer.node,
            *(
                f"{1e3 * times[precision]:.4f}" if precision in times else ""
                for precision in precisions
                for times in (layer.estimated, layer.measured)
            ),
        )
        for layer in audit.layers
    )
    print_table("layers with products, ms", ("layer", *columns), rows)


def _reservations(audit: Audit) -> Iterator[str]:
    """What makes the estimate less certain."""
    gpu = audit.gpu
    if audit.compute_capability == "current":
        yield f"the engines were built for the GPU of this machine, not for {gpu.name}"
    if audit.uncounted:
        yield f"the multiply-adds of {_listed(audit.uncounted)} are not known"
    if audit.left_out:
        yield f"no engine has {named_nodes(audit.left_out)}"
    for engine in audit.engines:
        if engine.unplaced:
            yield f"no kernel of the {engine.precision} engine names {_listed(engine.unplaced)}"


def _listed(nodes: tuple[str, ...]) -> str:
    others = f" and {len(nodes) - 1} other nodes" if len(nodes) > 1 else ""
    return f"'{nodes[0]}'{others}"


def _rows(audit: Audit) -> Iterator[tuple[str, ...]]:
    """One row per figure, with one column per engine."""
    engines = audit.engines
    yield ("kernels", *(str(len(engine.kernels)) for engine in engines))
    for name in PARTS:
        parts = [engine.part(name) for engine in engines]
        if any(part.kernels for part in parts):
            yield (f"  {name}", *(str(part.kernels or "") for part in parts))
    yield ("read", *(megabytes(e.traffic.read) if e.traffic else _UNKNOWN for e in engines))
    yield ("written", *(megabytes(e.traffic.written) if e.traffic else _UNKNOWN for e in engines))
    for name in PARTS:
        moved = [engine.part(name).traffic for engine in engines]
        if any(traffic is None or traffic.total for traffic in moved):
            yield (f"  by {name}", *(_moved(traffic) for traffic in moved))
    yield ("  that may stay in the cache", *(megabytes(engine.cacheable) for engine in engines))
    for precision in dict.fromkeys(name for engine in engines for name in engine.multiply_adds):
        counts = [engine.multiply_adds.get(precision, 0) for engine in engines]
        yield (
            f"multiply-adds in {precision}",
            *(_count(count) if count else "" for count in counts),
        )
    yield ("weights", *(_megabytes_or_unknown(engine.weights_bytes) for engine in engines))
    times = [engine.seconds for engine in engines], [engine.cached_seconds for engine in engines]
    compared = [*times[0], *times[1]]
    yield ("estimated time, all bytes from memory", *_times(times[0], compared))
    if any(seconds is not None for seconds in times[1]):
        yield ("  with what fits from the L2 cache", *_times(times[1], compared))
    if measured := audit.measured_seconds:
        found = [measured.get(engine.precision) for engine in engines]
        yield (
            "measured time of all layers",
            *("" if one is None else time_text(one, found) for one in found),
        )


#: Numbers of multiply-adds from which they are shown in billions.
_BILLION = 10**9

#: What is shown where the builder does not list a shape or a type.
_UNKNOWN = "not known"


def _moved(traffic: Traffic | None) -> str:
    """What the kernels of one part read and write together; empty where there are none."""
    if traffic is None:
        return _UNKNOWN
    return megabytes(traffic.total) if traffic.total else ""


def _megabytes_or_unknown(count: int | None) -> str:
    return _UNKNOWN if count is None else megabytes(count)


def _count(number: int) -> str:
    return f"{number / 1e9:.3f} G" if number >= _BILLION else f"{number / 1e6:.3f} M"


def _times(times: Sequence[float | None], compared: Sequence[float | None]) -> Iterator[str]:
    """Times in seconds, in words; all that are compared are in the same unit."""
    yield from (_UNKNOWN if seconds is None else time_text(seconds, compared) for seconds in times)


def _explain(engine: AuditedEngine) -> None:
    columns = ("kernel", "part", "type", "read", "written", "multiply-adds", "time", "limited by")
    print_table(f"{engine.precision}: kernels", columns, map(_kernel_row, engine.kernels))


def _kernel_row(kernel: AuditedKernel) -> tuple[str, ...]:
    traffic = kernel.traffic
    return (
        kernel.name,
        kernel.part,
        kernel.precision or "",
        megabytes(traffic.read) if traffic else _UNKNOWN,
        megabytes(traffic.written) if traffic else _UNKNOWN,
        f"{kernel.multiply_adds / 1e6:,.1f} M" if kernel.multiply_adds else "",
        _UNKNOWN if kernel.seconds is None else f"{1e6 * kernel.seconds:.2f} us",
        kernel.bound or "",
    )
