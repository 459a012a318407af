"""What engines take, measured or estimated, and the search that needs few of them.

A stopwatch gives the times of engines of one model that differ in the layers that are in FP16. There are
three: an estimate of compiled engines (:mod:`trtint8.tuning.speed`), the GPU of this machine, and ``trtexec``
on another one. To build and time an engine takes a GPU minutes, so this search asks for few: where layers
gain is read from the times of the layers of two engines, and only what that leaves open is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from calibrators.errors import BuildError
from calibrators.records import NonNegative, Positive
from trtint8.tuning.journal import OutOfTimeError, TimeLimit
from trtint8.tuning.speed import Source, SpeedPlan, SpeedTrial

#: Engines that a search builds at most.
MOST_ENGINES = 12


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
    """Times engines.

    Attributes:
        source: Where its times come from.
        gpu: The name of the GPU.
    """

    source: Source
    gpu: str

    def time(self, choices: Sequence[frozenset[str]]) -> Sequence[Timing | None]:
        """Times the engines of some choices.

        Args:
            choices: Names of the layers in FP16, of one choice after the other.

        Returns:
            One timing per choice; None where its engine cannot be built or run.
        """
        ...


def search_measured(
    groups: Sequence[Sequence[str]],
    stopwatch: Stopwatch,
    limit: TimeLimit,
    on_trial: Callable[[SpeedTrial], None] = lambda _trial: None,
    proposed: Collection[str] = (),
) -> SpeedPlan:
    """Decides for each group of layers whether it is in INT8 or in FP16, with at most 12 engines.

    First the engines with all layers in FP16 and all in INT8 are timed, layer by layer, and that of a
    proposal. Each group goes where its own layers are faster. What borders between the two types cost does
    not show in that, so groups are changed one by one, beginning with those that take long and gain little;
    all changes that gain are made together.

    Args:
        groups: Names of the layers that can be in INT8, in groups that are decided together.
        stopwatch: Times the engines.
        limit: How long the search may take.
        on_trial: Called with everything that is timed.
        proposed: Names of the layers in FP16 in the proposal; none where there is no proposal.

    Returns:
        The fastest choice that was timed: all layers in FP16, unless another choice is faster beyond the
        intervals of both.

    Raises:
        BuildError: The engine with all layers in FP16 cannot be timed.
    """
    search = _Search(stopwatch, on_trial)
    everything = frozenset(name for group in groups for name in group)
    starts = {"all layers in FP16": everything, "all layers in INT8": frozenset[str]()}
    if kept := frozenset(proposed) & everything:
        starts["layers in FP16 by the cost of kernels"] = kept
    search.time(starts)
    fp16, int8 = search.known[everything], search.known[frozenset()]
    if fp16 is None:
        raise BuildError(f"the engine in FP16 cannot be timed on {stopwatch.gpu}, so nothing can be compared")
    complete = True
    try:
        limit.check()
        order = _by_doubt(groups, fp16, int8)
        base = _own_choice(groups, fp16, int8) or search.fastest()
        while base is not None:
            base = search.improve(base, order)
            limit.check()
    except OutOfTimeError:
        complete = False
    best = search.fastest(than=fp16)
    kept, timing = (everything, fp16) if best is None else (best, search.timing(best))
    ordered = tuple(name for group in groups for name in group if name in kept)
    return SpeedPlan(
        stopwatch.gpu,
        ordered,
        timing.seconds,
        fp16.seconds,
        (int8 or fp16).seconds,
        tuple(search.trials),
        complete,
        stopwatch.source,
    )


class _Search:
    """The timings so far."""

    def __init__(self, stopwatch: Stopwatch, on_trial: Callable[[SpeedTrial], None]) -> None:
        self._stopwatch, self._on_trial = stopwatch, on_trial
        self.known: dict[frozenset[str], Timing | None] = {}
        self.trials: list[SpeedTrial] = []

    def timing(self, choice: frozenset[str]) -> Timing:
        """The timing of a choice that has one."""
        timing = self.known[choice]
        assert timing is not None
        return timing

    def time(self, choices: Mapping[str, frozenset[str]]) -> None:
        """Times choices by what they are in words, as far as they are not timed yet and engines are left."""
        asked = {kept: what for what, kept in choices.items() if kept not in self.known}
        asked = dict(list(asked.items())[: max(0, MOST_ENGINES - len(self.known))])
        timings = self._stopwatch.time(list(asked)) if asked else ()
        for (kept, what), timing in zip(asked.items(), timings, strict=True):
            before = self.fastest()
            self.known[kept] = timing
            if timing is not None:
                taken = self.fastest() != before
                trial = SpeedTrial(what, timing.seconds, taken, len(kept), timing.least, timing.most)
                self.trials.append(trial)
                self._on_trial(trial)

    def fastest(self, than: Timing | None = None) -> frozenset[str] | None:
        """The fastest choice; None where there is none, or none that is faster than a timing for certain."""
        timed = [(timing.seconds, kept) for kept, timing in self.known.items() if timing is not None]
        if than is not None:
            timed = [(seconds, kept) for seconds, kept in timed if self.timing(kept).is_faster_than(than)]
        return min(timed, key=lambda one: (one[0], sorted(one[1])))[1] if timed else None

    def improve(self, base: frozenset[str], order: Iterable[frozenset[str]]) -> frozenset[str] | None:
        """Changes the groups of a choice one by one, and then all together that gain.

        Args:
            base: Where changes begin.
            order: The groups, in the order in which they are tried.

        Returns:
            What to change next; None where nothing gains any more, or no engine is left.
        """
        changes = {group: base ^ group for group in order}
        untried = {what: kept for what, kept in _described(changes) if kept not in self.known}
        # The last engine is for all changes together.
        left = MOST_ENGINES - len(self.known) - (base not in self.known) - 1
        self.time(
            {"each layer where it is faster by itself": base} | dict(list(untried.items())[: max(left, 1)])
        )
        begun = self.known.get(base)
        if begun is None:
            return None
        together = base
        for group, kept in changes.items():
            timing = self.known.get(kept)
            if timing is not None and timing.is_faster_than(begun):
                together ^= group
        self.time({"all changes that gained": together})
        fastest = self.fastest()
        exhausted = len(self.known) >= MOST_ENGINES or (fastest == base and len(untried) <= max(left, 1))
        return None if exhausted else fastest


def _own_choice(groups: Sequence[Sequence[str]], fp16: Timing, int8: Timing | None) -> frozenset[str] | None:
    """The layers that take no longer in FP16 by themselves; None where that was not timed."""
    if int8 is None or not fp16.layers or not int8.layers:
        return None
    slower = (group for group in groups if _seconds(fp16, group) <= _seconds(int8, group))
    return frozenset(name for group in slower for name in group)


def _by_doubt(groups: Sequence[Sequence[str]], fp16: Timing, int8: Timing | None) -> list[frozenset[str]]:
    """The groups, first those that take long and gain or lose little: borders decide there."""

    def doubt(group: Sequence[str]) -> float:
        times = [_seconds(timing, group) for timing in (fp16, int8) if timing is not None]
        return sum(times) / len(times) - 2 * (max(times) - min(times))

    return [frozenset(group) for group in sorted(groups, key=doubt, reverse=True)]


def _seconds(timing: Timing, group: Sequence[str]) -> float:
    return sum(timing.layers.get(name, 0.0) for name in group)


def _described(changes: Mapping[frozenset[str], frozenset[str]]) -> Iterable[tuple[str, frozenset[str]]]:
    for group, kept in changes.items():
        first = min(group)
        alike = f" and {len(group) - 1} like it" if len(group) > 1 else ""
        yield f"'{first}'{alike} in {'FP16' if first in kept else 'INT8'}", kept
