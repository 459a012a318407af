"""Which tensors a model must show so that a set of them can be observed, and how they are made to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from calibrators.host.model_parts import BYTES_PER_PART, ObservationPart, divided
from calibrators.host.weights import LightModel

#: Operators that only rearrange: their first output has the values of their first input, each as often.
_REARRANGING = frozenset(
    {"DepthToSpace", "Flatten", "Identity", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"}
)


@dataclass(frozen=True)
class ObservationPlan:
    """How to observe tensors.

    Attributes:
        parts: The parts of the model in the order in which they are run, at least one.
        fed: Inputs to observe.
        sources: Every tensor that was asked for, in that order, to the one of ``fed`` and of the computed
            tensors that has the same values.
        outputs: The model's own outputs; none where the model is divided.
    """

    parts: tuple[ObservationPart, ...]
    fed: tuple[str, ...]
    sources: Mapping[str, str]
    outputs: tuple[str, ...] = ()

    @property
    def observed(self) -> tuple[str, ...]:
        """All tensors that are observed: inputs first, then those of each part."""
        return (*self.fed, *(name for part in self.parts for name in part.computed))

    def read_later(self, number: int) -> frozenset[str]:
        """The tensors that parts after the one with this number read."""
        return frozenset(name for part in self.parts[number + 1 :] for name in part.reads)


def plan_observation(
    model: LightModel | bytes | Path,
    inputs: Iterable[str],
    tensors: Iterable[str],
    *,
    bytes_per_part: float = BYTES_PER_PART,
) -> ObservationPlan:
    """Finds the fewest tensors that show the values of all that were asked for, and divides the model.

    What a Reshape or Transpose gives out has the histogram of what it takes in, so only one is exposed.

    Args:
        model: The model; its message, where it has one, is changed.
        inputs: Names of its inputs.
        tensors: Names of the tensors to observe.
        bytes_per_part: The most bytes per sample that the observed tensors of one part have together, as far
            as the model tells their shapes; a larger tensor has a part of its own. The model is divided only
            where the types of all tensors that cross are known.

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
        if node.op_type in _REARRANGING and node.domain == "" and node.input[0] not in constant
    }
    sources = {name: _source(name, same_as) for name in asked}
    needed = dict.fromkeys(sources.values())
    computed = tuple(name for name in needed if name not in inputs)
    fed = tuple(name for name in needed if name in inputs)
    parts = divided(light, inputs, computed, bytes_per_part)
    outputs: tuple[str, ...] = ()
    if len(parts) == 1:
        outputs = tuple(output.name for output in graph.output)
        present = set(outputs)
        graph.output.extend(
            onnx.helper.make_empty_tensor_value_info(name) for name in computed if name not in present
        )
        message = light.message.SerializeToString()
        parts = (ObservationPart(message, light.weights, tuple(sorted(inputs)), computed),)
    return ObservationPlan(parts, fed, sources, outputs)


def _source(name: str, same_as: Mapping[str, str]) -> str:
    while name in same_as:
        name = same_as[name]
    return name
