"""Which tensors a model must show so that a set of them can be observed, and how they are made to show.

Divides a model into parts that are run one after another, so that few activations are kept at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from calibrators.data.feeds import Float32s
from calibrators.host.weights import LightModel, names_read
from calibrators.operators import operator_of

#: The most bytes of observed activations per sample that are kept at once. A network that has more is run
#: part by part.
BYTES_PER_PART = 128 << 20

#: float32.
_BYTES_PER_ELEMENT = 4


@dataclass(frozen=True)
class ObservationPart:
    """A part of the model, or all of it, which is run by itself.

    Attributes:
        model: The serialized model, whose outputs are ``computed`` and ``carried``; external data stays where
            it is.
        weights: Initializers whose values are not in ``model``: read-only, float32.
        reads: The inputs: those of the whole model, and what earlier parts carry to this one.
        computed: Tensors to observe that this part computes.
        carried: Other tensors that it computes and later parts read.
    """

    model: bytes
    weights: Mapping[str, Float32s]
    reads: tuple[str, ...]
    computed: tuple[str, ...]
    carried: tuple[str, ...] = ()


def divided(
    light: LightModel, inputs: Set[str], observed: Sequence[str], bytes_per_part: float
) -> tuple[ObservationPart, ...]:
    """Divides a model where the observed tensors up to there take so much memory.

    Args:
        light: The model; it is not changed.
        inputs: Names of its inputs.
        observed: Tensors to observe that the model computes.
        bytes_per_part: The most bytes per sample of the observed tensors of one part; a larger tensor has a
            part of its own.

    Returns:
        The parts. A single one may lack the model's own outputs.
    """
    graph = light.message.graph
    infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    constants = {tensor.name for tensor in graph.initializer}
    reads = [{name for name in names_read(node) if name and name not in constants} for node in graph.node]
    spans = list(_spans(graph, reads, set(observed), infos, inputs, bytes_per_part))
    parts = []
    for first, stop in spans:
        made = {name for node in graph.node[first:stop] for name in node.output if name}
        read = set().union(*reads[first:stop])
        later = set().union(*reads[stop:]) if stop < len(reads) else set()
        computed = tuple(name for name in observed if name in made)
        crossing = tuple(sorted(name for name in read - made if name in infos))
        carried = tuple(sorted(made & later - set(computed)))
        parts.append(_part(light, graph.node[first:stop], infos, crossing, computed, carried))
    return tuple(parts)


def _spans(
    graph: onnx.GraphProto,
    reads: Sequence[Set[str]],
    observed: Set[str],
    infos: Mapping[str, onnx.ValueInfoProto],
    inputs: Set[str],
    most: float,
) -> Iterator[tuple[int, int]]:
    """The first node of each part, and the node after its last."""
    typed = {name for name, info in infos.items() if info.type.tensor_type.elem_type}  # 0 is undefined
    read_last = {name: number for number, names in enumerate(reads) for name in names}
    first, total, made = 0, 0.0, set(inputs)
    for number, node in enumerate(graph.node):
        size = sum(_bytes_per_sample(infos.get(name)) for name in node.output if name in observed)
        crossing = [name for name in made if read_last.get(name, -1) >= number]
        if total and total + size > most and all(name in typed for name in crossing):
            yield first, number
            first, total = number, 0.0
        total += size
        made = {*crossing, *node.output}
    yield first, len(graph.node)


def _part(
    light: LightModel,
    nodes: Sequence[onnx.NodeProto],
    infos: Mapping[str, onnx.ValueInfoProto],
    reads: tuple[str, ...],
    computed: tuple[str, ...],
    carried: tuple[str, ...],
) -> ObservationPart:
    graph = light.message.graph
    used = {name for node in nodes for name in names_read(node)}
    part = onnx.ModelProto()
    part.CopyFrom(light.message)
    part.graph.CopyFrom(
        onnx.helper.make_graph(
            nodes,
            graph.name,
            [infos[name] for name in reads],
            [onnx.helper.make_empty_tensor_value_info(name) for name in (*computed, *carried)],
            [tensor for tensor in graph.initializer if tensor.name in used],
            value_info=graph.value_info,
        )
    )
    weights = {name: array for name, array in light.weights.items() if name in used}
    return ObservationPart(part.SerializeToString(), weights, reads, computed, carried)


def _bytes_per_sample(info: onnx.ValueInfoProto | None) -> int:
    """The bytes per sample of a tensor; unknown dimensions count as 1."""
    if info is None:
        return 0
    dims = info.type.tensor_type.shape.dim[1:]
    return _BYTES_PER_ELEMENT * math.prod(max(int(dim.dim_value), 1) for dim in dims)


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
