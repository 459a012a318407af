"""Latency and throughput of an engine, measured and reported as trtexec does."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import Device, Event, Stream
from calibrators.records import NonNegative, Positive, PositiveCount

#: Phases that every measurement has.
_PHASES = ("latency", "enqueue", "compute")

#: How many inferences wait in the stream behind the one that runs, so that the GPU never waits for Python.
_QUEUED = 2


@dataclass(frozen=True)
class Summary:
    """Times of one phase, in milliseconds."""

    min: NonNegative
    max: NonNegative
    mean: NonNegative
    median: NonNegative
    p90: NonNegative
    p95: NonNegative
    p99: NonNegative


@dataclass(frozen=True)
class BenchReport:
    """What was measured of one engine.

    Attributes:
        name: What to call it.
        batch_size: Samples an inference.
        transfers: Whether copies to and from the GPU were part of it.
        cuda_graph: Whether a CUDA graph was launched.
        inferences: How many were measured.
        seconds: How long they took together.
        phases: ``latency`` (transfers and computation), ``enqueue`` (the host's part), ``h2d``, ``compute``,
            ``d2h`` to their times; without transfers only ``latency``, ``enqueue`` and ``compute``.
    """

    name: str
    batch_size: PositiveCount
    transfers: bool
    cuda_graph: bool
    inferences: PositiveCount
    seconds: Positive
    phases: Mapping[str, Summary]

    def __post_init__(self) -> None:
        missing = [phase for phase in _PHASES if phase not in self.phases]
        if missing:
            raise ValueError(f"the phases lack `{missing[0]}`")

    @property
    def throughput(self) -> float:
        """Inferences a second."""
        return self.inferences / self.seconds

    @property
    def samples_per_second(self) -> float:
        """Samples a second."""
        return self.throughput * self.batch_size

    @property
    def warnings(self) -> tuple[str, ...]:
        """What keeps the GPU from being busy, in words."""
        found = []
        compute, enqueue = self.phases["compute"], self.phases["enqueue"]
        if enqueue.mean > compute.mean:
            advice = "use a larger batch" if self.cuda_graph else "use cuda_graph or a larger batch"
            found.append(
                f"{self.name}: the host needs {enqueue.mean:.3f} ms to enqueue what the GPU computes in "
                f"{compute.mean:.3f} ms, so it limits the throughput; {advice}"
            )
        for phase, what in (("h2d", "upload"), ("d2h", "download")):
            if phase in self.phases and self.phases[phase].median > compute.median:
                found.append(
                    f"{self.name}: the {what} takes {self.phases[phase].median:.3f} ms and the computation "
                    f"{compute.median:.3f} ms; keep the data on the GPU, or measure without transfers"
                )
        return tuple(found)


class Benchable(Protocol):
    """What is measured: an :class:`~trtint8.runtime.execution.ExecutionContext`."""

    device: Device

    @property
    def stream(self) -> Stream:
        """What everything is queued on."""
        ...

    def bind(self, feeds: Mapping[str, Any]) -> None:
        """Stages a feed."""
        ...

    def upload(self) -> None:
        """Queues the copies to the GPU."""
        ...

    def enqueue(self) -> None:
        """Queues the inference."""
        ...

    def queue_download(self) -> object:
        """Queues the copies from the GPU."""
        ...


def bench(
    context: Benchable,
    feeds: Mapping[str, NDArray[Any]],
    *,
    name: str,
    batch_size: int,
    seconds: float = 3.0,
    warm_up: float = 0.2,
    transfers: bool = True,
    cuda_graph: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> BenchReport:
    """Runs an engine again and again on one feed.

    Args:
        context: A context of the engine, used by nobody else meanwhile.
        feeds: Input name to array.
        name: What to call the engine in the report.
        batch_size: Samples in ``feeds``.
        seconds: How long to measure.
        warm_up: How long to run before, in seconds: clocks rise and kernels load.
        transfers: Copy inputs and outputs in every run; else the inputs are uploaded once.
        cuda_graph: Whether the context launches CUDA graphs, for the report.
        clock: Seconds that pass.

    Returns:
        The times.

    Raises:
        TrtInt8Error: The feed does not fit, or TensorRT fails.
    """
    with context.device.active():
        context.bind(feeds)
        context.upload()
        _run(context, warm_up, transfers, clock)
        started = clock()
        times = _run(context, seconds, transfers, clock)
        took = clock() - started
    phases = {phase: summarize(values) for phase, values in times.items()}
    inferences = len(times["enqueue"])
    return BenchReport(name, batch_size, transfers, cuda_graph, inferences, took, phases)


def summarize(milliseconds: Sequence[float] | NDArray[np.float64]) -> Summary:
    """Least, largest, mean, median and percentiles.

    A percentile is the largest value that remains when that share of the values, rounded down, is left out
    from above, as in trtexec: always a value that was measured.

    Args:
        milliseconds: At least one time.
    """
    ordered = np.sort(np.asarray(milliseconds, np.float64))
    ranked = {p: float(ordered[len(ordered) - 1 - int((100 - p) / 100 * len(ordered))]) for p in (90, 95, 99)}
    return Summary(
        float(ordered[0]),
        float(ordered[-1]),
        float(ordered.mean()),
        float(np.median(ordered)),
        ranked[90],
        ranked[95],
        ranked[99],
    )


@dataclass(frozen=True)
class _Marks:
    """Events around the phases of one inference."""

    begin: Event
    uploaded: Event
    computed: Event
    end: Event


def _run(
    context: Benchable, seconds: float, transfers: bool, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Milliseconds of each phase; at least one inference."""
    names = (*_PHASES, *(("h2d", "d2h") if transfers else ()))
    times: dict[str, list[float]] = {name: [] for name in names}
    new_event = context.device.new_event
    free = deque(_Marks(new_event(), new_event(), new_event(), new_event()) for _ in range(_QUEUED + 1))
    queued: deque[_Marks] = deque()
    started = clock()
    while True:
        marks = free.popleft()
        times["enqueue"].append(_queue(context, marks, transfers, clock))
        queued.append(marks)
        stop = clock() - started >= seconds
        while queued and (stop or not free):
            done = queued.popleft()
            _collect(done, times, transfers)
            free.append(done)
        if stop:
            return times


def _queue(context: Benchable, marks: _Marks, transfers: bool, clock: Callable[[], float]) -> float:
    """Queues one inference; returns the milliseconds that enqueuing took on the host."""
    stream = context.stream
    marks.begin.record(stream)
    if transfers:
        context.upload()
    marks.uploaded.record(stream)
    before = clock()
    context.enqueue()
    after = clock()
    marks.computed.record(stream)
    if transfers:
        context.queue_download()
    marks.end.record(stream)
    return 1e3 * (after - before)


def _collect(marks: _Marks, times: dict[str, list[float]], transfers: bool) -> None:
    marks.end.synchronize()
    compute = marks.computed.milliseconds_since(marks.uploaded)
    times["compute"].append(compute)
    if not transfers:
        times["latency"].append(compute)
        return
    times["h2d"].append(marks.uploaded.milliseconds_since(marks.begin))
    times["d2h"].append(marks.end.milliseconds_since(marks.computed))
    times["latency"].append(times["h2d"][-1] + compute + times["d2h"][-1])
