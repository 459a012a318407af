"""Candidates of the search, which are ways to quantize a network: their scores, and what was tried.

Leaving layers in float costs their share of the network's arithmetic.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import msgspec
import onnx_ir as ir

from calibrators.data.batches import Batches
from calibrators.data.feeds import Array, FeedDict
from calibrators.data.samples import SampleSizes
from calibrators.errors import CalibrationDataError, enumerated, titled
from calibrators.progress import VALIDATING
from calibrators.records import Count, NonNegative
from calibrators.tables.table import CalibrationTable
from trtint8.arithmetic.simulation import IntegerRuns, Integers
from trtint8.models.graph import modules_of
from trtint8.models.model import Model, rebuilt
from trtint8.models.session import open_graph_model
from trtint8.models.shapes import StaticShapes, declared_sizes, multiply_adds
from trtint8.quantization.config import Arithmetic
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.quantize import with_pairs
from trtint8.quantization.targets import DEFAULT, Target
from trtint8.validation.accuracy import VALIDATED, Accuracy, Runner, ValidatedModel
from trtint8.validation.budget import Goal, Score
from trtint8.validation.comparison import OpenModels, compare_models, score_results
from trtint8.validation.metrics import Metric, metric_name
from trtint8.validation.output_shapes import DeclaredOutputs

#: How candidates are run, in words.
_DESCRIPTION = "the Q/DQ model as fake quantization in ONNX Runtime"


#: How many names a short text of a candidate has.
_FEW = 3


@dataclass(frozen=True, repr=False)
class Candidate:
    """A way to quantize a network.

    Attributes:
        model: The prepared float model, possibly with changed weights.
        table: The model's calibration table.
        keep_float: Names of the nodes that stay in float.
        remedies: Names of the remedies that changed the weights, in the order in which they were applied.
        target: What the network is quantized for.
    """

    model: Model
    table: CalibrationTable
    keep_float: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    target: Target = DEFAULT

    def __repr__(self) -> str:
        kept = enumerated([f"'{name}'" for name in self.keep_float], _FEW) or "nothing"
        remedies = f"; weights changed by {', '.join(self.remedies)}" if self.remedies else ""
        return f"<Candidate: '{self.model.name}' for {self.target.name}, {kept} in float{remedies}>"

    @cached_property
    def placement(self) -> Placement:
        """Where Q/DQ pairs are inserted."""
        return place(
            self.model.graph_model,
            self.keep_float,
            self.target,
            float_layers=self.table.layers_in_float,
        )

    @property
    def modules(self) -> dict[str, str]:
        """The names of the nodes in float to the modules of PyTorch that they come from, if known."""
        modules = modules_of(self.model.graph_model.graph)
        return {name: modules[name] for name in self.keep_float if name in modules}

    @property
    def in_float(self) -> str:
        """The nodes in float and their modules, in words."""
        modules = self.modules
        return ", ".join(titled(name, modules.get(name, "")) for name in self.keep_float) or "none"

    def beyond(self, plain: Candidate) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The layers in float, and the remedies, that were added to a candidate to make this one.

        Args:
            plain: That candidate.
        """
        return self.keep_float[len(plain.keep_float) :], self.remedies[len(plain.remedies) :]

    def with_weights(self, graph_model: ir.Model, *remedies: str) -> Candidate:
        """The same ranges for changed weights.

        Args:
            graph_model: The model with these weights.
            *remedies: Names of the remedies that changed them, beside those of this candidate.
        """
        model = rebuilt(graph_model, self.model.name)
        provenance = replace(self.table.provenance, model=model.fingerprint)
        table = replace(self.table, provenance=provenance)
        return replace(self, model=model, table=table, remedies=(*self.remedies, *remedies))

    def quantized(self) -> ir.Model:
        """Makes the model with Q/DQ pairs.

        Raises:
            TableError: The table lacks a range, as one does that has ranges for another choice of layers.
        """
        self.table.check_model(self.model.fingerprint, self.placement.tensors)
        return with_pairs(self.model, self.table, self.placement)


