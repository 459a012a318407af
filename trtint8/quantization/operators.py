"""Properties of ONNX operators on which the placement of Q/DQ pairs rests."""

from __future__ import annotations

import onnx_ir as ir

#: Those among the operators with weights whose weights are kernels.
CONVOLUTIONS = ("Conv", "ConvTranspose")
#: Operators with weights: those that quantization speeds up.
WEIGHTED = (*CONVOLUTIONS, "Gemm", "MatMul")

#: Operators that multiply matrices and get no Q/DQ pairs, and the reason in words for the user.
UNPAIRED = {
    "Attention": "its softmax is inside the operator, where no Q/DQ pair can stand; exported with an opset "
    "older than 23, it could be quantized",
    "Einsum": "it is no product of two matrices, so it cannot become a MatMul, which would be quantized",
    "GRU": "TensorRT has no INT8 kernel for recurrent operators",
    "LSTM": "TensorRT has no INT8 kernel for recurrent operators",
    "RNN": "TensorRT has no INT8 kernel for recurrent operators",
}

#: Operators that multiply matrices: of these INT8 is counted.
MULTIPLYING = (*WEIGHTED, *UNPAIRED)

#: Operators that TensorRT fuses into the weighted operator before them, so that the tensor between the two is
#: never stored.
FUSED_INTO_WEIGHTED = frozenset(
    {"Clip", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Tanh"}
)

#: Operators with one output that copy or select values of their first input.
COPYING = frozenset(
    {
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GlobalMaxPool",
        "Identity",
        "MaxPool",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)

_COMMUTING = COPYING | {"Dropout", "Split"}


def weight_axis(node: ir.Node, weight: ir.Value) -> int | None:
    """The axis of a node's constant operand along which TensorRT takes one scale per channel.

    Args:
        node: A weighted node.
        weight: The node's constant operand.

    Returns:
        The axis of the output channels; None where TensorRT runs the node in INT8 only with one scale for the
        whole tensor.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if node.attributes.get_int("group", 1) == 1 else None
    if weight is not node.inputs[1]:
        return None
    if node.op_type == "Gemm":
        return 0 if bool(node.attributes.get_int("transB", 0)) else 1
    return 1 if weight.shape is not None and len(weight.shape) == 2 else None


def lacks_kernel_shape(node: ir.Node) -> bool:
    """Whether a node is a convolution that leaves the shape of its kernel to its weights, as ONNX allows."""
    return node.op_type in CONVOLUTIONS and "kernel_shape" not in node.attributes


def commutes_with_quantization(node: ir.Node) -> bool:
    """Whether quantizing before or after a node, with the same scale, gives the same integers."""
    if node.domain != "":
        return False
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    if node.op_type == "Pad":
        return _pads_with_zero(node)
    return node.op_type in _COMMUTING


def _pads_with_zero(node: ir.Node) -> bool:
    """Whether a Pad writes zeros or copies values of its input."""
    if node.attributes.get_string("mode", "constant") != "constant":
        return True
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return True
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and not tensor.numpy().any()
