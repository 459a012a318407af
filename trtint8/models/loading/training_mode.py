"""Models that were exported while they were being trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    graphs = list(message_graphs(light.message.graph))
    asked = [node for graph in graphs for node in graph.node if _may_train(node)]
    if not asked:
        return []
    constants = _Constants(light, graphs)
    read = {name for graph in graphs for node in graph.node for name in node.input}
    read.update(value.name for graph in graphs for value in graph.output)
    return [
        node.op_type
        for node in asked
        if (_stops_dropping(node, constants) if _is_dropout(node) else _normalizes(node, constants, read))
    ]


def _is_dropout(node: onnx.NodeProto) -> bool:
    return node.op_type == "Dropout" and not node.domain


def _may_train(node: onnx.NodeProto) -> bool:
    if _is_dropout(node):
        return len(node.input) > _TRAINS
    return node.op_type == "BatchNormalization" and not node.domain and bool(_training_modes(node))


def _training_modes(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    return [attribute for attribute in node.attribute if attribute.name == "training_mode" and attribute.i]


class _Constants:
    """The arrays that nodes read as constants."""

    def __init__(self, light: LightModel, graphs: Sequence[onnx.GraphProto]) -> None:
        self._weights = light.weights
        self._tensors = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
        for node in (node for graph in graphs for node in graph.node):
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                self._tensors[node.output[0]] = node.attribute[0].t

    def read(self, node: onnx.NodeProto, index: int) -> NDArray[Any] | None:
        """An input of a node; None where it is missing, is computed, or lies in another file."""
        name = node.input[index] if index < len(node.input) else ""
        if name in self._weights:
            return self._weights[name]
        tensor = self._tensors.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)


def _stops_dropping(node: onnx.NodeProto, constants: _Constants) -> bool:
    """Lets a Dropout drop nothing, and says whether it did before."""
    trains = constants.read(node, _TRAINS)
    if trains is None or not trains.any():
        return False
    del node.input[_TRAINS:]
    return True


def _normalizes(node: onnx.NodeProto, constants: _Constants, read: set[str]) -> bool:
    """Lets a BatchNormalization take its own statistics, and says whether it could."""
    mean, variance = constants.read(node, _MEAN), constants.read(node, _VARIANCE)
    if mean is None or variance is None or (not mean.any() and (variance == 1).all()):
        return False
    if read.intersection(node.output[1:]):
        return False
    for mode in _training_modes(node):
        node.attribute.remove(mode)
    del node.output[1:]
    return True
