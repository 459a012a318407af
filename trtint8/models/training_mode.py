"""Models that were exported while they were being trained."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from trtint8.models.inner_graphs import message_graphs

#: The input of a Dropout that says whether it drops values.
_TRAINS = 2


def switch_to_inference(message: onnx.ModelProto) -> list[str]:
    """Lets nodes compute as in inference that were exported in training mode.

    A Dropout in training mode sets random values to zero and enlarges the others, so activations are not
    those of the deployed network; a BatchNormalization takes its statistics from the batch. TensorRT refuses
    both. What stays is a Dropout whose mode is computed, and a BatchNormalization whose new statistics are
    read or which has none of its own: means of 0 and variances of 1 are written where a network
    normalizes by the batch, or standardizes weights, in inference as well.

    Args:
        message: The model; changed.

    Returns:
        The operators of the nodes that were switched.
    """
    graphs = list(message_graphs(message.graph))
    constants = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
    for graph in graphs:
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                constants[node.output[0]] = node.attribute[0].t
    read = {name for graph in graphs for node in graph.node for name in node.input}
    read.update(value.name for graph in graphs for value in graph.output)
    switched = []
    for graph in graphs:
        for node in graph.node:
            if node.domain:
                continue
            if (node.op_type == "Dropout" and _stops_dropping(node, constants)) or (
                node.op_type == "BatchNormalization" and _takes_its_statistics(node, constants, read)
            ):
                switched.append(node.op_type)
    return switched


def _stops_dropping(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    trains = constants.get(node.input[_TRAINS]) if len(node.input) > _TRAINS else None
    if trains is None or not numpy_helper.to_array(trains).any():
        return False
    del node.input[_TRAINS:]
    return True


def _takes_its_statistics(
    node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], read: set[str]
) -> bool:
    modes = [attribute for attribute in node.attribute if attribute.name == "training_mode" and attribute.i]
    mean, variance = (constants.get(name) for name in node.input[3:5])
    if not modes or read.intersection(node.output[1:]) or mean is None or variance is None:
        return False
    if not numpy_helper.to_array(mean).any() and (numpy_helper.to_array(variance) == 1).all():
        return False
    node.attribute.remove(modes[0])
    del node.output[1:]
    return True
