"""What engines take, estimated or measured: the times, what a search for speed tried, and what it found.

A stopwatch gives the times of engines of one model that differ in the layers that are in FP16. There are
three: an estimate from the kernels of compiled engines, the GPU of this machine, and ``trtexec`` on another
machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from calibrators.records import Count, NonNegative, Positive, Result

#: Where a time comes from: the kernels of a compiled engine, the GPU of this machine, or another GPU.
Source = Literal["estimated", "measured here", "measured there"]


@dataclass(frozen=True)
class Timing:
    """How long an engine takes.

    Attributes:
        seconds: The median, in seconds.
        least: The lower end of its 95 % interval, in seconds.
        most: The upper end.
        layers: Name of each ONNX node to the seconds that the layers of the engine take that compute it;
            empty where the layers were not timed.
        note: The clocks of the GPU, like "1410 MHz, memory 1215 MHz"; empty where they are not known.
    """

    seconds: Positive
    least: Positive
    most: Positive
    layers: Mapping[str, NonNegative] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of(cls, times: Iterable[float], end: int, layers: Mapping[str, float], note: str) -> Timing:
        """The timing of an engine that was timed several times.

        Args:
            times: The seconds of every time.
            end: How many of them lie beyond either end of the interval.
            layers: Name of each ONNX node to its seconds.
            note: The clocks of the GPU.
        """
        ordered = sorted(times)
        return cls(statistics.median(ordered), ordered[end], ordered[-1 - end], layers, note)

    def is_faster_than(self, other: Timing) -> bool:
        """Whether it is faster beyond both intervals."""
        return self.most < other.least


class Stopwatch(Protocol):
    """Times engines."""

    @property
    def source(self) -> Source:
        """Where its times come from."""
        ...

    @property
    def gpu(self) -> str:
        """The name of the GPU."""
        ...

    def time(self, choices: Sequence[frozenset[str]]) -> Iterable[Timing | None]:
        """Times the engines of some choices.

        Args:
            choices: Names of the layers in FP16, of one choice after the other.

        Returns:
            One timing per choice; None where its engine cannot be built or run.
        """
        ...


@dataclass(frozen=True)
class Expectation(Result):
    """How long an engine that was built takes, beside the same network in FP16.

    Attributes:
        gpu: The GPU that it is estimated for, or was measured on.
        source: Where the times come from.
        shapes: Name of each input to its dimensions.
        seconds: Both ends of the time of an inference: for an estimate with all bytes from memory and with
            what fits from the L2 cache, for a measurement those of the 95 % interval.
        fp16_seconds: The same of the network in FP16; None where that was not built.
    """

    _also_in_json: ClassVar[tuple[str, ...]] = ("of_fp16",)

    gpu: str
    source: Source
    shapes: Mapping[str, tuple[int, ...]]
    seconds: tuple[Positive, Positive]
    fp16_seconds: tuple[Positive, Positive] | None = None

    @property
    def of_fp16(self) -> tuple[float, float] | None:
        """The time as a share of FP16's, from the faster to the slower end; None where that is not known."""
        if self.fp16_seconds is None:
            return None
        first, second = (one / other for one, other in zip(self.seconds, self.fp16_seconds, strict=True))
        return min(first, second), max(first, second)

    @property
    def is_slower(self) -> bool:
        """True if the engine takes longer than FP16 at both ends."""
        return self.of_fp16 is not None and self.of_fp16[0] > 1

    @property
    def sentence(self) -> str:
        """What to expect, in words and without a full stop."""
        sizes = ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in self.shapes.items())
        share = "" if self.of_fp16 is None else f"{_span(self.of_fp16, '.2f')} of FP16's time, "
        beside = ""
        if self.fp16_seconds is not None:
            beside = f" beside {_span([1e3 * end for end in self.fp16_seconds])} ms"
        taken = f"{_span([1e3 * end for end in self.seconds])} ms{beside}"
        return f"{self.gpu}, {sizes}: expect {share}{self.source} {taken}"


def _span(ends: Iterable[float], form: str = ".3g") -> str:
    """Two ends from the smaller to the larger one; one number where they read the same."""
    return " to ".join(dict.fromkeys(format(end, form) for end in sorted(ends)))


@dataclass(frozen=True)
class SpeedTrial:
    """A choice of layers that the search tried.

    Attributes:
        what: What was tried, in words.
        seconds: The time of the engine, in seconds.
        taken: Whether the search continued from it.
        in_float: The number of layers in FP16.
        least: The lower end of the 95 % interval of a time that was measured; None for an estimate.
        most: The upper end.
        note: The clocks of the GPU behind a measurement; empty where they are not known.
    """

    what: str
    seconds: Positive
    taken: bool
    in_float: Count
    least: Positive | None = None
    most: Positive | None = None
    note: str = ""


@dataclass(frozen=True)
class SpeedPlan:
    """Which layers stay in FP16 because INT8 is slower there.

    Attributes:
        gpu: The GPU that times are estimated for, or measured on.
        keep_float: Names of the layers that stay in FP16, in the order of the graph.
        seconds: The time of the engine, in seconds.
        fp16_seconds: The time with all layers in FP16, in seconds.
        int8_seconds: The time with all layers in INT8 that can be, in seconds.
        trials: What the search tried, in order.
        complete: Whether the search ended by itself; False where the time was over.
        source: Where the times come from.
    """

    gpu: str
    keep_float: tuple[str, ...]
    seconds: Positive
    fp16_seconds: Positive
    int8_seconds: Positive
    trials: tuple[SpeedTrial, ...]
    complete: bool
    source: Source = "estimated"
