"""The search for the layers that are faster in FP16 than in INT8, by the times of compiled engines.

INT8 is not always faster: a product in INT8 may need a kernel more, which requantizes its sums. Which layers
gain depends on their neighbours, so the engine is compiled anew for everything that is tried. Layers that are
alike, as those of repeated blocks, are decided together.

There are two searches. An estimate takes a second, so that search changes one group after the other until
nothing gains. To build and time an engine takes a GPU minutes, so the other one reads from the times of the
layers of two engines where INT8 gains, and tries only what that leaves open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.checks import FilePath, warn_user
from calibrators.errors import BuildError, UnsupportedError
from calibrators.tables.table import CalibrationTable
from trtint8.auditing.audit import Estimator, EstimatorOptions
from trtint8.auditing.gpus import Gpu
from trtint8.builder.build import BuiltEngine
from trtint8.models.model import Model
from trtint8.models.shapes import StaticShapes
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph, with_float16
from trtint8.quantization.targets import TYPED
from trtint8.tuning.journal import Journal, OutOfTimeError, TimeLimit
from trtint8.tuning.measured import DeviceStopwatch, TrtexecStopwatch
from trtint8.tuning.stopwatch import Source, SpeedPlan, SpeedTrial, Stopwatch, Timing

#: The share of the time that a change has to gain: estimates are not that exact.
_LEAST_GAIN = 0.002

#: Engines that a search with measured times builds at most: a GPU takes minutes for each.
_MOST_ENGINES = 12

_Groups = Sequence[Sequence[str]]


def search_speed(
    groups: _Groups,
    stopwatch: Stopwatch,
    limit: TimeLimit,
    on_trial: Callable[[SpeedTrial], None] = lambda _trial: None,
    proposed: Collection[str] = (),
) -> SpeedPlan:
    """Decides for each group of layers whether it is in INT8 or in FP16.

    First the engines with all layers in FP16 and all in INT8 are timed, and that of a proposal.

    With estimated times, searches change one group after the other, as long as that gains: one begins with
    all layers in INT8, where neighbours gain only together, one with all layers in FP16, and one with the
    proposal. The fastest result is taken. The same estimates give the same plan.

    With measured times, at most 12 engines are built. Each group goes where its own layers are faster. What
    borders between the two types cost does not show in that, so groups are changed one by one, beginning with
    those that take long and gain little; all changes that gain are made together.

    Args:
        groups: Names of the layers that can be in INT8, in groups that are decided together.
        stopwatch: Times the engines.
        limit: How long the search may take.
        on_trial: Called with everything that is timed.
        proposed: Names of the layers in FP16 in the proposal; none where there is no proposal.

    Returns:
        The fastest choice that was found: all layers in FP16, unless another choice is faster by more than an
        estimate is exact, or beyond the intervals of both measurements.

    Raises:
        BuildError: The engine with all layers in FP16 cannot be timed.
    """
    everything = frozenset(name for group in groups for name in group)
    starts = {"all layers in FP16": everything, "all layers in INT8": frozenset[str]()}
    if kept := frozenset(proposed) & everything:
        starts["layers in FP16 by the cost of kernels"] = kept
    search = _Search(stopwatch, limit, on_trial)
    search.time(starts)
    fp16, int8 = search.known[everything], search.known[frozenset()]
    if fp16 is None:
        raise BuildError(f"the engine in FP16 cannot be timed on {stopwatch.gpu}, so nothing can be compared")
    complete, best = True, everything
    found = (
        search.climb(groups, everything, starts.values())
        if stopwatch.source == "estimated"
        else search.try_few(groups, everything, int8)
    )
    try:
        for better in found:
            best = better
    except OutOfTimeError:
        complete = False
    ordered = tuple(name for group in groups for name in group if name in best)
    times = search.timing(best).seconds, fp16.seconds, (int8 or fp16).seconds
    return SpeedPlan(stopwatch.gpu, ordered, *times, tuple(search.trials), complete, stopwatch.source)


def group_layers(graph_model: ir.Model, names: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Groups layers that are alike: of the same operator, attributes and shapes.

    The products of activations, of which attention is made, are one group: a kernel fuses them only where all
    of them have one type.

    Args:
        graph_model: A prepared model whose inputs have fixed shapes.
        names: Names of the layers.

    Returns:
        The names in groups, in the order of the graph.
    """
    groups: dict[object, list[str]] = {}
    shapes = StaticShapes(graph_model)
    for node in graph_model.graph:
        if node.name and node.name in names:
            groups.setdefault(_signature(node, shapes), []).append(node.name)
    return tuple(map(tuple, groups.values()))


