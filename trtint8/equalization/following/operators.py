"""How operators treat factors of channels.

An operator f is homogeneous where f(s x) = s f(x) for every factor s > 0.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import constant_input
from trtint8.quantization.operators import commutes_with_quantization

#: Homogeneous for each element on its own; the output has the shape of the first input.
ELEMENTWISE = frozenset({"Abs", "Dropout", "Identity", "LeakyRelu", "Neg", "PRelu", "Relu"})

#: Homogeneous for each channel of (N, C, spatial...) on its own.
_POOLING = frozenset(
    {"AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"}
)

#: Homogeneous along the axes that they reduce.
REDUCING = frozenset({"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"})

#: Operators that move elements and compute nothing.
MOVING = frozenset(
    {
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)

#: Operators that end with a factor and an offset per channel, to the indices of these constants.
AFFINE = {
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
}

#: The operators of :data:`AFFINE` whose channels are axis 1; the others have them on the last axes.
AFFINE_ON_AXIS_1 = frozenset({"BatchNormalization", "InstanceNormalization"})


def is_spatial(node: ir.Node) -> bool:
    """Whether an operator is homogeneous for each channel of (N, C, spatial...) and mixes no channels."""
    if node.op_type == "Resize":
        transformation = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
        return transformation != "tf_crop_and_resize"
    if node.op_type == "Pad":
        return _pads_spatially(node)
    return node.op_type in _POOLING


def _pads_spatially(node: ir.Node) -> bool:
    pads = constant_input(node, 1)
    if pads is None or len(node.inputs) > 3 or not commutes_with_quantization(node):
        return False
    begins, ends = pads.reshape(2, -1)
    return not begins[:2].any() and not ends[:2].any()


def reduced_axes(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """The axes that a reducing operator reduces, from 0 on; None where they are computed."""
    axes: Any = node.attributes.get_ints("axes", ())
    if not axes and len(node.inputs) > 1 and node.inputs[1] is not None:
        constant: NDArray[Any] | None = constant_input(node, 1)
        if constant is None:
            return None
        axes = constant.tolist()
    if not axes:
        return () if node.attributes.get_int("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(int(axis) % rank for axis in axes))
