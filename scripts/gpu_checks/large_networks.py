"""Networks of real ones' size, their engines, and how fast these are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import gpu_names
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt import flavor
from gpu_checks import limits
from gpu_checks.checking import Check
from gpu_checks.encoder import ENCODER_INPUT, TOKENS, WIDTH, encoder, random_embeddings
from gpu_checks.records import Finding
from gpu_checks.resnet50 import INPUT, SHAPE, random_images, resnet50
from gpu_checks.subjects import int8_share, small_options
from trtint8 import BuildOptions, Engine, ShapeRange, __version__, build_int8_engine, calibrate
from trtint8.builder.build import Build
from trtint8.engine.profiles import Profile
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.joined import OutputPart
from trtint8.models.serialization import runnable
from trtint8.models.session import open_graph_model
from trtint8.runtime.bench import bench_contexts
from trtint8.validation.fidelity import FidelityMeter

GOALS = "Goals"
_BUILDS = "Builds of the large networks"
_FIDELITY = "Outputs of the large networks beside FP32 in ONNX Runtime"

#: How many times the samples per second of FP16 INT8 is to have.
INT8_GOAL = 1.2
_CALIBRATION_SAMPLES = 4
_COMPARED_SAMPLES = 8
IMPLICIT, FP16, FP32, EXPLICIT = "INT8, implicit", "FP16", "FP32", "INT8, Q/DQ"
_FILES = {IMPLICIT: "implicit", FP16: "fp16", FP32: "fp32", EXPLICIT: "explicit"}
_GRAPH = "no copies, CUDA graph"
#: What is timed first: the goal needs both.
FIRST_KINDS = (IMPLICIT, FP16)


@dataclass(frozen=True)
class LargeNetwork:
    """A network of a real one's size, with random weights.

    Attributes:
        name: What its files are called.
        title: What it is called in the report.
        make: Returns the model, serialized.
        input: Its input's name.
        shape: The shape of a sample.
        samples: Takes a count, and returns that many samples.
        batches: The batches that are timed; engines take all from the smallest to the largest.
    """

    name: str
    title: str
    make: Callable[[], bytes]
    input: str
    shape: tuple[int, ...]
    samples: Callable[[int], NDArray[np.float32]]
    batches: Sequence[int]

    @property
    def profiles(self) -> list[Profile]:
        """One profile with all its batches."""
        sizes = (min(self.batches), limits.TUNED_BATCH, max(self.batches))
        return [{self.input: ShapeRange(*((size, *self.shape) for size in sizes))}]


RESNET50 = LargeNetwork(
    "resnet50", "ResNet-50-size network", resnet50, INPUT, SHAPE, random_images, limits.BATCHES
)
ENCODER = LargeNetwork(
    *("encoder", "Encoder of BERT's base size", encoder, ENCODER_INPUT, (TOKENS, WIDTH)),
    *(random_embeddings, limits.ENCODER_BATCHES),
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
        parts = (kind, limits.LARGE_LEVEL, self.network.batches, limits.TUNED_BATCH, *gpu_names())
        return " ".join(map(str, (*parts, flavor.load("tensorrt"), __version__)))

    def _floating(self, kind: str, path: Path) -> Finding:
        """FP16, or FP32 (which may use TF32, as TensorRT's default is)."""
        prepared = prepare(load_model(self.model))
        with runnable(prepared.graph_model) as serialized:
            built = Build(
                flavor.load("tensorrt"),
                prepared.inputs,
                self.network.profiles,
                options=self._options(fp16=kind == FP16),
                progress=False,
            ).run(serialized)
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
        return small_options(self.check, fp16=fp16, optimization_level=limits.LARGE_LEVEL)

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
                    report = bench_contexts(
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
        with Engine.load(path) as engine:
            outputs = engine.infer(self._compared)
        meter = FidelityMeter([OutputPart(name, name) for name in self._reference])
        meter.add(outputs, self._reference)
        return Finding({"SQNR dB": meter.value()[0].sqnr_db})

    @property
    def _compared(self) -> dict[str, NDArray[np.float32]]:
        return {self.network.input: self.network.samples(_COMPARED_SAMPLES)}

    @functools.cached_property
    def _reference(self) -> dict[str, NDArray[np.float32]]:
        session = open_graph_model(load_model(self.model).graph_model)
        return dict(zip(session.output_names, session.run(self._compared), strict=True))

    def int8_against_fp16(self, batches: Sequence[int], kind: str) -> None:
        """The goal of the whole project; judged at the batch that the engines are tuned for."""
        for batch in batches:
            pair = self._rates.get((kind, batch)), self._rates.get((FP16, batch))
            case = f"{self.network.title}, {kind} over FP16, samples/s, batch {batch}"
            if None in pair:
                self.check.skip(GOALS, case, "one of the two was not measured")
                continue
            goal = INT8_GOAL if batch == limits.TUNED_BATCH else None
            value = float(pair[0] or 0) / float(pair[1] or 1)
            self.check.attempt(GOALS, case, functools.partial(judged, value, goal))


def judged(value: float, goal: float | None) -> Finding:
    """A ratio beside its goal."""
    return Finding({"ratio": value, "goal": goal}, None if goal is None else value >= goal)