class _Search:
    """The timings so far, and what was tried.

    Args:
        stopwatch: Times the engines.
        limit: How long the search may take.
        on_trial: Called with everything that is timed.
    """

    def __init__(
        self, stopwatch: Stopwatch, limit: TimeLimit, on_trial: Callable[[SpeedTrial], None]
    ) -> None:
        self._stopwatch, self._limit, self._on_trial = stopwatch, limit, on_trial
        self._is_estimated = stopwatch.source == "estimated"
        self.known: dict[frozenset[str], Timing | None] = {}
        self.trials: list[SpeedTrial] = []

    def timing(self, choice: frozenset[str]) -> Timing:
        """The timing of a choice that has one."""
        timing = self.known[choice]
        assert timing is not None
        return timing

    def time(self, choices: Mapping[str, frozenset[str]], best: frozenset[str] | None = None) -> None:
        """Times choices by what they are in words, as far as they are not timed yet.

        Args:
            choices: The choices. Of those to be measured only so many as engines are left.
            best: The choice that they have to be faster than; the fastest so far where None.
        """
        asked: dict[frozenset[str], str] = {}
        for what, kept in choices.items():
            if kept not in self.known:
                asked.setdefault(kept, what)
        if not self._is_estimated:
            asked = dict(list(asked.items())[: max(0, _MOST_ENGINES - len(self.known))])
        timings = self._stopwatch.time(list(asked)) if asked else ()
        for (kept, what), timing in zip(asked.items(), timings, strict=True):
            before = self.fastest() if best is None else best
            self.known[kept] = timing
            if timing is not None:
                taken = before is None or self._gains(kept, before)
                ends = () if self._is_estimated else (timing.least, timing.most, timing.note)
                trial = SpeedTrial(what, timing.seconds, taken, len(kept), *ends)
                self.trials.append(trial)
                self._on_trial(trial)

    def fastest(self, than: Timing | None = None) -> frozenset[str] | None:
        """The fastest choice; None where there is none, or none that is faster than a timing for certain."""
        timed = [(timing.seconds, kept) for kept, timing in self.known.items() if timing is not None]
        if than is not None:
            timed = [(seconds, kept) for seconds, kept in timed if self.timing(kept).is_faster_than(than)]
        return min(timed, key=lambda one: (one[0], sorted(one[1])))[1] if timed else None

    def climb(
        self, groups: _Groups, fp16: frozenset[str], starts: Iterable[frozenset[str]]
    ) -> Iterator[frozenset[str]]:
        """Changes one group after the other, from several starts; yields what is better than all before.

        Raises:
            OutOfTimeError: The search has taken as long as it may.
        """
        ordered = sorted(starts, key=lambda start: self.timing(start).seconds)
        # With times that are nearly equal FP16 is better, because it is more accurate.
        best = ordered[0] if self._gains(ordered[0], fp16) else fp16
        yield best
        for start in ordered:
            for found in self._changed(groups, start):
                if self._gains(found, best):
                    best = found
                    yield best

    def _changed(self, groups: _Groups, kept: frozenset[str]) -> Iterator[frozenset[str]]:
        """Changes one group after the other, until a round changes none; yields what gains."""
        changed = True
        while changed:
            changed = False
            for group in groups:
                for other in (kept.difference(group), kept.union(group)):
                    if other == kept:
                        continue
                    self._limit.check()
                    self.time({_describe(group, other): other}, kept)
                    if self._gains(other, kept):
                        kept, changed = other, True
                        yield kept

    def _gains(self, choice: frozenset[str], best: frozenset[str]) -> bool:
        share = 1 - _LEAST_GAIN if self._is_estimated else 1.0
        return self.timing(choice).seconds < share * self.timing(best).seconds

    def try_few(self, groups: _Groups, fp16: frozenset[str], int8: Timing | None) -> Iterator[frozenset[str]]:
        """Measures few engines; yields the best choice after each round.

        Raises:
            OutOfTimeError: The search has taken as long as it may.
        """
        half = self.timing(fp16)
        base = _own_choice(groups, half, int8) or self.fastest()
        order = _by_doubt(groups, half, int8)
        while True:
            best = self.fastest(than=half)
            yield fp16 if best is None else best
            if base is None:
                return
            self._limit.check()
            base = self._change_all(base, order)

    def _change_all(self, base: frozenset[str], order: _Groups) -> frozenset[str] | None:
        """Changes the groups of a choice one by one, and then all together that gain.

        Args:
            base: Where changes begin.
            order: The groups, in the order in which they are tried.

        Returns:
            What to change next; None where nothing gains any more, or no engine is left.
        """
        changes = {_describe(group, base.symmetric_difference(group)): group for group in order}
        changed = {what: base.symmetric_difference(group) for what, group in changes.items()}
        untried = [(what, kept) for what, kept in changed.items() if kept not in self.known]
        # The last engine is for all changes together.
        left = max(1, _MOST_ENGINES - len(self.known) - (base not in self.known) - 1)
        self.time({"each layer where it is faster by itself": base} | dict(untried[:left]))
        begun = self.known.get(base)
        if begun is None:
            return None
        together = base
        for what, kept in changed.items():
            timing = self.known.get(kept)
            if timing is not None and timing.is_faster_than(begun):
                together = together.symmetric_difference(changes[what])
        self.time({"all changes that gained": together})
        fastest = self.fastest()
        exhausted = len(self.known) >= _MOST_ENGINES or (fastest == base and len(untried) <= left)
        return None if exhausted else fastest


