"""Divides a model into parts that are run one after another, so that few activations are kept at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from calibrators.host.weights import LightModel

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
    weights: Mapping[str, NDArray[np.float32]]
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
    read_last = {name: number for number, names in enumerate(reads) for name in names}
    first, total, made = 0, 0.0, set(inputs)
    for number, node in enumerate(graph.node):
        size = sum(_bytes_per_sample(infos.get(name)) for name in node.output if name in observed)
        crossing = [name for name in made if read_last.get(name, -1) >= number]
        if total and total + size > most and all(_has_type(infos.get(name)) for name in crossing):
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


def _has_type(info: onnx.ValueInfoProto | None) -> bool:
    return info is not None and info.type.tensor_type.elem_type != onnx.TensorProto.UNDEFINED


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node and the graphs in it read; some may be of those graphs themselves."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from names_read(inner)
