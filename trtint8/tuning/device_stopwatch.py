"""Times engines on the GPU of this machine, each in turn with the first one, so that drift cancels."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence

from calibrators.checks import warn_user
from calibrators.cuda import gpu_names, gpu_uuid, require_gpu, turn_on_gpu
from calibrators.errors import BuildError, EngineError, GpuMemoryError
from trtint8.builder.build import BuiltEngine
from trtint8.engine.timings import seconds_of_nodes
from trtint8.runtime.bench import bench, random_feed
from trtint8.runtime.engine import Engine
from trtint8.runtime.execution import ExecutionContext
from trtint8.tuning.stopwatch import Source, Timing

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
                built = self._build(kept)
                with turn_on_gpu(self._uuid, "timing an engine"):
                    timings.append(self._time(built))
            except (BuildError, EngineError, GpuMemoryError) as error:
                warn_user(f"an engine with {len(kept)} layers in FP16 drops out of the search: {error}")
                timings.append(None)
        return timings

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
            ordered = sorted(times)
            layers = engine.new_context().layer_seconds(random_feed(engine.inputs, engine.profiles, None))
            return Timing(
                statistics.median(times),
                ordered[_END],
                ordered[-1 - _END],
                seconds_of_nodes(layers, self._nodes, built.report),
            )
        finally:
            if self._first is None or self._first[0] is not engine:
                engine.close()


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
    report = bench(
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