def _describe(group: Sequence[str], kept: frozenset[str]) -> str:
    alike = f" and {len(group) - 1} like it" if len(group) > 1 else ""
    return f"'{group[0]}'{alike} in {'FP16' if group[0] in kept else 'INT8'}"


def _signature(node: ir.Node, shapes: StaticShapes) -> object:
    """What layers have in common that are decided together."""
    operands = node.inputs[:2]
    if node.op_type == "MatMul" and all(
        value is not None and value.const_value is None for value in operands
    ):
        return "products of activations"
    attributes = tuple(sorted((name, repr(attribute.value)) for name, attribute in node.attributes.items()))
    return node.op_type, attributes, *(shapes.of(value) for value in operands)


def _own_choice(groups: _Groups, fp16: Timing, int8: Timing | None) -> frozenset[str] | None:
    """The layers that take no longer in FP16 by themselves; None where that was not timed."""
    if int8 is None or not fp16.layers or not int8.layers:
        return None
    slower = (group for group in groups if _own_seconds(fp16, group) <= _own_seconds(int8, group))
    return frozenset(name for group in slower for name in group)


def _by_doubt(groups: _Groups, fp16: Timing, int8: Timing | None) -> _Groups:
    """The groups, first those that take long and gain or lose little: borders decide there."""

    def doubt(group: Sequence[str]) -> float:
        times = [_own_seconds(timing, group) for timing in (fp16, int8) if timing is not None]
        return sum(times) / len(times) - 2 * (max(times) - min(times))

    return sorted(groups, key=doubt, reverse=True)


def _own_seconds(timing: Timing, group: Sequence[str]) -> float:
    return sum(timing.layers.get(name, 0.0) for name in group)


@dataclass(frozen=True)
class SpeedGoal:
    """What engines are to be fast on.

    Attributes:
        gpu: The GPU that times are estimated for; None where they are measured.
        options: How engines are built.
        on_trial: Called with everything that the search for speed tries.
        folder: Where the models are written that another machine times; None where this one measures.
        machine: What the GPU of the other machine is to be, as a part of its name; any one where None.
    """

    gpu: Gpu | None
    options: EstimatorOptions
    on_trial: Callable[[SpeedTrial], None] = lambda _trial: None
    folder: FilePath | None = None
    machine: str | None = None

    @property
    def name(self) -> str:
        """Where engines are to be fast: what tells a search from others."""
        if self.gpu is not None:
            return self.gpu.name
        return "here" if self.folder is None else "there"


