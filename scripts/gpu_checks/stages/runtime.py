"""How fast engines of a ResNet-50-size network run, and what this project adds to TensorRT's own time."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import gpu_names
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt import flavor
from gpu_checks import limits
from gpu_checks.bare import Bare
from gpu_checks.checking import Check
from gpu_checks.rates import Contender, take_turns
from gpu_checks.records import Figure, Finding
from gpu_checks.resnet50 import INPUT, SHAPE, random_images, resnet50
from gpu_checks.stages.implicit import int8_share
from gpu_checks.subjects import small_options
from trtint8 import BuildOptions, Engine, ShapeRange, __version__, build_int8_engine, calibrate
from trtint8.builder.build import build_engine
from trtint8.engine.profiles import Profile
from trtint8.models.model import load_model, prepare, runnable
from trtint8.runtime.bench import bench

_BUILDS = "Builds of the ResNet-50-size network"
_THROUGHPUT = "ResNet-50-size network: samples per second, and milliseconds"
_OVERHEAD = "What a call costs, in calls per second (implicit INT8 engine)"
_GOALS = "Goals"

#: Goals of the project.
ENQUEUE_GOAL, RUNNER_GOAL, INT8_GOAL = 0.98, 1.5, 1.2
_ENQUEUE_FROM_BATCH = 8
_CALIBRATION_IMAGES = 4
#: The goals need the first two.
_IMPLICIT, _FP16, _FP32, _EXPLICIT = "INT8, implicit", "FP16", "FP32", "INT8, Q/DQ"
_GRAPH = "no copies, CUDA graph"
#: What is timed first.
FIRST_KINDS = (_IMPLICIT, _FP16)
_FILES = {_IMPLICIT: "implicit", _FP16: "fp16", _FP32: "fp32", _EXPLICIT: "explicit"}


def run(check: Check) -> None:
    """Runs the stage."""
    measured = Resnet50(check)
    for kind in (*FIRST_KINDS, _FP32, _EXPLICIT):
        path = measured.engine(kind)
        if path is None:
            continue
        if kind == _IMPLICIT:
            measured.overhead(path)
        measured.throughput(kind, path, limits.BATCHES)
        if kind == _FP16:
            measured.int8_against_fp16(limits.BATCHES)


@dataclass
class Resnet50:
    """Engines of the ResNet-50-size network, and their measurements.

    Attributes:
        check: The stage.
    """

    check: Check
    _table: CalibrationTable | None = None
    _rates: dict[tuple[str, int], float] = field(default_factory=dict)

    @functools.cached_property
    def model(self) -> bytes:
        """The network, serialized."""
        return resnet50()

    # Builds.

    def engine(self, kind: str) -> Path | None:
        """An engine, built once for all stages and runs on this machine; None where it cannot be."""
        path = self.check.folder("engines") / f"{_FILES[kind]}.engine"
        key, record = self._key(kind), path.with_suffix(".key")
        if path.is_file() and record.is_file() and record.read_text() == key:
            self.check.attempt(_BUILDS, kind, lambda: Finding({"build s": "from an earlier stage or run"}))
            return path
        record.unlink(missing_ok=True)
        build = {_IMPLICIT: self._int8, _EXPLICIT: self._int8}.get(kind, self._floating)
        if self.check.attempt(_BUILDS, kind, lambda: build(kind, path)) is None:
            return None
        record.write_text(key)
        return path

    def _key(self, kind: str) -> str:
        """What an engine was made from, in words."""
        parts = (kind, limits.RESNET50_LEVEL, limits.BATCHES, limits.TUNED_BATCH, *gpu_names())
        return " ".join(map(str, (*parts, flavor.load("tensorrt"), __version__)))

    def _floating(self, kind: str, path: Path) -> Finding:
        """FP16, or FP32 (which may use TF32, as TensorRT's default is)."""
        prepared = prepare(load_model(self.model))
        with runnable(prepared.graph_model) as serialized:
            built = build_engine(
                serialized,
                prepared.inputs,
                flavor=flavor.load("tensorrt"),
                profiles=_profiles(),
                options=self._options(fp16=kind == _FP16),
                progress=False,
            )
        path.write_bytes(built.plan)
        return Finding({"build s": built.seconds, "plan MB": len(built.plan) / 1e6})

    def _int8(self, kind: str, path: Path) -> Finding:
        """INT8 with the host's ranges, set on tensors or as Q/DQ pairs."""
        if self._table is None:
            images = random_images(_CALIBRATION_IMAGES)
            self._table = calibrate(self.model, images, batch_size=len(images), progress=False)
        result = build_int8_engine(
            self.model,
            self._table,
            path,
            target="tensorrt",
            route="implicit" if kind == _IMPLICIT else "explicit",
            profiles=_profiles(),
            options=self._options(fp16=True),
            progress=False,
        )
        size = result.engine.stat().st_size / 1e6
        return Finding({"build s": result.seconds, "plan MB": size, **int8_share(result)})

    def _options(self, *, fp16: bool) -> BuildOptions:
        return small_options(self.check, fp16=fp16, optimization_level=limits.RESNET50_LEVEL)

    # Measurements.

    def throughput(self, kind: str, path: Path, batches: Sequence[int]) -> None:
        """Batches with and without copies and CUDA graph."""
        for batch in batches:
            self.check.attempt(
                _THROUGHPUT, f"{kind}, batch {batch}", functools.partial(self._throughput, kind, path, batch)
            )

    def _throughput(self, kind: str, path: Path, batch: int) -> Finding:
        feed, figures = {INPUT: random_images(batch)}, {}
        with Engine.load(path) as engine:
            for graph in (False, True):
                for transfers in (False, True):
                    context = engine.new_context(cuda_graph=graph)
                    report = bench(
                        context,
                        feed,
                        name=kind,
                        batch_size=batch,
                        seconds=limits.MEASURE_SECONDS,
                        warm_up=limits.WARM_UP_SECONDS,
                        transfers=transfers,
                        cuda_graph=graph,
                    )
                    context.close()
                    name = f"{'copies' if transfers else 'no copies'}{', CUDA graph' if graph else ''}"
                    figures[name] = report.samples_per_second
                    if not transfers:
                        figures[f"GPU ms{', graph' if graph else ''}"] = report.phases["compute"].median
                        figures[f"p99 ms{', graph' if graph else ''}"] = report.phases["latency"].p99
                        figures[f"enqueue ms{', graph' if graph else ''}"] = report.phases["enqueue"].median
        self._rates[kind, batch] = figures[_GRAPH]
        return Finding(figures)

    def int8_against_fp16(self, batches: Sequence[int]) -> None:
        """The goal of the whole project; judged at the batch that the engines are tuned for."""
        for batch in batches:
            pair = self._rates.get((_IMPLICIT, batch)), self._rates.get((_FP16, batch))
            case = f"INT8 over FP16, samples/s, batch {batch}"
            if None in pair:
                self.check.skip(_GOALS, case, "one of the two was not measured")
                continue
            goal = INT8_GOAL if batch == limits.TUNED_BATCH else None
            value = float(pair[0] or 0) / float(pair[1] or 1)
            self.check.attempt(_GOALS, case, functools.partial(judged, value, goal))

    def overhead(self, path: Path) -> None:
        """Ours beside TensorRT's bare call, Polygraphy's runner and trtexec."""
        for batch in limits.BATCHES:
            found = self.check.attempt(_OVERHEAD, f"batch {batch}", functools.partial(_overhead, path, batch))
            self._goals(batch, dict(found.figures) if found else {})

    def _goals(self, batch: int, rates: Mapping[str, Figure]) -> None:
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
                self.check.skip(_GOALS, case, "one of the two was not measured")
                continue
            value = first / second
            self.check.attempt(_GOALS, case, functools.partial(judged, value, goal))


def judged(value: float, goal: float | None) -> Finding:
    """A ratio beside its goal."""
    return Finding({"ratio": value, "goal": goal}, None if goal is None else value >= goal)


def parse_trtexec(text: str) -> float | None:
    """Inferences per second in what trtexec prints; None where it prints none."""
    match = re.search(r"Throughput: ([\d.]+) qps", text)
    return float(match[1]) if match else None


def _profiles() -> list[Profile]:
    sizes = (1, limits.TUNED_BATCH, max(limits.BATCHES))
    return [{INPUT: ShapeRange(*((size, *SHAPE) for size in sizes))}]


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
            notes.append(f"no TrtRunner: {type(error).__name__}: {str(error).splitlines()[0]}")
        wrong = _different(bare.with_copies(), engine.infer(feed)[engine.outputs[0].name])
        seconds = limits.MEASURE_SECONDS / 2
        rates: dict[str, Figure] = dict(take_turns(contenders, seconds=seconds, rounds=limits.ROUNDS))
        context = engine.new_context()
        report = bench(
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
