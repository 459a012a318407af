"""The gradient of a Resize, which is linear in its input along one axis after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trtint8.models.graph_constants import constant_input
from trtint8.sensitivity.gradients.rule import Rule, Step

#: With these, and whole numbers as scales, every element becomes a block of equal ones.
_BLOCKS = (
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
)


def _resize(step: Step) -> Mapping[int, ir.Value]:
    attributes, x = step.attributes, step.input(0)
    if len(step.shape(x)) != 4 or attributes.get("axes") or attributes.get("antialias"):
        raise step.refused("what it resizes is no image, or it smooths it")
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise step.refused("it keeps the ratio of the sides")
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise step.refused("it resizes a part of its input")
    spatial = range(2, 4)
    before, after = step.sizes(x, spatial), step.sizes(step.output, spatial)
    if step.shape(x)[:2] != step.shape(step.output)[:2]:
        raise step.refused("samples or channels are resized")
    if _makes_blocks(step, before, after):
        factors = [big // small for small, big in zip(before, after, strict=True)]
        mean = step.writer.op("AveragePool", step.gradient, kernel_shape=factors, strides=factors)
        size = step.writer.number(float(np.prod(factors)))
        return {0: step.writer.op("Mul", mean, size, like=x)}
    gradient = step.gradient
    for axis, small, big in zip(spatial, before, after, strict=True):
        if small != big:
            gradient = _along(step, gradient, axis, small, big)
    gradient.shape, gradient.type = x.shape, x.type
    return {0: gradient}


def _makes_blocks(step: Step, before: Sequence[int], after: Sequence[int]) -> bool:
    attributes = step.attributes
    how = (
        attributes.get("coordinate_transformation_mode", "half_pixel"),
        attributes.get("nearest_mode", "round_prefer_floor"),
    )
    scales = constant_input(step.node, 2)
    # The sizes may be whole multiples where the scales are not: 4 by 2.1 is 8, in other blocks.
    exact = scales is None or all(map(float.is_integer, scales.tolist()))
    whole = exact and all(big % small == 0 for small, big in zip(before, after, strict=True))
    return attributes.get("mode", "nearest") == "nearest" and how in _BLOCKS and whole


def _along(step: Step, gradient: ir.Value, axis: int, small: int, big: int) -> ir.Value:
    """The gradient of the Resize of one spatial axis: a product with the matrix that it is.

    The matrix is what the operator itself makes of unit vectors; ONNX Runtime computes it when the network
    is opened.
    """
    writer, node = step.writer, step.node
    units = writer.constant(np.eye(small, dtype=np.float32).reshape(1, 1, small, small))
    scales = constant_input(node, 2)
    if scales is not None and scales.size:
        one = np.ones(4, np.float32)
        one[2] = scales[axis]
        inputs = [units, None, writer.constant(one)]
    elif len(node.inputs) > 3:
        inputs = [units, None, None, writer.integers([1, 1, big, small])]
    else:
        raise step.refused("by how much is computed")
    resized = writer.copy(node, inputs)
    resized.shape = ir.Shape([1, 1, big, small])
    matrix = writer.op("Reshape", resized, writer.integers([big, small]))
    if axis == 3:
        return writer.op("MatMul", gradient, matrix)
    return writer.op("MatMul", writer.op("Transpose", matrix, perm=[1, 0]), gradient)


RESIZING: Mapping[str, Rule] = {"Resize": _resize}