class SpeedPlanner:
    """Estimates or times engines of one model, and plans which layers stay in FP16.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`; not changed.
        table: The model's calibration table.
        goal: What engines are to be fast on.
        journal: Keeps the estimates, so that an interrupted search can be continued.

    Raises:
        BuildError: The profile does not fit the model.
        UnsupportedError: TensorRT is not installed.
    """

    def __init__(self, prepared: Model, table: CalibrationTable, goal: SpeedGoal, journal: Journal) -> None:
        self._table, self._goal, self._journal = table, goal, journal
        sizes = table.provenance.input_sizes
        self._builder = Estimator.open(prepared, sizes, goal.gpu, goal.options)
        if goal.gpu is not None and self._builder.of_another_gpu:
            warn_user(self._builder.reservation)
        self._target, self._shapes = self._builder.quantization_target, self._builder.shapes
        #: What estimated times depend on beside the layers, the model and its table.
        self._circumstances = repr(
            (self._builder.flavor, goal.gpu, sorted(self._shapes.items()), goal.options.build)
        )
        graph_model = self._builder.model.graph_model
        #: Names of the layers that can be in INT8.
        self.layers = place(graph_model, target=self._target, largest=self._shapes).quantized_nodes
        #: Names of the layers that are left in FP16 without a search.
        self._slower = place(graph_model, target=self._target, largest=self._shapes, float16=True).slower

    def search(self, limit: TimeLimit) -> SpeedPlan:
        """Searches for the fastest choice of layers, which may be all of them in FP16.

        Args:
            limit: How long the search may take.

        Raises:
            BuildError: TensorRT refuses the model.
            GpuUnavailableError: Times are to be measured, and there is no usable GPU.
            OutputError: The journal cannot be written.
            UnsupportedError: This TensorRT does not list the layers of its engines.
        """
        groups = group_layers(self._builder.model.graph_model, self.layers)
        with self._opened_stopwatch() as stopwatch:
            return search_speed(groups, stopwatch, limit, self._goal.on_trial, self._slower)

    def plan(self, limit: TimeLimit) -> SpeedPlan:
        """Searches for the fastest choice of layers, some of which are in INT8.

        Args:
            limit: How long the search may take.

        Raises:
            BuildError: TensorRT refuses the model.
            OutputError: The journal cannot be written.
            UnsupportedError: No layer is estimated to be faster in INT8, or this TensorRT does not list the
                layers of its engines.
        """
        plan = self.search(limit)
        if len(plan.keep_float) == len(self.layers):
            if plan.complete:
                self._journal.remove()
            fp16, int8 = (f"{1e3 * seconds:.3g} ms" for seconds in (plan.fp16_seconds, plan.int8_seconds))
            instead = "build it in FP16"
            if plan.source == "estimated" and self._builder.of_another_gpu:
                instead = "the full TensorRT may make it faster there: time it with trtexec on the device"
            raise UnsupportedError(
                f"no layer is {'found' if plan.source != 'estimated' else 'estimated'} to be faster in INT8 "
                f"than in FP16 on {plan.gpu}, where the network takes {fp16} in FP16 and {int8} in INT8; "
                f"{instead}"
            )
        return plan

    def completed(self, plan: SpeedPlan, keep_float: Sequence[str]) -> SpeedPlan:
        """A plan with the layers that stay in float in the end, for accuracy as well.

        Args:
            plan: From :meth:`plan`.
            keep_float: Names of the layers that stay in float.

        Returns:
            The plan with the time of that engine. One that was measured is measured once more, beside FP16.

        Raises:
            TrtInt8Error: See :meth:`search`.
        """
        kept = frozenset(keep_float) & frozenset(self.layers)
        if plan.source != "measured here" and tuple(keep_float) == plan.keep_float:
            return plan  # to time it again tells nothing new, or takes another journey
        with self._opened_stopwatch(once_more=True) as stopwatch:
            fp16, tuned = stopwatch.time([frozenset(self.layers), kept])
        if fp16 is None or tuned is None:
            raise BuildError(f"the engine that was found cannot be timed again on {plan.gpu}; tune once more")
        if plan.source != "estimated" and not tuned.is_faster_than(fp16):
            warn_user(
                f"with {len(kept)} of {len(self.layers)} layers in FP16 the engine takes "
                f"{1e3 * tuned.seconds:.3g} ms on {plan.gpu} and all in FP16 {1e3 * fp16.seconds:.3g} ms, "
                "which is no gain; build the model in FP16",
                note=True,
            )
        return dataclasses.replace(
            plan, keep_float=tuple(keep_float), seconds=tuned.seconds, fp16_seconds=fp16.seconds
        )

    def _estimate(self, kept: frozenset[str]) -> float:
        """The estimated time of an engine with some layers in FP16, in seconds: halfway between the two ends.

        Raises:
            UnsupportedError: The builder does not list all shapes and types.
        """
        precision, graph_model = self._typed(kept)
        ends = self._builder.estimate(precision, graph_model, self._table.peaks, fp16=True).ends
        if not ends:
            raise UnsupportedError(
                "the time of an engine cannot be estimated, because the builder does not list the shapes and "
                "types of all tensors"
            )
        return sum(ends) / len(ends)

    def _key(self, kept: Collection[str]) -> str:
        """What the time of an engine is kept under."""
        identity = "\0".join([self._circumstances, *sorted(kept)])
        return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:16]

    def _typed(self, kept: Collection[str]) -> tuple[str, ir.Model]:
        """The model with some layers in FP16 and pairs at all others, and what to call its types."""
        if len(kept) == len(self.layers):
            return "FP16", self._builder.model.graph_model
        asked = QuantizeOptions(sorted(kept), target=self._target)
        graph_model, _ = quantize_graph(self._builder.model, self._table, asked, largest=self._shapes)
        return "INT8+FP16", graph_model

    def _build(self, kept: frozenset[str]) -> BuiltEngine:
        return self._builder.build(*self._typed(kept), self._table.peaks, fp16=True)

    def _models(self, kept: frozenset[str]) -> tuple[ir.Model, ir.Model]:
        """The model for a TensorRT that chooses types, and with types in the graph."""
        _, graph_model = self._typed(kept)
        peaks, name = self._table.peaks, self._builder.model.name
        typed, _ = with_float16(graph_model, TYPED, float32_io=True, peaks=peaks, name=name)
        return graph_model, typed

    @contextlib.contextmanager
    def _opened_stopwatch(self, *, once_more: bool = False) -> Iterator[Stopwatch]:
        """The stopwatch, which asks the journal first; where engines are measured once more, it does not."""
        if self._goal.gpu is not None:
            estimates = _Estimates(self._goal.gpu.name, self._estimate)
            yield _Remembered(estimates, self._journal, self._key)
            return
        if self._goal.folder is not None:
            # The files of another machine are a memory of their own, and belong to one of its processors.
            identity = [self._builder.model.fingerprint, self._table.fingerprint, self._key(())]
            yield TrtexecStopwatch(
                self._goal.folder,
                " ".join(identity),
                self._models,
                self.layers,
                self._key,
                frozenset(self.layers),
                self._goal.machine,
            )
            return
        stopwatch = DeviceStopwatch(self._build, self.layers, self._goal.options.build.device)
        try:
            yield stopwatch if once_more else _Remembered(stopwatch, self._journal, self._key)
        finally:
            stopwatch.close()


