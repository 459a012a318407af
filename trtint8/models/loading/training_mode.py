"""Models that were exported while they were being trained."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from calibrators.host.weights import LightModel
from trtint8.models.inner_graphs import message_graphs

#: The input of a Dropout that says whether it drops values, and those of a BatchNormalization that hold its
#: statistics.
_TRAINS, _MEAN, _VARIANCE = 2, 3, 4


def switch_to_inference(light: LightModel) -> list[str]:
    """Lets nodes compute as in inference that were exported in training mode.

    A Dropout in training mode sets random values to zero and enlarges the others, so activations are not
    those of the deployed network; a BatchNormalization takes its statistics from the batch. TensorRT refuses
    both. What stays is a Dropout whose mode is computed, and a BatchNormalization whose new statistics are
    read or which has none of its own: means of 0 and variances of 1 are written where a network
    normalizes by the batch, or standardizes weights, in inference as well. What lies in other files is not
    read, so that it stays as it is.

    Args:
        light: The model; its message is changed.

    Returns:
        The operators of the nodes that were switched.
    """
    return [
        node.op_type
        for scope in _scopes(light)
        for node in scope.nodes
        if _may_train(node)
        and (_stops_dropping(node, scope) if _is_dropout(node) else _normalizes(node, scope))
    ]


def _is_dropout(node: onnx.NodeProto) -> bool:
    return node.op_type == "Dropout" and not node.domain


def _may_train(node: onnx.NodeProto) -> bool:
    if _is_dropout(node):
        return len(node.input) > _TRAINS
    return node.op_type == "BatchNormalization" and not node.domain and bool(_training_modes(node))


def _training_modes(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    return [attribute for attribute in node.attribute if attribute.name == "training_mode" and attribute.i]


@dataclass(eq=False)
class _Scope:
    """The nodes that see the same names: those of the main graph, or of a function.

    Attributes:
        nodes: The nodes, those of graphs inside others included.
        results: Names of what it gives to those around it.
        constants: Name to the array that it stands for.
        parameters: Names of what a function is given, in order.
        calls: The nodes that call the function, each with the scope that it stands in.
    """

    nodes: Sequence[onnx.NodeProto]
    results: Collection[str]
    constants: Mapping[str, NDArray[Any] | onnx.TensorProto]
    parameters: Sequence[str] = ()
    calls: list[tuple[onnx.NodeProto, _Scope]] = field(default_factory=list)

    def read(self, node: onnx.NodeProto, index: int) -> list[NDArray[Any] | None]:
        """What an input of a node is, in any call; None where it is computed, or lies in another file.

        What is missing is False.
        """
        found: list[NDArray[Any] | None] = []
        waiting, seen = [(self, node, index)], set()
        while waiting:
            scope, node, index = waiting.pop()
            name = node.input[index] if index < len(node.input) else ""
            if (id(scope), name) in seen:
                continue
            seen.add((id(scope), name))
            if name in scope.parameters:
                index = list(scope.parameters).index(name)
                waiting += [(outer, call, index) for call, outer in scope.calls]
            else:
                found.append(_array(scope.constants.get(name)) if name else np.array(False))
        return found

    def reads(self, name: str) -> bool:
        """Whether a node reads what has a name."""
        return any(name in node.input for node in self.nodes)


def _scopes(light: LightModel) -> list[_Scope]:
    """The main graph and the functions."""
    message = light.message
    nodes, graphs = _within(message.graph.node)
    graphs.append(message.graph)
    tensors = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
    constants = {**tensors, **_constant_nodes(nodes), **light.weights}
    main = _Scope(nodes, {value.name for graph in graphs for value in graph.output}, constants)
    functions: dict[tuple[str, str], _Scope] = {}
    for function in message.functions:
        nodes, graphs = _within(function.node)
        results = {*function.output, *(value.name for graph in graphs for value in graph.output)}
        functions[function.domain, function.name] = _Scope(
            nodes, results, _constant_nodes(nodes), function.input
        )
    scopes = [main, *functions.values()]
    for scope in scopes:
        for node in scope.nodes:
            if called := functions.get((node.domain, node.op_type)):
                called.calls.append((node, scope))
    return scopes


def _within(nodes: Iterable[onnx.NodeProto]) -> tuple[list[onnx.NodeProto], list[onnx.GraphProto]]:
    """Nodes and those of the graphs inside them, and these graphs."""
    own = list(nodes)
    inside = [
        graph
        for node in own
        for attribute in node.attribute
        for held in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
        for graph in message_graphs(held)
    ]
    return [*own, *(node for graph in inside for node in graph.node)], inside


def _constant_nodes(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.TensorProto]:
    """The tensors of Constant nodes, by the names of their outputs."""
    return {
        node.output[0]: node.attribute[0].t
        for node in nodes
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t")
    }


def _array(constant: NDArray[Any] | onnx.TensorProto | None) -> NDArray[Any] | None:
    """The array of a constant; None where there is none, or it lies in another file."""
    if not isinstance(constant, onnx.TensorProto):
        return constant
    if constant.data_location == onnx.TensorProto.EXTERNAL:
        return None
    return numpy_helper.to_array(constant)


def _stops_dropping(node: onnx.NodeProto, scope: _Scope) -> bool:
    """Lets a Dropout drop nothing, and says whether it did before."""
    trains = scope.read(node, _TRAINS)
    if any(array is None for array in trains) or not any(array.any() for array in _known(trains)):
        return False
    del node.input[_TRAINS:]
    return True


def _normalizes(node: onnx.NodeProto, scope: _Scope) -> bool:
    """Lets a BatchNormalization take its own statistics, and says whether it could."""
    means, variances = scope.read(node, _MEAN), scope.read(node, _VARIANCE)
    if any(array is None for array in (*means, *variances)):
        return False
    if not all(array.any() for array in _known(means)) and any((a == 1).all() for a in _known(variances)):
        return False
    if any(name in scope.results or scope.reads(name) for name in node.output[1:]):
        return False
    for mode in _training_modes(node):
        node.attribute.remove(mode)
    del node.output[1:]
    return True


def _known(arrays: Iterable[NDArray[Any] | None]) -> list[NDArray[Any]]:
    return [array for array in arrays if array is not None]
