"""Stopwatches that measure: on the GPU of this machine, and with ``trtexec`` on another one.

Here every engine runs in turn with the first one, so that drift cancels. For another machine the models are
written with a script (``measure.sh``), and what that leaves is read.

The other machine needs TensorRT 8.5 to 11 with its program ``trtexec``, a shell, and no Python. The flags of
``trtexec`` differ by version:

- Its first line is ``&&&& RUNNING TensorRT.trtexec [TensorRT v8502] # ...``: 1000 times the major version,
  100 times the minor one, and the patch; from 10 on 10000 times the major one, as ``v100300``.
- Up to 10 types are flags. ``--int8`` belongs to models with Q/DQ pairs only: for any other one ``trtexec``
  sets dynamic ranges of its own, and builds an engine in INT8 (``setupNetworkAndConfig`` in
  samples/common/sampleEngines.cpp of TensorRT).
- From 11 on there are no flags of types, and types stand in the graph ("Migrating trtexec Usage from
  TensorRT 10.x to 11.x" in TensorRT's documentation).
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from calibrators import records
from calibrators.checks import FilePath, check_path, warn_user
from calibrators.cuda import (
    compute_capability,
    gpu_clocks,
    gpu_names,
    gpu_problem,
    gpu_uuid,
    require_gpu,
    turn_on_gpu,
)
from calibrators.errors import BuildError, EngineError, GpuMemoryError, OutputError, TrtInt8Error
from calibrators.files import check_writable, write_atomically
from calibrators.tensorrt import flavor as flavors
from trtint8.auditing.audit import Estimator, EstimatorOptions, at_shapes, run_build
from trtint8.auditing.gpus import Gpu
from trtint8.builder.build import Build, BuiltEngine, with_equal_forms
from trtint8.engine.profiles import ShapeRange
from trtint8.engine.timings import read_exported_times, read_layers, read_profile, seconds_of_nodes
from trtint8.models.model import Model
from trtint8.models.serialization import save_model
from trtint8.runtime.bench import bench_contexts, random_feed
from trtint8.runtime.engine import Engine
from trtint8.runtime.execution import ExecutionContext
from trtint8.tuning.stopwatch import Expectation, Source, Timing

#: How often two engines take turns, and for how many seconds each runs in a turn.
_TURNS, _SECONDS = 15, 0.1

#: Of as many values in order, the third on either side are the ends of an interval that holds the median with
#: a probability of 96 % (the sign test).
_END = 3


class DeviceStopwatch:
    """Builds engines and times them with CUDA graphs, without copies to and from the GPU.

    The first engine that is timed stays on the GPU. Every other one runs in turn with it, and its time is
    that of the first one multiplied by the median of the ratios of all turns.

    Attributes:
        source: Where its times come from.
        gpu: The name of the GPU.

    Args:
        build: Builds the engine of a choice, given by the names of the layers in FP16.
        nodes: Names of the ONNX nodes whose times are asked for.
        device: Index of the GPU.

    Raises:
        GpuUnavailableError: There is no usable GPU.
    """

    source: Source = "measured here"

    def __init__(
        self, build: Callable[[frozenset[str]], BuiltEngine], nodes: Collection[str], device: int = 0
    ) -> None:
        require_gpu("timing engines")
        self._uuid = gpu_uuid(device)
        self.gpu = gpu_names()[device]
        self._build, self._nodes, self._device = build, nodes, device
        self._first: tuple[Engine, float] | None = None

    def time(self, choices: Sequence[frozenset[str]]) -> list[Timing | None]:
        """Times the engines of some choices; see :class:`trtint8.tuning.stopwatch.Stopwatch`.

        Warns:
            UserWarning: An engine cannot be built or run, so that it drops out.
        """
        timings: list[Timing | None] = []
        for kept in choices:
            try:
                timings.append(self.time_built(self._build(kept)))
            except (BuildError, EngineError, GpuMemoryError) as error:
                warn_user(
                    f"an engine with {len(kept)} layers in FP16 drops out of the search: {error}", note=True
                )
                timings.append(None)
        return timings

    def time_built(self, built: BuiltEngine) -> Timing:
        """Times an engine.

        Raises:
            EngineError: It cannot be run.
            GpuMemoryError: The GPU has no room for it.
        """
        with turn_on_gpu(self._uuid, "timing an engine"):
            return self._time(built)

    def close(self) -> None:
        """Frees the engine that others are compared with."""
        if self._first is not None:
            self._first[0].close()
        self._first = None

    def _time(self, built: BuiltEngine) -> Timing:
        engine = Engine.load(built.plan, device=self._device)
        try:
            if self._first is None:
                times = [one for (one,) in _turns([engine])]
                self._first = engine, statistics.median(times)
            else:
                first, seconds = self._first
                times = [seconds * other / one for one, other in _turns([first, engine])]
            clocks = gpu_clocks(self._device)
            feed = random_feed(engine.inputs, engine.profiles, None)
            layers = engine.new_context().layer_seconds(feed) if self._nodes else {}
            return Timing.of(times, _END, seconds_of_nodes(layers, self._nodes, built.report), clocks)
        finally:
            if self._first is None or self._first[0] is not engine:
                engine.close()


def measure_built(engines: Sequence[BuiltEngine], device: int) -> list[Timing]:
    """Times engines that are built already, each in turn with the first one.

    Args:
        engines: The engines, at the optimal shapes of their first profiles.
        device: Index of the GPU.

    Raises:
        GpuUnavailableError: There is no usable GPU.
        EngineError: An engine cannot be run.
        GpuMemoryError: The GPU has no room for them.
    """
    stopwatch = DeviceStopwatch(lambda _kept: engines[0], (), device)  # which builds nothing here
    try:
        return [stopwatch.time_built(engine) for engine in engines]
    finally:
        stopwatch.close()


def expect(
    build: Build,
    built: BuiltEngine,
    graph_model: ir.Model,
    float_model: Callable[[], tuple[Model, Mapping[str, float]] | None],
    gpus: Sequence[Gpu],
) -> Expectation | None:
    """How long an engine takes beside FP16: measured on this machine's GPU, or estimated.

    Args:
        build: How it was built.
        built: The engine.
        graph_model: The model that it was built from.
        float_model: Gives the float model, and the name of each tensor to its largest magnitude; None where
            there is none to build in FP16. It is called where it is needed.
        gpus: The GPUs that it was built for.

    Returns:
        The times; None where no GPU is known, or several are.

    Raises:
        TrtInt8Error: The engine cannot be run, or the network in FP16 cannot be built.
    """
    shapes = {
        spec.name: tuple(built.profiles[0][spec.name].opt)
        if built.profiles and spec.name in built.profiles[0]
        else tuple(size for size in spec.shape or () if isinstance(size, int))
        for spec in build.inputs
    }
    device, capabilities = build.options.device, build.compute_capabilities
    if not gpu_problem() and (
        not capabilities or {"current", compute_capability(device)} & set(capabilities)
    ):
        engines = [built]
        # TensorRT for RTX builds in seconds; TensorRT times kernels, which takes minutes.
        if build.flavor.builds_without_gpu and (known := float_model()) is not None:
            prepared, peaks = known
            half = replace(
                build,
                profiles=built.profiles,
                progress=False,
                options=replace(build.options, fp16=True),
            )
            engines = [run_build(half, prepared.graph_model, peaks, prepared.name, int8=False), built]
        *beside, own = measure_built(engines, device)
        return Expectation(
            gpu_names()[device],
            "measured here",
            shapes,
            (own.least, own.most),
            (beside[0].seconds, beside[0].seconds) if beside else None,
        )
    if len(gpus) == 1 and (known := float_model()) is not None:
        return _estimated(build, graph_model, *known, gpus[0], shapes)
    return None


def _estimated(
    build: Build,
    graph_model: ir.Model,
    prepared: Model,
    peaks: Mapping[str, float],
    gpu: Gpu,
    shapes: Mapping[str, tuple[int, ...]],
) -> Expectation | None:
    """The estimate of an audit; compiles the network in FP16, and the engine for one set of shapes."""
    profile = {name: ShapeRange(*[shape] * 3) for name, shape in shapes.items()}
    options = EstimatorOptions(flavors.ON_ANY_MACHINE, profile, build.options, progress=False)
    estimator = Estimator.open(prepared, {}, gpu, options)
    fixed = with_equal_forms(at_shapes(prepared.part(graph_model), shapes).graph_model)
    int8 = estimator.estimate("INT8+FP16", fixed, peaks, fp16=False)
    fp16 = estimator.estimate("FP16", estimator.model.graph_model, peaks, fp16=True)
    if int8.ends is None or fp16.ends is None:
        return None
    return Expectation(gpu.name, "estimated", shapes, int8.ends, fp16.ends)


def _turns(engines: Sequence[Engine]) -> list[list[float]]:
    """The median seconds of every engine in every turn."""
    contexts = [engine.new_context(cuda_graph=True) for engine in engines]
    for context, engine in zip(contexts, engines, strict=True):
        _seconds(context, engine)  # clocks rise, and graphs are captured
    return [
        [_seconds(context, engine) for context, engine in zip(contexts, engines, strict=True)]
        for _ in range(_TURNS)
    ]


def _seconds(context: ExecutionContext, engine: Engine) -> float:
    report = bench_contexts(
        context,
        random_feed(engine.inputs, engine.profiles, None),
        name="",
        batch_size=1,
        seconds=_SECONDS,
        warm_up=0.0,
        transfers=False,
        cuda_graph=True,
    )
    return report.phases["compute"].median / 1e3


#: How often engines are run one after another; the least and the largest of as many ratios hold their median
#: with a probability of 97 % (the sign test).
_ROUNDS = 6

#: What the search of a folder is told from others by.
_IDENTITY = "search.json"

_SCRIPT = Path(__file__).with_name("measure.sh")

#: The part of it that finds trtexec and says which models it takes; scripts of deployments have it as well.
_FIND_TRTEXEC = Path(__file__).with_name("trtexec.sh")


class MeasurementsNeededError(TrtInt8Error):
    """Engines have to be timed on another machine before a search can continue.

    Attributes:
        directory: The folder with the models and the script.
        engines: How many engines have to be timed.
    """

    def __init__(self, directory: Path, engines: int) -> None:
        super().__init__(
            f"{engines} engines are to be timed: copy '{directory}' to the machine with the GPU, run 'sh "
            "measure.sh' in it, copy it back, and give the same command again"
        )
        self.directory, self.engines = directory, engines


@dataclass(frozen=True)
class _Search:
    """What a folder belongs to.

    Attributes:
        identity: Identifies the model, its ranges, and the shapes of its inputs.
    """

    identity: str


class TrtexecStopwatch:
    """Times engines by the files that ``trtexec`` left in a folder, and asks for those that are missing.

    Args:
        directory: The folder; made where there is none.
        identity: Identifies the search: what all its engines have in common.
        models: Gives the models of a choice, by the names of its layers in FP16: one for a TensorRT that
            chooses types, and one with types in the graph.
        nodes: Names of the ONNX nodes whose times are asked for.
        key: Gives the name of a choice.
        first: The choice with all layers in FP16. It is timed again beside all others, so that drift cancels.
        gpu: What the GPU is to be, as a part of its name; any one where None.

    Raises:
        BuildError: The folder is of another search, or the GPU another one.
        OutputError: The folder cannot be written.
    """

    source: Source = "measured there"

    def __init__(
        self,
        directory: FilePath,
        identity: str,
        models: Callable[[frozenset[str]], tuple[ir.Model, ir.Model]],
        nodes: Collection[str],
        key: Callable[[frozenset[str]], str],
        first: frozenset[str],
        gpu: str | None = None,
    ) -> None:
        check_path("a folder", directory, OutputError)
        self._directory, self._models, self._nodes = Path(directory), models, nodes
        self._identity, self._key = identity, key
        self._first = self._name(first)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot write '{directory}': {error.strerror or error}; give another folder"
            ) from None
        place = self._directory / _IDENTITY
        if not place.exists():
            write_atomically(check_writable(place), records.render(_Search(identity)))
        elif _read_record(place).identity != identity:
            raise BuildError(
                f"'{directory}' holds engines of another model, or of other ranges or shapes; give another "
                "folder, or remove it"
            )
        seen = self._seen_gpu()
        self.gpu = seen or gpu or "another machine"
        if gpu is not None and seen and _plain(gpu) not in _plain(seen):
            raise BuildError(f"the engines in '{directory}' were timed on '{self.gpu}', and not on {gpu}")

    def time(self, choices: Sequence[frozenset[str]]) -> list[Timing | None]:
        """Reads the times of some choices; see :class:`trtint8.tuning.stopwatch.Stopwatch`.

        Raises:
            BuildError: A file is damaged.
            MeasurementsNeededError: Some are not timed yet; their models are in the folder now.
            OutputError: A model cannot be written.

        Warns:
            UserWarning: An engine could not be built or run, so that it drops out.
        """
        names = {self._name(kept): kept for kept in choices}
        missing = [name for name in names if not self._is_timed(name)]
        if missing:
            for name in missing:
                for form, model in zip(("weak", "typed"), self._models(names[name]), strict=True):
                    save_model(model, self._directory / f"{name}.{form}.onnx")
            self._write_script(missing)
            raise MeasurementsNeededError(self._directory, len(missing))
        return [self._timing(self._name(kept)) for kept in choices]

    def _name(self, kept: frozenset[str]) -> str:
        """What the files of a choice begin with, which those of another search never do."""
        return hashlib.sha256(f"{self._identity} {self._key(kept)}".encode()).hexdigest()[:16]

    def _is_timed(self, name: str) -> bool:
        if self._batch(name) is not None or self._path(name, "failed").exists():
            return True
        # Without the first one nothing can be compared.
        return self._path(self._first, "failed").exists() and self._batch(self._first) is None

    def _batch(self, name: str) -> int | None:
        """The run of the script that has timed an engine and the first one in all rounds; None for none."""
        together = self._batches(name) & self._batches(self._first)
        complete = (
            batch
            for batch in sorted(together)
            if all(path.exists() for one in (name, self._first) for path in self._rounds(one, batch))
        )
        return next(complete, None)

    def _batches(self, name: str) -> set[int]:
        """The runs of the script that have begun to time an engine."""
        matches = (
            re.fullmatch(rf"{name}\.([0-9]+)-[0-9]+\.json", path.name) for path in self._directory.iterdir()
        )
        return {int(match[1]) for match in matches if match}

    def _rounds(self, name: str, batch: int) -> list[Path]:
        return [self._path(name, f"{batch}-{number}.json") for number in range(1, _ROUNDS + 1)]

    def _times(self, name: str, batch: int) -> list[float]:
        """The median seconds of every round."""
        times = (read_exported_times(path).phases["compute"] for path in self._rounds(name, batch))
        return [statistics.median(each) / 1e3 for each in times]

    def _path(self, name: str, ending: str) -> Path:
        return self._directory / f"{name}.{ending}"

    def _write_script(self, names: Sequence[str]) -> None:
        batch = max(self._batches(self._first), default=0) + 1
        values = {
            "NAMES": " ".join(dict.fromkeys([self._first, *names])),
            "FIRST": self._first,
            "BATCH": str(batch),
            "LAST": str(_ROUNDS),
            "ROUNDS": " ".join(map(str, range(1, _ROUNDS + 1))),
            "FIND_TRTEXEC": _FIND_TRTEXEC.read_text().strip(),
        }
        text = re.sub("|".join(values), lambda match: values[match[0]], _SCRIPT.read_text())
        write_atomically(check_writable(self._directory / "measure.sh"), text.encode())

    def _timing(self, name: str) -> Timing | None:
        batch = self._batch(name)
        if batch is None:
            warn_user(
                f"the engine '{name}' drops out of the search: see the logs in '{self._directory}'", note=True
            )
            return None
        times = self._times(name, batch)
        if name != self._first and (begun := self._batch(self._first)) is not None:
            usual = statistics.median(self._times(self._first, begun))
            beside = self._times(self._first, batch)
            times = [usual * time / other for time, other in zip(times, beside, strict=True)]
        profile, layers = self._path(name, "profile.json"), self._path(name, "layers.json")
        report = read_layers(layers) if layers.exists() else None
        seconds = read_profile(profile) if profile.exists() else {}
        clocks = _clocks(self._path(name, f"{batch}-{_ROUNDS}.clocks"))
        return Timing.of(times, 0, seconds_of_nodes(seconds, self._nodes, report), clocks)

    def _seen_gpu(self) -> str:
        """The GPU that the engines were timed on; empty where none was yet.

        Raises:
            BuildError: Some were timed on one and some on another.
        """
        logs = (path.read_bytes().decode(errors="replace") for path in self._directory.glob("*.log"))
        found = {match[1].strip() for log in logs for match in re.finditer(r"Selected Device: (.+)", log)}
        if len(found) > 1:
            raise BuildError(
                f"the engines in '{self._directory}' were timed on {' and '.join(map(repr, sorted(found)))}; "
                "time all of them on one GPU, in another folder"
            )
        return found.pop() if found else ""


def _clocks(path: Path) -> str:
    """The clocks that the script has noted; empty where it found no program that knows them."""
    if not path.exists():
        return ""
    found = re.fullmatch(
        r"\d+ MHz(, memory \d+ MHz)?", path.read_bytes()[:80].decode(errors="replace").strip()
    )
    return found[0] if found else ""


def _read_record(path: Path) -> _Search:
    with records.reading(f"'{path}'", BuildError, "remove its folder, and measure again"):
        return records.to_record(records.read(path), _Search)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
