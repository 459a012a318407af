"""Which tensors a model must show so that a set of them can be observed, and how they are made to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from calibrators.host.weights import LightModel

#: Operators that only rearrange: their first output has the values of their first input, each as often.
_REARRANGING = frozenset(
    {"DepthToSpace", "Flatten", "Identity", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"}
)


@dataclass(frozen=True)
class ObservationPlan:
    """How to observe tensors.

    Attributes:
        model: The serialized model with all of ``computed`` among its outputs; external data stays where
            it is.
        weights: Initializers whose values are not in ``model``: read-only, float32.
        fed: Inputs to observe.
        computed: Tensors to observe that the model computes.
        sources: Every tensor that was asked for, in that order, to the one of ``fed`` and ``computed``
            that has the same values.
    """

    model: bytes
    weights: Mapping[str, NDArray[np.float32]]
    fed: tuple[str, ...]
    computed: tuple[str, ...]
    sources: Mapping[str, str]


def plan_observation(
    model: LightModel | bytes | Path, inputs: Iterable[str], tensors: Iterable[str]
) -> ObservationPlan:
    """Finds the fewest tensors that show the values of all that were asked for.

    What a Reshape or Transpose gives out has the histogram of what it takes in, so only one is exposed.

    Args:
        model: The model; its message, where it has one, is changed.
        inputs: Names of its inputs.
        tensors: Names of the tensors to observe.

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
    present = {output.name for output in graph.output}
    graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in computed if name not in present
    )
    fed = tuple(name for name in needed if name in inputs)
    return ObservationPlan(light.message.SerializeToString(), light.weights, fed, computed, sources)


def _source(name: str, same_as: Mapping[str, str]) -> str:
    while name in same_as:
        name = same_as[name]
    return name
