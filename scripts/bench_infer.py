"""What an inference costs in Python: on a device and a TensorRT context that only count their calls.

python scripts/bench_infer.py            # and Polygraphy's TrtRunner beside it, where it is installed

A part of Polygraphy's time is its search for PyTorch where that is not installed.

No GPU is needed. TensorRT's own ``Dims`` come from TensorRT for RTX. The goals are 10 us for a bound call
with two inputs and one output, and 25 us for ``infer`` with NumPy arrays.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from infer_bench.recording import RecordingContext, RecordingDevice

from calibrators.tensorrt import flavor as flavors
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import ShapeRange
from trtint8.runtime.bindings import Bindings
from trtint8.runtime.bound_call import BoundCall
from trtint8.runtime.execution import ExecutionContext

_BATCH, _WIDTH = 8, 16
#: Numbers of inputs and outputs.
_CASES = ((1, 1), (2, 1), (3, 4))


def specs(count: int, prefix: str) -> tuple[TensorSpec, ...]:
    """That many float32 tensors of a dynamic batch."""
    return tuple(TensorSpec(f"{prefix}{index}", "float32", (None, _WIDTH)) for index in range(count))


def new_context(flavor: flavors.Flavor, inputs: int, outputs: int) -> ExecutionContext:
    """An execution context of ours on recorded calls."""
    ins, outs = specs(inputs, "x"), specs(outputs, "y")
    profile = {spec.name: ShapeRange((1, _WIDTH), (_BATCH, _WIDTH), (32, _WIDTH)) for spec in ins}
    bindings = Bindings(ins, outs, frozenset(), (profile,))
    return ExecutionContext(
        flavor.module,
        lambda: RecordingContext(flavor, outs),
        None,
        bindings,
        RecordingDevice(),
        cuda_graph=False,
    )


def microseconds(work: Callable[[], Any], rounds: int, calls: int) -> float:
    """The median over rounds of the mean time of a call, after a warm-up."""
    for _ in range(min(100, calls)):
        work()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            work()
        times.append(1e6 * (time.perf_counter() - started) / calls)
    return statistics.median(times)


def ways(flavor: flavors.Flavor, inputs: int, outputs: int) -> dict[str, Callable[[], Any]]:
    """Every way to run an inference, by name."""
    feed = {
        spec.name: np.random.default_rng(0).random((_BATCH, _WIDTH), np.float32)
        for spec in specs(inputs, "x")
    }
    bound = BoundCall(new_context(flavor, inputs, outputs), feed)
    context, waiting = new_context(flavor, inputs, outputs), new_context(flavor, inputs, outputs)
    found: dict[str, Callable[[], Any]] = {
        "bound call, values in place": bound,
        "bound call": lambda: bound(feed),
        "infer": lambda: context.infer(feed),
        "infer_async and result": lambda: waiting.infer_async(feed).result(),
    }
    try:
        from infer_bench.polygraphy_side import polygraphy_call

        runner = polygraphy_call(flavor, specs(inputs, "x"), specs(outputs, "y"))
        found["Polygraphy's TrtRunner"] = lambda: runner(feed)
    except ModuleNotFoundError as error:
        print(f"without Polygraphy: {error}", file=sys.stderr)
    return found


def main() -> None:
    """Prints a table: a row for each number of inputs and outputs and each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="how many rounds; their median counts")
    parser.add_argument("--calls", type=int, default=1000, help="inferences per round")
    options = parser.parse_args()
    flavor = flavors.load("rtx")
    print("| inputs | outputs | way | us of Python per inference |\n|---|---|---|---|")
    for inputs, outputs in _CASES:
        for name, work in ways(flavor, inputs, outputs).items():
            cost = microseconds(work, options.rounds, options.calls)
            print(f"| {inputs} | {outputs} | {name} | {cost:.1f} |", flush=True)


if __name__ == "__main__":
    main()
