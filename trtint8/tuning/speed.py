"""The search for the layers that are faster in FP16 than in INT8, by the estimated times of compiled engines.

INT8 is not always faster: a product in INT8 may need a kernel more, which requantizes its sums. Which layers
gain depends on their neighbours, so the engine is compiled anew for everything that is tried. Layers that are
alike, as those of repeated blocks, are decided together.

Plans which layers stay in FP16 because INT8 is slower there, with engines that TensorRT compiles.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from calibrators.checks import warn_user
from calibrators.errors import UnsupportedError
from calibrators.records import Count, Positive
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import title_of
from trtint8.auditing.estimator import Estimator, EstimatorOptions
from trtint8.auditing.gpus import Gpu
from trtint8.models.model import Model
from trtint8.models.shapes import StaticShapes
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph
from trtint8.tuning.journal import Journal, OutOfTimeError, TimeLimit

#: The share of the time that a change has to gain: estimates are not that exact.
_LEAST_GAIN = 0.002

#: Where a time comes from: the kernels of a compiled engine, the GPU of this machine, or another GPU.
Source = Literal["estimated", "measured here", "measured there"]

#: Estimates the time of an engine, in seconds, from the names of the layers that are in float.
Estimate = Callable[[frozenset[str]], float]


@dataclass(frozen=True)
class SpeedTrial:
    """A choice of layers that the search tried.

    Attributes:
        what: What was tried, in words.
        seconds: The estimated time of the engine, in seconds.
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
    """Which layers stay in FP16 because INT8 is estimated to be slower there.

    Attributes:
        gpu: The GPU that times are estimated for.
        keep_float: Names of the layers that stay in FP16, in the order of the graph.
        seconds: The estimated time of the engine, in seconds.
        fp16_seconds: The estimated time with all layers in FP16, in seconds.
        int8_seconds: The estimated time with all layers in INT8 that can be, in seconds.
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


def search_speed(
    groups: Sequence[Sequence[str]],
    estimate: Estimate,
    gpu: str,
    limit: TimeLimit,
    on_trial: Callable[[SpeedTrial], None] = lambda _trial: None,
    proposed: Collection[str] = (),
) -> SpeedPlan:
    """Decides for each group of layers whether it is in INT8 or in FP16.

    Searches change one group after the other, as long as that gains: one begins with all layers in INT8,
    where neighbours gain only together, one with all layers in FP16, and one with a proposal. The fastest
    result is taken. What was estimated once is not estimated again, and the same estimates give the same
    plan.

    Args:
        groups: Names of the layers that can be in INT8, in groups that are decided together.
        estimate: Estimates the time of an engine from the names of the layers in FP16.
        gpu: The GPU that times are estimated for.
        limit: How long the search may take.
        on_trial: Called with everything that is tried.
        proposed: Names of the layers in FP16 in the proposal; none where there is no proposal.

    Returns:
        The fastest choice that was found, which is never slower than all layers in FP16.
    """
    search = _Search(groups, estimate, limit, on_trial)
    everything = frozenset(name for group in groups for name in group)
    fp16 = search.try_out("all layers in FP16", everything)
    int8 = search.try_out("all layers in INT8", frozenset(), fp16)
    starts = [(everything, fp16), (frozenset[str](), int8)]
    if proposed:
        kept = frozenset(proposed) & everything
        starts.append((kept, search.try_out("layers in FP16 by the cost of kernels", kept, min(fp16, int8))))
    starts.sort(key=lambda one: one[1])
    # With times that are nearly equal FP16 is better, because it is more accurate.
    best, complete = (starts[0] if _gains(starts[0][1], fp16) else (everything, fp16)), True
    try:
        for start in starts:
            for found in search.improve(*start):
                if _gains(found[1], best[1]):
                    best = found
    except OutOfTimeError:
        complete = False
    kept, seconds = best
    ordered = tuple(name for group in groups for name in group if name in kept)
    return SpeedPlan(gpu, ordered, seconds, fp16, int8, tuple(search.trials), complete)


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
    """What both searches share.

    Args:
        groups: Names of layers, in groups that are decided together.
        estimate: Estimates the time of an engine from the names of the layers in FP16.
        limit: How long the search may take.
        on_trial: Called with everything that is tried.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[str]],
        estimate: Estimate,
        limit: TimeLimit,
        on_trial: Callable[[SpeedTrial], None],
    ) -> None:
        self._groups, self._estimate, self._limit, self._on_trial = groups, estimate, limit, on_trial
        self._known: dict[frozenset[str], float] = {}
        self.trials: list[SpeedTrial] = []

    def try_out(self, what: str, kept: frozenset[str], best: float = float("inf")) -> float:
        """The estimated time with some layers in FP16; it is taken where it gains on ``best``."""
        if kept not in self._known:
            self._known[kept] = self._estimate(kept)
            seconds = self._known[kept]
            trial = SpeedTrial(what, seconds, _gains(seconds, best), len(kept))
            self.trials.append(trial)
            self._on_trial(trial)
        return self._known[kept]

    def improve(self, kept: frozenset[str], best: float) -> Iterator[tuple[frozenset[str], float]]:
        """Changes one group after the other, until a round changes none; yields what gains.

        Raises:
            OutOfTimeError: The search has taken as long as it may.
        """
        changed = True
        while changed:
            changed = False
            for group in self._groups:
                for other in (kept.difference(group), kept.union(group)):
                    if other == kept:
                        continue
                    self._limit.check()
                    seconds = self.try_out(_describe(group, other), other, best)
                    if _gains(seconds, best):
                        kept, best, changed = other, seconds, True
                        yield kept, best


