"""Tensors inside a network, compared with those of the reference: where two models part, in INT8's own units.

A tensor in INT8 is compared as those who read it get it: rounded and clipped. Its step is its scale. The step
of a tensor in float is a 127th of the largest magnitude that the reference has in it, which is the scale that
it would have in INT8.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from calibrators.checks import several
from calibrators.data.feeds import Array, Floats, NamedArrays
from calibrators.errors import Argument, ModelError, enumerated
from calibrators.histograms.rules import decibels
from calibrators.tables.choice import QMAX
from trtint8.arithmetic.storage import InnerTensor, inner_tensors
from trtint8.models.graph import graph_values, is_constant
from trtint8.models.model import Model
from trtint8.models.outputs.joined import inferred_copy
from trtint8.validation.fidelity import Sums, in_blocks, inner_product
from trtint8.validation.meters import PartsMeter

#: How many steps rounding may set apart: a sum beside a tie is rounded up by one model and down by the other.
#: The values themselves are float32.
_ROUNDING = 1.001


@dataclass(frozen=True)
class ComparedTensor:
    """How close one tensor inside a network is to FP32's.

    Attributes:
        name: The name of the tensor.
        sqnr_db: Signal to quantization noise over all samples, in decibels; infinite where they are equal,
            NaN where values are NaN or shapes differ.
        max_error: The largest difference.
        step: The tensor's scale; of a tensor in float a 127th of the largest magnitude that FP32 has in it.
        steps: The largest difference in steps; NaN where values are NaN or shapes differ.
        in_int8: Whether one of the two models has the tensor in INT8.
    """

    name: str
    sqnr_db: float
    max_error: float
    step: float
    steps: float
    in_int8: bool

    @property
    def diverges(self) -> bool:
        """Whether the difference is more than one step, which rounding alone may make."""
        return not self.steps <= _ROUNDING


@dataclass(frozen=True)
class ComparedTensors:
    """How close tensors inside a network are to FP32's.

    Attributes:
        tensors: The tensors that both models have, in the order of the reference's graph.
        first_divergence: Name of the first of them that differs by more than one step; None where none does.
        left_out: Names of the tensors that were asked for and that the model lacks, to the reasons.
    """

    tensors: tuple[ComparedTensor, ...]
    first_divergence: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


#: The columns of a table of tensors.
TENSOR_COLUMNS = ("tensor", "held in", "SQNR", "largest error", "step", "in steps")


def tensor_rows(compared: ComparedTensors) -> list[tuple[str, ...]]:
    """The rows of a table: one per tensor, in the order of the graph."""
    return [
        (
            tensor.name,
            "INT8" if tensor.in_int8 else "float",
            *(
                "not comparable" if math.isnan(value) else f"{value:{digits}}"
                for value, digits in (
                    (tensor.sqnr_db, ".2f"),
                    (tensor.max_error, ".4g"),
                    (tensor.step, ".4g"),
                    (tensor.steps, ".2f"),
                )
            ),
        )
        for tensor in compared.tensors
    ]


def tensor_notes(compared: ComparedTensors, name: str) -> list[str]:
    """Sentences on the first divergence, and on tensors that are not compared.

    Args:
        compared: The comparison.
        name: The name of the model that is compared.
    """
    first = next((one for one in compared.tensors if one.name == compared.first_divergence), None)
    if first is None:
        notes = [f"{name}: no tensor differs by more than one step"]
    else:
        far = "is not comparable" if math.isnan(first.steps) else f"differs by {first.steps:.1f} steps"
        notes = [f"{name}: '{first.name}' {far}, the first in the graph that differs by more than one"]
    alike: dict[str, list[str]] = {}
    for tensor, reason in compared.left_out.items():
        alike.setdefault(reason, []).append(f"'{tensor}'")
    return notes + [f"{name} lacks {enumerated(names)}: {reason}" for reason, names in alike.items()]


class TensorMeter(PartsMeter[Floats]):
    """Sums over the values of tensors, kept for each batch until all are added up in the order of the data.

    Args:
        wanted: Names of the tensors, to where the reference has them.
        given: Names of those that the model has, to where.
        reasons: Why models may lack tensors, by name.
        other_reason: Why the model lacks others.
    """

    def __init__(
        self,
        wanted: Mapping[str, InnerTensor],
        given: Mapping[str, InnerTensor],
        reasons: Mapping[str, str],
        other_reason: str,
    ) -> None:
        super().__init__()
        self._wanted = {name: tensor for name, tensor in wanted.items() if name in given}
        self._left_out = {name: reasons.get(name, other_reason) for name in wanted if name not in given}
        self._given = given

    def add(self, values: NamedArrays, reference: NamedArrays) -> None:
        """Adds one batch.

        Args:
            values: What the model is fed and gives, by name.
            reference: The same of the reference.
        """
        sums = [
            _sums(values[self._given[name].output], reference[tensor.output])
            for name, tensor in self._wanted.items()
        ]
        self._parts.append(np.reshape(sums, (-1, len(Sums._fields))))

    def value(self) -> ComparedTensors:
        """The comparison over all batches."""
        totals = map(Sums.total, np.stack(self._parts, axis=1))
        tensors = tuple(map(self._compared, self._wanted, totals))
        first = next((tensor.name for tensor in tensors if tensor.diverges), None)
        return ComparedTensors(tensors, first, self._left_out)

    def _compared(self, name: str, sums: Sums) -> ComparedTensor:
        error, scale = sums.error, self._given[name].scale or self._wanted[name].scale
        step = sums.amax / QMAX if scale is None else scale
        # What is zero in the reference, and in float, has no step.
        steps = error / step if step else 0.0 if error == 0 else error * math.inf
        return ComparedTensor(name, decibels(sums.wanted, sums.noise), error, step, steps, scale is not None)


def _sums(got: Array, wanted: Array) -> Sums:
    """The sums over a tensor of one batch, without infinite values where these are equal, as in masks."""
    if got.shape != wanted.shape:
        return Sums(math.nan, noise=math.nan, error=math.nan, amax=math.nan)
    blocks = []
    for expected, found in in_blocks(wanted, got):
        with np.errstate(invalid="ignore"):
            error = np.where(expected == found, 0.0, expected - found)
        finite = np.where(np.isfinite(expected), expected, 0.0)
        largest = (np.abs(array).max(initial=0.0) for array in (error, finite))
        noise = inner_product(error, error)
        blocks.append(Sums(inner_product(finite, finite), 0, 0, noise, 0, 0, *largest))
    return Sums.total(blocks)


def pick_tensors(model: Model, patterns: Sequence[str]) -> dict[str, InnerTensor]:
    """The floating-point tensors of a model that patterns name.

    Args:
        model: The model that others are compared with.
        patterns: Names of tensors, or patterns with ``*`` and ``?``.

    Returns:
        Their names in the order of the graph, to where they are.

    Raises:
        ModelError: A pattern matches no floating-point tensor.
    """
    graph_model = inferred_copy(model.graph_model)
    known = inner_tensors(graph_model)
    picked: set[str] = set()
    for pattern in several(patterns):
        # Names may hold brackets, which a pattern takes for a choice of letters.
        glob = pattern.replace("[", "[[]")
        matched = [pattern] if pattern in known else fnmatch.filter(known, glob)
        if not matched:
            raise ModelError(_unmatched(model.name, graph_model, pattern, glob, list(known)))
        picked.update(matched)
    return {name: tensor for name, tensor in known.items() if name in picked}


def _unmatched(model: str, graph_model: ir.Model, pattern: str, glob: str, known: Sequence[str]) -> str:
    """What to say of a pattern that matches nothing."""
    others = {value.name: value for value in graph_values(graph_model.graph) if value.name}
    found = [others[name] for name in fnmatch.filter(filter(None, others), glob)]
    if found:
        first = found[0]
        what = (
            "is constant"
            if is_constant(first)
            else "is a part of a Q/DQ pair; name what the pair reads"
            if first.dtype is not None and first.dtype.is_floating_point()
            else f"holds {first.dtype.name.lower() if first.dtype else 'integers'}"
        )
        return (
            f"{Argument('tensors')}: of what '{pattern}' matches in '{model}', '{first.name}' {what}; name a "
            "floating-point tensor that is computed"
        )
    bare = pattern.replace("*", "").replace("?", "")
    near = difflib.get_close_matches(bare, known, 3, 0.3) or known[:3]
    listed = enumerated(f"'{name}'" for name in near)
    return f"{Argument('tensors')}: '{pattern}' matches no tensor of '{model}'; near it are {listed}"


def values_per_sample(model: Model, inside: Mapping[str, InnerTensor]) -> int:
    """How many values tensors hold for one sample; sizes that are not known count as 1.

    Args:
        model: The model.
        inside: The tensors, and where they are.
    """
    values = {value.name: value for value in graph_values(inferred_copy(model.graph_model).graph)}
    shapes = (values[tensor.output].shape for tensor in inside.values())
    return sum(
        math.prod(size for size in tuple(shape)[1:] if isinstance(size, int)) for shape in shapes if shape
    )


def reasons_for_absence(graph_model: ir.Model, names: Iterable[str]) -> dict[str, str]:
    """Why models that were made from another one lack some of its tensors.

    Args:
        graph_model: The other model.
        names: Names of its tensors.

    Returns:
        Names of tensors that do not outlast the preparation of the model, to the reasons.
    """
    values = {value.name: value for value in graph_values(graph_model.graph)}
    reasons = {name: _reason(values[name]) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def _reason(value: ir.Value) -> str:
    """What becomes of a tensor that does not outlast the preparation; empty for another one."""
    node, readers = value.producer(), [reader for reader, _ in value.uses()]
    if node is not None and all(is_constant(one) for one in node.inputs if one is not None):
        return "it is computed from constants alone, and is a constant there"
    if len(readers) == 1 and readers[0].op_type == "BatchNormalization":
        return "the BatchNormalization behind it is folded into its layer, which gives that one's output"
    if node is not None and node.op_type in ("Identity", "Dropout"):
        return f"it is what {node.op_type} reads, which is taken out"
    return ""