@dataclass
class _Estimates:
    """A stopwatch that estimates times, which have no intervals."""

    gpu: str
    estimate: Callable[[frozenset[str]], float]
    source: Source = "estimated"

    def time(self, choices: Sequence[frozenset[str]]) -> Iterator[Timing]:
        return (Timing(seconds, seconds, seconds) for seconds in map(self.estimate, choices))


@dataclass
class _Remembered:
    """A stopwatch that asks a journal first.

    Attributes:
        stopwatch: Times what the journal does not have.
        journal: Keeps the times.
        key: What the time of a choice is kept under, beside the GPU.
    """

    stopwatch: Stopwatch
    journal: Journal
    key: Callable[[Collection[str]], str]

    @property
    def source(self) -> Source:
        return self.stopwatch.source

    @property
    def gpu(self) -> str:
        return self.stopwatch.gpu

    def time(self, choices: Sequence[frozenset[str]]) -> list[Timing | None]:
        keys = [f"{self.key(kept)} {self.gpu}" for kept in choices]
        missing = [kept for key, kept in zip(keys, choices, strict=True) if key not in self.journal.timings]
        for kept, timing in zip(missing, self.stopwatch.time(missing), strict=True):
            self.journal.add_timing(f"{self.key(kept)} {self.gpu}", timing)
        return [self.journal.timings[key] for key in keys]
