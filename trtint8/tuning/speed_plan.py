"""Plans which layers stay in FP16 because INT8 is slower there, with engines that TensorRT compiles."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from calibrators.errors import UnsupportedError
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import title_of
from calibrators.user_warnings import warn_user
from trtint8.auditing.estimator import Estimator, EstimatorOptions
from trtint8.auditing.gpus import Gpu
from trtint8.models.model import Model
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph
from trtint8.tuning.journal import Journal
from trtint8.tuning.speed import SpeedPlan, SpeedTrial, group_layers, search_speed
from trtint8.tuning.time_limit import TimeLimit


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
        """The estimated time of an engine with some layers in FP16, in seconds.

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
        seconds = self._estimator.estimate(precision, graph_model, peaks, fp16=True).seconds
        if not seconds:
            raise UnsupportedError(
                "the time of an engine cannot be estimated, because the builder does not list the shapes and "
                "types of all tensors"
            )
        self._journal.add_estimate(key, seconds)
        return seconds
