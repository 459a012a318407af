"""What engines take, estimated or measured: the times, what a search for speed tried, and what it found.

A stopwatch gives the times of engines of one model that differ in the layers that are in FP16. There are
three: an estimate from the kernels of compiled engines, the GPU of this machine, and ``trtexec`` on another
machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from calibrators.records import Count, NonNegative, Positive

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
        note: What else is to be known, such as the clock of the GPU.
    """

    seconds: Positive
    least: Positive
    most: Positive
    layers: Mapping[str, NonNegative] = field(default_factory=dict)
    note: str = ""

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

    def time(self, choices: Sequence[frozenset[str]]) -> Sequence[Timing | None]:
        """Times the engines of some choices.

        Args:
            choices: Names of the layers in FP16, of one choice after the other.

        Returns:
            One timing per choice; None where its engine cannot be built or run.
        """
        ...


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
    """

    what: str
    seconds: Positive
    taken: bool
    in_float: Count
    least: Positive | None = None
    most: Positive | None = None


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
