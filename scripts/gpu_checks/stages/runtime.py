"""How fast engines of large networks run, and what this project adds to TensorRT's own time."""

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
from gpu_checks.checking import Check, one_line
from gpu_checks.encoder import ENCODER_INPUT, encoder, random_embeddings
from gpu_checks.rates import Contender, take_turns
from gpu_checks.records import Figure, Finding
from gpu_checks.resnet50 import INPUT, random_images, resnet50
from gpu_checks.stages.implicit import int8_share
from gpu_checks.subjects import small_options
from trtint8 import BuildOptions, Engine, ShapeRange, __version__, build_int8_engine, calibrate
from trtint8.builder.build import build_engine
from trtint8.engine.profiles import Profile
from trtint8.models.model import load_model, prepare, runnable
from trtint8.models.session import open_graph_model
from trtint8.runtime.bench import bench

_BUILDS = "Builds of the large networks"
_FIDELITY = "Outputs of the large networks beside FP32 in ONNX Runtime"
_OVERHEAD = "What a call costs, in calls per second (implicit INT8 engine)"
_GOALS = "Goals"

#: Goals of the project.
ENQUEUE_GOAL, RUNNER_GOAL, INT8_GOAL = 0.98, 1.5, 1.2
_ENQUEUE_FROM_BATCH = 8
_CALIBRATION_SAMPLES = 4
_COMPARED_SAMPLES = 8
#: The goals need the first two.
IMPLICIT, FP16, FP32, EXPLICIT = "INT8, implicit", "FP16", "FP32", "INT8, Q/DQ"
_GRAPH = "no copies, CUDA graph"
#: What is timed first.
FIRST_KINDS = (IMPLICIT, FP16)
_FILES = {IMPLICIT: "implicit", FP16: "fp16", FP32: "fp32", EXPLICIT: "explicit"}


def run(check: Check) -> None:
    """Runs the stage."""
    measured = Timed(check, RESNET50)
    for kind in (*FIRST_KINDS, FP32, EXPLICIT):
        path = measured.engine(kind)
        if path is None:
            continue
        if kind == IMPLICIT:
            measured.overhead(path)
        measured.throughput(kind, path, limits.BATCHES)
        measured.fidelity(kind, path)
        if kind in (FP16, EXPLICIT):
            measured.int8_against_fp16(limits.BATCHES, IMPLICIT if kind == FP16 else kind)


@dataclass(frozen=True)
class LargeNetwork:
    """A network of a real one's size, with random weights.

    Attributes:
        name: What its files are called.
        title: What it is called in the report.
        make: Returns the model, serialized.
        input: Its input's name.
        samples: Takes a count, and returns that many samples.
        batches: The batches that engines take from the smallest to the largest; tuned for ``tuned``.
        tuned: The batch that kernels are chosen for.
    """

    name: str
    title: str
    make: Callable[[], bytes]
    input: str
    samples: Callable[[int], NDArray[np.float32]]
    batches: Sequence[int]
    tuned: int

    @property
    def profiles(self) -> list[Profile]:
        """One profile with all its batches."""
        shape = self.samples(1).shape[1:]
        sizes = (min(self.batches), self.tuned, max(self.batches))
        return [{self.input: ShapeRange(*((size, *shape) for size in sizes))}]


RESNET50 = LargeNetwork(
    "resnet50", "ResNet-50-size network", resnet50, INPUT, random_images, limits.BATCHES, limits.TUNED_BATCH
)
ENCODER = LargeNetwork(
    *("encoder", "Encoder of BERT's base size", encoder, ENCODER_INPUT, random_embeddings),
    *(limits.ENCODER_BATCHES, limits.TUNED_BATCH),
)