class Scorer:
    """Scores candidates by comparing them with the float model on one set of samples.

    The float model's outputs are computed once and kept.

    Args:
        model: The float model.
        batches: The samples; they must be iterable more than once.
        metric: The metric that accuracy is measured by.

    Attributes:
        model: The float model.
        batches: The samples.
        metric: The metric that accuracy is measured by.
    """

    def __init__(self, model: Model, batches: Batches, metric: Metric) -> None:
        self.model, self.batches, self.metric = model, batches, metric
        self._declared = DeclaredOutputs.of(model.graph_model)
        self._outputs: list[list[Array]] = []
        self._scored = False

    def score(self, candidate: Candidate) -> Score:
        """Runs a candidate on all samples.

        Raises:
            CalibrationDataError: The metric does not apply to the model or the data, or is not a number for
                the first candidate.
        """
        metrics, first = [self.metric, "sqnr"], not self._scored
        with (
            # What the samples show is the same for all candidates.
            self._opened({VALIDATED: candidate.quantized()}, metrics, shows=first) as opened,
            opened.results(self.batches, progress=False) as found,
        ):
            score = score_results(found, self.metric, self.batches)
        if not self._scored and score.value is not None and math.isnan(score.value):
            raise CalibrationDataError(
                f"metric '{metric_name(self.metric)}' has no value for the model in INT8: the shape of an "
                "output depends on the values, values are not numbers, or nothing is detected; give other "
                "samples, or name another metric, such as detections or a function"
            )
        self._scored = True
        return score

    def compare(
        self,
        judged: ir.Model | IntegerRuns,
        metrics: Sequence[Metric] | None,
        others: Mapping[str, ir.Model | IntegerRuns] | None = None,
        goal: Goal | None = None,
        decided: Score | None = None,
        *,
        description: str = VALIDATING,
    ) -> Accuracy:
        """Compares Q/DQ models, or models in an arithmetic, with the float model.

        Args:
            judged: The model that the result describes.
            metrics: What to measure. None measures the usual metrics that apply.
            others: Further models, by name.
            goal: What the first one has to keep; None for nothing.
            decided: See :meth:`trtint8.validation.budget.Goal.judge`.
            description: Text of the progress bar.

        Returns:
            The comparison, with the other models in ``also``.

        Raises:
            CalibrationDataError: A metric does not apply to the model or the data.
        """
        with self._opened({VALIDATED: judged, **(others or {})}, metrics, shows=True) as opened:
            # No bar unless it is a phase of a job.
            goal_of = None if goal is None else lambda _form: goal
            return compare_models(
                *(opened, self.batches, goal_of), decided=decided, description=description, progress=False
            )

    @contextlib.contextmanager
    def _opened(
        self, models: Mapping[str, ir.Model | IntegerRuns], metrics: Sequence[Metric] | None, *, shows: bool
    ) -> Iterator[OpenModels]:
        """Models by their names, ready to be run beside the float model."""
        with self._reference() as reference:
            validated = [self._validated(name, model) for name, model in models.items()]
            inputs, declared = self.model.inputs, self._declared
            yield OpenModels(validated, reference, inputs, metrics, declared, shows=shows)

    def in_integers(self, candidate: Candidate, arithmetic: Arithmetic) -> IntegerRuns:
        """A candidate as a backend computes it.

        Raises:
            TableError: The table lacks a range that the backend needs.
            ModelError: Nothing of the model runs on integers there.
        """
        integers = Integers(arithmetic, candidate.table, candidate.keep_float)
        return IntegerRuns(candidate.model, integers, self._declared.sources)

    def _validated(self, name: str, model: ir.Model | IntegerRuns) -> ValidatedModel:
        if isinstance(model, IntegerRuns):
            further, tells = model.further, model.found
            return ValidatedModel(name, model.run, model.description, further, in_integers=tells)
        further = self._declared.further
        opened = open_graph_model(model, further, rows=self.batches.usual_rows)
        return ValidatedModel(name, opened.run, _DESCRIPTION, further)

    @contextlib.contextmanager
    def _reference(self) -> Iterator[Runner]:
        """Opens the float model the first time; later a runner that returns the outputs that were kept."""
        if self._outputs:
            replay = iter(self._outputs)
            yield lambda _feed: next(replay)
            return
        kept: list[list[Array]] = []
        rows = self.batches.usual_rows
        reference = open_graph_model(self.model.graph_model, self._declared.sources, rows=rows)

        def run_and_keep(feed: FeedDict) -> list[Array]:
            # What a session returns lies in its memory and keeps all of it, also when the session is closed.
            kept.append([array.copy() for array in reference.run(feed)])
            return kept[-1]

        yield run_and_keep
        self._outputs = kept


#: The size that an unknown dimension, usually the batch, is taken to have.
_UNKNOWN = 1


def float_cost(model: ir.Model, names: Iterable[str], sizes: Mapping[str, SampleSizes]) -> float:
    """The share of the network's multiplications and additions that some nodes take.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        names: Names of the nodes.
        sizes: Input name to the sizes that samples had, the largest of which count; may lack inputs.

    Returns:
        The share, in [0, 1].
    """
    shares = cost_shares(model, sizes)
    return sum(shares.get(name, 0.0) for name in sorted(set(names)))  # in one order, to the last bit


def cost_shares(model: ir.Model, sizes: Mapping[str, SampleSizes]) -> dict[str, float]:
    """The share of the network's multiplications and additions that every node takes.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        sizes: Input name to the sizes that samples had, the largest of which count; may lack inputs.

    Returns:
        Name of each node to its share, in [0, 1].
    """
    inputs = {}
    for value in model.graph.inputs:
        declared, sampled = declared_sizes(value), sizes.get(value.name or "")
        if declared and sampled:
            inputs[value.name or ""] = (declared[0] or _UNKNOWN, *sampled.largest)
    shapes = StaticShapes(model, inputs)

    def sizes_of(value: ir.Value | None) -> tuple[int, ...]:
        return tuple(_UNKNOWN if size is None else size for size in shapes.of(value) or ())

    costs = {node.name or "": _operations(node, sizes_of) for node in model.graph}
    total = sum(costs.values()) or 1
    return {name: cost / total for name, cost in costs.items()}


def _operations(node: ir.Node, sizes_of: Callable[[ir.Value | None], tuple[int, ...]]) -> int:
    """Multiply-adds per sample; for nodes without products, the elements of the output."""
    products = multiply_adds(node, sizes_of)
    if products is not None:
        return products
    return math.prod(sizes_of(node.outputs[0])) if node.outputs else 0


@dataclass(frozen=True)
class Trial:
    """A candidate that the search tried.

    Attributes:
        what: What was tried, in words.
        score: The candidate's score on the samples that are tuned on.
        taken: Whether the search continued from this candidate.
        keep_float: Number of layers in float.
        float_cost: The share of the network's arithmetic that these layers take, in [0, 1].
        seconds: How long the candidate took to score.
        seconds_left: About how long the rest takes, which version 0.2 has written; None since.
    """

    what: str
    score: Score
    taken: bool
    keep_float: Count
    float_cost: Annotated[float, msgspec.Meta(ge=0, le=1.001)]  # a sum of shares, which are rounded
    seconds: NonNegative
    seconds_left: NonNegative | None = None
