"""What the properties of operators mean for the Q/DQ pairs of one node, given its attributes."""

from __future__ import annotations

import math

import onnx_ir as ir

from calibrators.operators import Axes, Values, operator_of
from trtint8.models.graph import constant_input, constant_tensor


def weight_axis(node: ir.Node, weight: ir.Value) -> int | None:
    """The axis of a node's constant operand along which TensorRT takes one scale per channel.

    Args:
        node: A weighted node.
        weight: The node's constant operand.

    Returns:
        The axis of the output channels; None where TensorRT runs the node in INT8 only with one scale for the
        whole tensor.
    """
    operator = operator_of(node)
    if operator.is_convolution:
        # The groups of a ConvTranspose have their output channels along the same places of axis 1.
        grouped = operator.weights_axis == 1 and node.attributes.get_int("group", 1) != 1
        return None if grouped else operator.weights_axis
    if weight is not node.inputs[1]:
        return None
    if node.op_type == "Gemm":
        return 0 if bool(node.attributes.get_int("transB", 0)) else 1
    return 1 if weight.shape is not None and len(weight.shape) == 2 else None


def lacks_kernel_shape(node: ir.Node) -> bool:
    """Whether a node is a convolution that leaves the shape of its kernel to its weights, as ONNX allows."""
    return operator_of(node).is_convolution and "kernel_shape" not in node.attributes


def commutes_with_quantization(node: ir.Node) -> bool:
    """Whether quantizing before or after a node, with the same scale, gives the same integers."""
    operator = operator_of(node)
    if node.domain == "" and node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    if node.domain == "" and node.op_type == "Pad":
        return _pads_with_zero(node)
    # Of those that choose values, TensorRT runs poolings in INT8, and no reductions.
    chooses = operator.values is Values.CHOSEN and operator.axes is Axes.IMAGES
    return operator.data == (0,) and (operator.moves or chooses)


def _pads_with_zero(node: ir.Node) -> bool:
    """Whether a Pad writes zeros or copies values of its input."""
    if node.attributes.get_string("mode", "constant") != "constant":
        return True
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return True
    tensor = constant_tensor(value)
    return tensor is not None and not tensor.numpy().any()


#: The lowest and the highest value.
Ends = tuple[float, float]


def ends_of(node: ir.Node) -> Ends | None:
    """The ends of a Clip, or of a Relu, NaN where they are computed; None of another node."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    return (
        (_end(node, 1, "min", -math.inf), _end(node, 2, "max", math.inf)) if node.op_type == "Clip" else None
    )


def _end(node: ir.Node, index: int, attribute: str, absent: float) -> float:
    if index >= len(node.inputs) or node.inputs[index] is None:
        return node.attributes.get_float(attribute, absent)
    end = constant_input(node, index)
    return math.nan if end is None else float(end.reshape(-1)[0])