@dataclass
class Timed:
    """Engines of a large network, and their measurements.

    Attributes:
        check: The stage.
        network: The network.
    """

    check: Check
    network: LargeNetwork
    _table: CalibrationTable | None = None
    _rates: dict[tuple[str, int], float] = field(default_factory=dict)

    @functools.cached_property
    def model(self) -> bytes:
        """The network, serialized."""
        return self.network.make()

    # Builds.

    def engine(self, kind: str) -> Path | None:
        """An engine, built once for all stages and runs on this machine; None where it cannot be."""
        path = self.check.folder("engines") / f"{self.network.name}-{_FILES[kind]}.engine"
        key, record, case = self._key(kind), path.with_suffix(".key"), f"{self.network.title}, {kind}"
        if path.is_file() and record.is_file() and record.read_text() == key:
            self.check.attempt(_BUILDS, case, lambda: Finding({"build s": "from an earlier stage or run"}))
            return path
        record.unlink(missing_ok=True)
        build = {IMPLICIT: self._int8, EXPLICIT: self._int8}.get(kind, self._floating)
        if self.check.attempt(_BUILDS, case, lambda: build(kind, path)) is None:
            return None
        record.write_text(key)
        return path

    def _key(self, kind: str) -> str:
        """What an engine was made from, in words."""
        parts = (kind, limits.LARGE_LEVEL, self.network.batches, self.network.tuned, *gpu_names())
        return " ".join(map(str, (*parts, flavor.load("tensorrt"), __version__)))

    def _floating(self, kind: str, path: Path) -> Finding:
        """FP16, or FP32 (which may use TF32, as TensorRT's default is)."""
        prepared = prepare(load_model(self.model))
        with runnable(prepared.graph_model) as serialized:
            built = build_engine(
                serialized,
                prepared.inputs,
                flavor=flavor.load("tensorrt"),
                profiles=self.network.profiles,
                options=self._options(fp16=kind == FP16),
                progress=False,
            )
        path.write_bytes(built.plan)
        return Finding({"build s": built.seconds, "plan MB": len(built.plan) / 1e6})

    def _int8(self, kind: str, path: Path) -> Finding:
        """INT8 with the host's ranges, set on tensors or as Q/DQ pairs."""
        if self._table is None:
            samples = self.network.samples(_CALIBRATION_SAMPLES)
            self._table = calibrate(self.model, samples, batch_size=len(samples), progress=False)
        result = build_int8_engine(
            self.model,
            self._table,
            path,
            target="tensorrt",
            route="implicit" if kind == IMPLICIT else "explicit",
            profiles=self.network.profiles,
            options=self._options(fp16=True),
            progress=False,
        )
        size = result.engine.stat().st_size / 1e6
        return Finding({"build s": result.seconds, "plan MB": size, **int8_share(result)})

    def _options(self, *, fp16: bool) -> BuildOptions:
        return small_options(fp16=fp16, optimization_level=limits.LARGE_LEVEL)

    # Measurements.

    def throughput(self, kind: str, path: Path, batches: Sequence[int]) -> None:
        """Batches with and without copies and CUDA graph."""
        for batch in batches:
            self.check.attempt(
                f"{self.network.title}: samples per second, and milliseconds",
                f"{kind}, batch {batch}",
                functools.partial(self._throughput, kind, path, batch),
            )

    def _throughput(self, kind: str, path: Path, batch: int) -> Finding:
        feed, figures = {self.network.input: self.network.samples(batch)}, {}
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

    def fidelity(self, kind: str, path: Path) -> None:
        """What the engine's outputs are beside those of FP32 in ONNX Runtime."""
        self.check.attempt(
            _FIDELITY, f"{self.network.title}, {kind}", functools.partial(self._fidelity, path)
        )

    def _fidelity(self, path: Path) -> Finding:
        samples = self.network.samples(_COMPARED_SAMPLES)
        with Engine.load(path) as engine:
            (found,) = engine.infer({self.network.input: samples}).values()
        error = np.square(found.astype(np.float64) - self._reference).sum()
        return Finding({"SQNR dB": float(10 * np.log10(np.square(self._reference).sum() / error))})

    @functools.cached_property
    def _reference(self) -> NDArray[np.float64]:
        session = open_graph_model(load_model(self.model).graph_model)
        samples = self.network.samples(_COMPARED_SAMPLES)
        return session.run({self.network.input: samples})[0].astype(np.float64)

    def int8_against_fp16(self, batches: Sequence[int], kind: str) -> None:
        """The goal of the whole project; judged at the batch that the engines are tuned for."""
        for batch in batches:
            pair = self._rates.get((kind, batch)), self._rates.get((FP16, batch))
            case = f"{self.network.title}, {kind} over FP16, samples/s, batch {batch}"
            if None in pair:
                self.check.skip(_GOALS, case, "one of the two was not measured")
                continue
            goal = INT8_GOAL if batch == self.network.tuned else None
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

    here = flavor.load("tensorrt")
    if here.library_version and not here.version.startswith(".".join(map(str, here.library_version))):
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
    shape = "x".join(map(str, (batch, *random_images(1).shape[1:])))
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
