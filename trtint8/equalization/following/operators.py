"""How operators treat factors of channels.

An operator f is homogeneous where f(s x) = s f(x) for every factor s > 0.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import Axes, Values, operator_of
from trtint8.models.graph_constants import constant_input
from trtint8.quantization.operators import commutes_with_quantization


def is_moving(node: ir.Node) -> bool:
    """True if a node moves elements of its first input, or of all, and computes nothing."""
    operator = operator_of(node)
    moves = operator.moves and operator.values is not Values.SAME
    return moves and operator.data in ((0,), None)


def is_elementwise(node: ir.Node) -> bool:
    """True if an operator is homogeneous for each element; the output has the shape of the first input."""
    operator = operator_of(node)
    return operator.homogeneous and operator.axes is Axes.ELEMENTWISE


def is_reducing(node: ir.Node) -> bool:
    """True if an operator is homogeneous along the axes that it reduces."""
    operator = operator_of(node)
    return operator.homogeneous and operator.axes is Axes.SEVERAL


def is_spatial(node: ir.Node) -> bool:
    """Whether an operator is homogeneous for each channel of (N, C, spatial...) and mixes no channels."""
    if node.op_type == "Resize":
        transformation = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
        return transformation != "tf_crop_and_resize"
    if node.op_type == "Pad":
        return _pads_spatially(node)
    operator = operator_of(node)
    return operator.homogeneous and operator.axes is Axes.IMAGES


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
