"""Which tensors a model must show so that a set of them can be observed, and how they are made to show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from calibrators.host.model_parts import BYTES_PER_PART, ObservationPart, divided
from calibrators.host.weights import LightModel
from calibrators.operators import operator_of


@dataclass(frozen=True)
class ObservationPlan:
    """How to observe tensors.

    Attributes:
        parts: The parts of the model in the order in which they are run, at least one.
        fed: Inputs to observe.
        sources: Every tensor that was asked for, in that order, to the observed one that has the same values.
        rectified: Outputs of Relu that are observed by looking at their inputs, to these inputs.
        outputs: The model's own outputs; none where the model is divided.
    """

    parts: tuple[ObservationPart, ...]
    fed: tuple[str, ...]
    sources: Mapping[str, str]
    rectified: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @property
    def observed(self) -> tuple[str, ...]:
        """All tensors that are observed: inputs first, then those of each part, then those of Relu."""
        return (*self.fed, *(name for part in self.parts for name in part.computed), *self.rectified)

    def read_later(self, number: int) -> frozenset[str]:
        """The tensors that parts after the one with this number read."""
        return frozenset(name for part in self.parts[number + 1 :] for name in part.reads)


def plan_observation(
    model: LightModel | bytes | Path,
    inputs: Iterable[str],
    tensors: Iterable[str],
    *,
    bytes_per_part: float = BYTES_PER_PART,
    rectify: bool = False,
) -> ObservationPlan:
    """Finds the fewest tensors that show the values of all that were asked for, and divides the model.

    What a Reshape or Transpose gives out has the histogram of what it takes in, so only one is exposed. What
    a Relu gives out has the positive values of what it takes in.

    Args:
        model: The model; its message, where it has one, is changed.
        inputs: Names of its inputs.
        tensors: Names of the tensors to observe.
        bytes_per_part: The most bytes per sample that the observed tensors of one part have together, as far
            as the model tells their shapes; a larger tensor has a part of its own. The model is divided only
            where the types of all tensors that cross are known.
        rectify: Whether the caller counts the output of a Relu by looking at its input, where the model is
            not divided.

    Returns:
        The plan.
    """
    if isinstance(model, bytes):
        model = LightModel.parse(model)
    light = model if isinstance(model, LightModel) else LightModel.read(model)
    graph = light.message.graph
    inputs, asked = set(inputs), list(dict.fromkeys(tensors))
    constant = {tensor.name for tensor in graph.initializer}
    same_as = {
        node.output[0]: node.input[0]
        for node in graph.node
        if operator_of(node).rearranges and node.input[0] not in constant
    }
    sources = {name: _source(name, same_as) for name in asked}
    needed = dict.fromkeys(sources.values())
    computed = tuple(name for name in needed if name not in inputs)
    fed = tuple(name for name in needed if name in inputs)
    parts = divided(light, inputs, computed, bytes_per_part)
    rectified: dict[str, str] = {}
    outputs: tuple[str, ...] = ()
    if len(parts) == 1:
        # Of a divided model each Relu has a part of its own where its output is large; with the operator
        # behind it in one part, three large tensors would be kept at once.
        rectified = _rectified(graph, same_as, needed) if rectify else {}
        computed = tuple(name for name in computed if name not in rectified)
        outputs = tuple(output.name for output in graph.output)
        present = set(outputs)
        graph.output.extend(
            onnx.helper.make_empty_tensor_value_info(name) for name in computed if name not in present
        )
        message = light.message.SerializeToString()
        parts = (ObservationPart(message, light.weights, tuple(sorted(inputs)), computed),)
    return ObservationPlan(parts, fed, sources, rectified, outputs)


def _source(name: str, same_as: Mapping[str, str]) -> str:
    while name in same_as:
        name = same_as[name]
    return name


def _rectified(graph: onnx.GraphProto, same_as: Mapping[str, str], needed: Collection[str]) -> dict[str, str]:
    """Outputs of Relu to their inputs, where both are needed: one output of each input."""
    found: dict[str, str] = {}
    inputs: set[str] = set()
    for node in graph.node:
        if node.op_type == "Relu" and node.domain == "":
            source, output = _source(node.input[0], same_as), node.output[0]
            if source in needed and output in needed and source not in found and source not in inputs:
                found[output] = source
                inputs.add(source)
    return found