def _gains(seconds: float, best: float) -> bool:
    return seconds < (1 - _LEAST_GAIN) * best


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


@dataclass(frozen=True)
class SpeedGoal:
    """What engines are to be fast on.

    Attributes:
        gpu: The GPU that times are estimated for.
        options: How engines are built for the estimates.
        on_trial: Called with everything that the search for speed tries.
    """

    gpu: Gpu
    options: EstimatorOptions
    on_trial: Callable[[SpeedTrial], None] = lambda _trial: None


class SpeedPlanner:
    """Estimates engines of one model, and plans which layers stay in FP16.

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
        self._estimator = Estimator.open(prepared, table.provenance.input_sizes, goal.gpu, goal.options)
        if self._estimator.of_another_gpu:
            builder, gpu = title_of(self._estimator.flavor.name), goal.gpu
            warn_user(
                f"{builder} runs no INT8 on {gpu.name}, of compute capability {gpu.compute_capability}: "
                f"times are estimated from its graphs for {self._estimator.compute_capability}, and another "
                "TensorRT may gain more from INT8 there"
            )
        self._target, self._shapes = self._estimator.quantization_target, self._estimator.shapes
        #: What estimated times depend on beside the layers, the model and its table.
        self._circumstances = repr(
            (self._estimator.flavor, goal.gpu, sorted(self._shapes.items()), goal.options.build)
        )
        graph_model = self._estimator.model.graph_model
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
            OutputError: The journal cannot be written.
            UnsupportedError: This TensorRT does not list the layers of its engines.
        """
        groups = group_layers(self._estimator.model.graph_model, self.layers)
        name, on_trial = self._goal.gpu.name, self._goal.on_trial
        return search_speed(groups, self.estimate, name, limit, on_trial, self._slower)

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
            fp16, int8 = (f"{1e3 * seconds:.3g} ms" for seconds in (plan.fp16_seconds, plan.int8_seconds))
            raise UnsupportedError(
                f"no layer is estimated to be faster in INT8 than in FP16 on {plan.gpu}, where the network "
                f"takes {fp16} in FP16 and {int8} in INT8; build it in FP16"
            )
        return plan

    def completed(self, plan: SpeedPlan, keep_float: Sequence[str]) -> SpeedPlan:
        """A plan with the layers that stay in float in the end, for accuracy as well, and their estimate."""
        if tuple(keep_float) == plan.keep_float:
            return plan
        kept = frozenset(keep_float) & frozenset(self.layers)
        return dataclasses.replace(plan, keep_float=tuple(keep_float), seconds=self.estimate(kept))

    def estimate(self, kept: Collection[str]) -> float:
        """The estimated time of an engine with some layers in FP16, in seconds: halfway between the two ends.

        Raises:
            UnsupportedError: The builder does not list all shapes and types.
        """
        identity = "\0".join([self._circumstances, *sorted(kept)])
        key = hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:16]
        known = self._journal.estimates.get(key)
        if known is not None:
            return known
        graph_model, peaks = self._estimator.model.graph_model, self._table.peaks
        precision = "FP16"
        if len(kept) < len(self.layers):
            precision = "INT8+FP16"
            graph_model, _ = quantize_graph(
                self._estimator.model,
                self._table,
                QuantizeOptions(sorted(kept), target=self._target),
                largest=self._shapes,
            )
        ends = self._estimator.estimate(precision, graph_model, peaks, fp16=True).ends
        if not ends:
            raise UnsupportedError(
                "the time of an engine cannot be estimated, because the builder does not list the shapes and "
                "types of all tensors"
            )
        seconds = sum(ends) / len(ends)
        self._journal.add_estimate(key, seconds)
        return seconds
