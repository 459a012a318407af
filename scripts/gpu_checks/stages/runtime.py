"""How fast engines of a ResNet-50-size network run, and what this project adds to TensorRT's own time."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.tensorrt import flavor
from gpu_checks import limits
from gpu_checks.bare import Bare
from gpu_checks.checking import Check, one_line
from gpu_checks.large_networks import (
    EXPLICIT,
    FIRST_KINDS,
    FP16,
    FP32,
    GOALS,
    IMPLICIT,
    RESNET50,
    Timed,
    judged,
)
from gpu_checks.rates import Contender, take_turns
from gpu_checks.records import Figure, Finding
from gpu_checks.resnet50 import INPUT, SHAPE, random_images
from trtint8 import Engine
from trtint8.runtime.bench import bench_contexts

_OVERHEAD = "What a call costs, in calls per second (implicit INT8 engine)"

#: Goals of the project.
ENQUEUE_GOAL, RUNNER_GOAL = 0.98, 1.5
_ENQUEUE_FROM_BATCH = 8


def run(check: Check) -> None:
    """Runs the stage."""
    measured = Timed(check, RESNET50)
    for kind in (*FIRST_KINDS, EXPLICIT, FP32):
        path = measured.engine(kind)
        if path is None:
            continue
        if kind == IMPLICIT:
            overhead(check, path)
        measured.throughput(kind, path, RESNET50.batches)
        measured.fidelity(kind, path)
        if kind in (FP16, EXPLICIT):
            measured.int8_against_fp16(RESNET50.batches, IMPLICIT if kind == FP16 else kind)


def overhead(check: Check, path: Path) -> None:
    """Ours beside TensorRT's bare call, Polygraphy's runner and trtexec."""
    for batch in limits.BATCHES:
        found = check.attempt(_OVERHEAD, f"batch {batch}", functools.partial(_overhead, path, batch))
        _goals(check, batch, dict(found.figures) if found else {})


def _goals(check: Check, batch: int, rates: Mapping[str, Figure]) -> None:
    wanted = [
        ("our enqueue over the bare one", "enqueue", "bare enqueue", ENQUEUE_GOAL),
        ("our bench over the bare enqueue", "bench, no copies", "bare enqueue", ENQUEUE_GOAL),
    ]
    if batch < _ENQUEUE_FROM_BATCH:
        wanted = [
            ("Engine.infer over TrtRunner", "Engine.infer", "TrtRunner", RUNNER_GOAL),
            ("infer with CUDA graph over TrtRunner", "infer, CUDA graph", "TrtRunner", RUNNER_GOAL),
        ]
    for title, ours, theirs, goal in wanted:
        case, first, second = f"{title}, batch {batch}", rates.get(ours), rates.get(theirs)
        if not isinstance(first, float) or not isinstance(second, float):
            check.skip(GOALS, case, "one of the two was not measured")
            continue
        value = first / second
        check.attempt(GOALS, case, functools.partial(judged, value, goal))


def parse_trtexec(text: str) -> float | None:
    """Inferences per second in what trtexec prints; None where it prints none."""
    match = re.search(r"Throughput: ([\d.]+) qps", text)
    return float(match[1]) if match else None


def _overhead(path: Path, batch: int) -> Finding:
    feed, notes = {INPUT: random_images(batch)}, []
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(Engine.load(path))
        stack.enter_context(engine.device.active())
        bare = stack.enter_context(contextlib.closing(Bare(engine, feed)))
        ours, graph = engine.new_context(), engine.new_context(cuda_graph=True)
        ours.bind(feed)
        ours.upload()
        contenders = {
            "bare enqueue": Contender(bare.enqueue, bare.stream.synchronize),
            "enqueue": Contender(ours.enqueue, ours.synchronize),
            "bare call, waited for": Contender(bare.run),
            "bare call with copies": Contender(bare.with_copies),
            "Engine.infer": Contender(lambda: engine.infer(feed)),
            "infer, CUDA graph": Contender(lambda: graph.infer(feed)),
            "bound call": Contender(functools.partial(stack.enter_context(engine.bind(feed)), feed)),
            "bound call in place": Contender(stack.enter_context(engine.bind(feed))),
        }
        try:
            contenders["TrtRunner"] = Contender(stack.enter_context(_trt_runner(engine, feed)))
        except Exception as error:  # noqa: BLE001 the others are measured without it
            notes.append(f"no TrtRunner: {one_line(error)}")
        wrong = _different(bare.with_copies(), engine.infer(feed)[engine.outputs[0].name])
        seconds = limits.MEASURE_SECONDS / 2
        rates: dict[str, Figure] = dict(take_turns(contenders, seconds=seconds, rounds=limits.ROUNDS))
        context = engine.new_context()
        report = bench_contexts(
            context, feed, name="", batch_size=batch, seconds=limits.MEASURE_SECONDS, transfers=False
        )
        rates["bench, no copies"] = report.throughput
    for name, base in (("with copies", "bare call with copies"), ("without", "bare call, waited for")):
        first, second = rates["Engine.infer"], rates[base]
        if isinstance(first, float) and isinstance(second, float):
            rates[f"infer over the bare call {name}, µs"] = 1e6 * (1 / first - 1 / second)
    rates["trtexec"], said = _trtexec(path, batch)
    return Finding(rates, False if wrong else None, "; ".join(filter(None, [wrong, *notes, said])))


def _different(first: NDArray[Any], second: NDArray[Any]) -> str:
    """Says so where the bare call and ours do not compute the same: then their times mean nothing."""
    return "" if np.array_equal(first, second) else "the bare call and Engine.infer give different outputs"


@contextlib.contextmanager
def _trt_runner(engine: Engine, feed: Mapping[str, NDArray[Any]]) -> Iterator[Callable[[], object]]:
    from polygraphy.backend.trt import TrtRunner

    here = flavor.load("tensorrt")
    bindings = tuple(map(int, here.version.split(".")[:3]))
    if here.library_version not in (None, bindings):
        # It crashed with bindings of 8.6.1 on the library of 8.6.0.
        raise RuntimeError(f"the bindings are of {here.version} and the library of {here.library_version}")
    # On the engine that is loaded already: a second logger would confuse TensorRT.
    with TrtRunner(engine.raw, optimization_profile=0) as runner:
        runner.infer(feed)
        yield lambda: runner.infer(feed)


def _trtexec(path: Path, batch: int) -> tuple[float | None, str]:
    """Inferences per second without copies, or None and the reason."""
    program = shutil.which("trtexec")
    if program is None:
        return None, "trtexec is not on PATH"
    shape = "x".join(map(str, (batch, *SHAPE)))
    done = subprocess.run(
        [
            *(program, f"--loadEngine={path}", f"--shapes={INPUT}:{shape}"),
            *("--noDataTransfers", "--duration=1", "--warmUp=200", "--iterations=10"),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    found = parse_trtexec(done.stdout)
    return found, "" if found else f"trtexec failed with exit status {done.returncode}"
