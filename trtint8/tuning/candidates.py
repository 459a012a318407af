"""What the search tries: a float model, its table and what stays in float; and what INT8 makes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model, runnable
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.qdq import insert_qdq
from trtint8.tuning.methods import with_methods
from trtint8.validation.accuracy import VALIDATED, Accuracy, Runner, ValidatedModel, onnx_runner
from trtint8.validation.comparison import compare
from trtint8.validation.metrics import Metric
from trtint8.validation.significance import Share


@dataclass(frozen=True)
class Candidate:
    """A way to run a network in INT8.

    Attributes:
        model: The prepared float model, with changed weights perhaps.
        table: Its ranges, with histograms where there are some.
        methods: Tensor name to calibration method; empty takes the table's ranges as they are.
        keep_float: Names of nodes that stay in float.
        remedies: What was done to the weights, in words and in order.
    """

    model: Model
    table: CalibrationTable
    methods: Mapping[str, str] = field(default_factory=dict)
    keep_float: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()

    @cached_property
    def placement(self) -> Placement:
        """Where pairs go."""
        return place(self.model.graph_model, self.keep_float)

    @cached_property
    def ranges(self) -> CalibrationTable:
        """The table with every tensor's method applied."""
        return with_methods(self.table, self.methods)

    def quantized(self) -> ir.Model:
        """The model with Q/DQ pairs."""
        graph_model = self.model.graph_model.clone()
        insert_qdq(graph_model, self.placement, self.ranges.amax)
        return graph_model


@dataclass(frozen=True)
class Score:
    """How a candidate does on the data that is tuned on.

    Attributes:
        drop: FP32's metric less the candidate's, in points for a share, else in the metric's unit; for
            agreement, the share of samples with another class.
        sqnr_db: Signal to quantization noise of all outputs, the worst of them.
    """

    drop: float
    sqnr_db: float


class Scorer:
    """Compares candidates with the float model on one set of samples.

    The float model's outputs are computed once and kept.

    Args:
        model: The float model.
        batches: The samples, which can be iterated again and again.
        metric: What counts.
    """

    def __init__(self, model: Model, batches: Batches, metric: Metric) -> None:
        self.model, self.batches, self.metric = model, batches, metric
        self._outputs: list[list[NDArray[Any]]] = []
        self._names: list[str] = []

    def score(self, candidate: Candidate) -> Score:
        """Runs a candidate on all samples."""
        accuracy = self.compare(candidate.quantized(), [self.metric, "sqnr"])
        (measure,) = accuracy.measures
        reference = 1.0 if measure.reference is None else _number(measure.reference)
        points = 100.0 if isinstance(measure.value, Share) else 1.0
        drop = points * (reference - _number(measure.value))
        return Score(drop, min(output.sqnr_db for output in accuracy.outputs))

    def compare(
        self,
        graph_model: ir.Model,
        metrics: Sequence[Metric] | None,
        others: Mapping[str, ir.Model] | None = None,
    ) -> Accuracy:
        """Compares Q/DQ models with the float model.

        Args:
            graph_model: The model that it is about.
            metrics: What to measure; the usual where None.
            others: More models, by name.
        """
        with contextlib.ExitStack() as stack:
            reference = stack.enter_context(self._reference())
            judged = []
            for name, model in {VALIDATED: graph_model, **(others or {})}.items():
                file = stack.enter_context(runnable(model))
                run, _ = onnx_runner(file, optimize=False)
                judged.append(
                    ValidatedModel(name, run, "the Q/DQ model as fake quantization in ONNX Runtime")
                )
            return compare(
                judged,
                reference,
                self._names,
                self.model.inputs,
                self.batches,
                metrics=metrics,
                progress=False,
            )

    @contextlib.contextmanager
    def _reference(self) -> Iterator[Runner]:
        """The float model, or what it gave the first time."""
        if self._outputs:
            replay = iter(self._outputs)
            yield lambda _feed: next(replay)
            return
        kept: list[list[NDArray[Any]]] = []
        with runnable(self.model.graph_model) as file:
            run, self._names = onnx_runner(file, optimize=True)

            def run_and_keep(feed: FeedDict) -> list[NDArray[Any]]:
                kept.append(run(feed))
                return kept[-1]

            yield run_and_keep
        self._outputs = kept


def _number(value: Share | float) -> float:
    return value.value if isinstance(value, Share) else value
