"""Gradients of operators that move, join, repeat, add up, pick or replace elements, and of interpolations.

The attention of deformable kind reads feature maps at computed places with GridSample. A Resize is linear in
its input along one axis after another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Float32s, Ints
from trtint8.models.graph import constant_input
from trtint8.models.graph_writer import Operand, Term, static_shape
from trtint8.sensitivity.gradients.rule import Rule, Step, normalized


def _reshaped(step: Step) -> Term:
    return step.gradient.op("Reshape", step.x.op("Shape"))


def _transpose(step: Step) -> Term:
    order = step.attributes.get("perm", range(step.rank)[::-1])
    return step.gradient.op("Transpose", perm=np.argsort(order).tolist())


def _concat(step: Step) -> Mapping[int, Term]:
    """Every input takes its part of the gradient."""
    axis = step.axis()
    sizes = [step.sizes(step.input(index), [axis])[0] for index in range(max(step.wanted) + 1)]
    ends = np.cumsum(sizes).tolist()
    return {
        index: step.gradient.op("Slice", [ends[index] - sizes[index]], [ends[index]], [axis])
        for index in step.wanted
    }


def _split(step: Step) -> Term:
    """The gradients of all parts, with zeros for those that nothing depends on."""
    parts = [
        step.writer.op("Mul", output, 0) if gradient is None else gradient
        for output, gradient in zip(step.node.outputs, step.gradients, strict=True)
    ]
    return step.writer.op("Concat", *parts, axis=int(step.attributes.get("axis", 0)))


def _expand(step: Step) -> Term:
    axes = step.broadcast_axes(step.x, step.shape(step.x), step.shape(step.y))
    return step.summed(0, step.gradient, axes)


def _tile(step: Step) -> Term:
    """The sum of the gradients of all copies."""
    columns = [term.op("Unsqueeze", [1]) for term in (step.input(1), step.x.op("Shape"))]
    pairs = step.writer.op("Concat", *columns, axis=1)
    apart = step.gradient.op("Reshape", pairs.op("Reshape", [-1]))
    return apart.reduced("ReduceSum", range(0, 2 * step.rank, 2), keep=False)


def _rearranged(step: Step) -> Term:
    """Of blocks of pixels that become channels, or the reverse: the other of these operators."""
    attributes = dict(step.attributes)
    if step.node.op_type == "SpaceToDepth":
        return step.gradient.op("DepthToSpace", **attributes)
    if attributes.pop("mode", "DCR") == "DCR":
        return step.gradient.op("SpaceToDepth", **attributes)
    size = int(attributes["blocksize"])
    channels, height, width = step.sizes(step.x, [1, 2, 3])
    apart = step.gradient.op("Reshape", [0, channels // size**2, height, size, width, size])
    return apart.op("Transpose", perm=[0, 1, 3, 5, 2, 4]).op("Reshape", [0, channels, height, width])


def _pad(step: Step) -> Term:
    axes = step.node.inputs[3:]
    others = [None, *axes] if axes else []  # without the number to pad with, which is none of the places
    if step.attributes.get("mode", "constant") != "constant":
        # What is padded with are elements of the input.
        return _added_up(step, [step.input(1), *others])
    # Pads that are negative cut off. They may be computed, as PyTorch's older exporter writes them.
    return step.gradient.op("Pad", -step.input(1), *others)


def _cumulative_sum(step: Step) -> Term:
    """Every element is in all sums from it on, so the gradients are summed the other way round."""
    reverse = 1 - int(step.attributes.get("reverse", 0))
    return step.gradient.op("CumSum", step.input(1), **{**step.attributes, "reverse": reverse})


def _picked(step: Step) -> Term:
    """Puts every gradient at the place that its element came from."""
    picks = _picks_by_axis(step)
    if picks is None:
        return _added_up(step)
    gradient = step.gradient
    if any(pick.places.ndim == 0 for pick in picks):  # which takes the axis away
        gradient = gradient.op("Unsqueeze", [pick.axis for pick in picks])
    for pick in picks:
        gradient = _spread(step, gradient, pick)
    return gradient


@dataclass(frozen=True)
class _Pick:
    """Which elements are picked along an axis.

    Attributes:
        axis: The axis.
        places: Their indices, int64 of shape () or (picked,), none twice.
        size: How many elements there are along the axis.
    """

    axis: int
    places: Ints
    size: int


def _picks_by_axis(step: Step) -> list[_Pick] | None:
    """What is picked; None where that is not known before the network runs, or an element is picked twice."""
    node, shape = step.node, static_shape(step.x.value)
    constants = [constant_input(node, index) for index in range(1, len(node.inputs))]
    numbers = [value for value in constants if value is not None]
    if shape is None or len(numbers) < len(constants):
        return None
    indices: list[Any]
    if node.op_type == "Gather":
        axes = [int(step.attributes.get("axis", 0))]
        indices = [numbers[0]]
    else:
        starts, ends, *others = (array.tolist() for array in numbers)
        axes = others[0] if others else list(range(len(starts)))
        steps = others[1] if len(others) > 1 else [1] * len(axes)
        indices = [slice(*bounds) for bounds in zip(starts, ends, steps, strict=False)]
    picks = []
    for axis, index in zip(normalized(axes, len(shape)), indices, strict=False):
        size = shape[axis]
        if not isinstance(size, int):
            return None
        try:
            places = np.asarray(np.arange(size)[index])
        except (IndexError, ValueError):  # ONNX Runtime says what is wrong
            return None
        if places.ndim > 1 or len(np.unique(places)) != places.size:
            return None
        picks.append(_Pick(axis, places, size))
    return picks


def _spread(step: Step, gradient: Term, pick: _Pick) -> Term:
    """Puts a gradient's elements along an axis at their places among zeros; quicker than ScatterElements."""
    places = np.atleast_1d(pick.places)
    first = int(places[0]) if places.size else 0
    in_a_row = np.array_equal(places, np.arange(first, first + places.size))
    pads = np.zeros((2, step.rank), np.int64)
    pads[:, pick.axis] = (first, pick.size - first - places.size) if in_a_row else (0, 1)
    padded = gradient.op("Pad", pads.ravel())
    if in_a_row:
        return padded
    # Behind the last element there is a zero now, for all places that nothing came from.
    sources = np.full(pick.size, places.size, np.int64)
    sources[places] = np.arange(places.size)
    return padded.op("Gather", sources, axis=pick.axis)


def _added_up(step: Step, others: Sequence[Operand] | None = None) -> Term:
    """The gradient of the first input of an operator that picks elements, in any way.

    The operator is applied to the places of its input's elements, and every gradient added up there.

    Args:
        step: The node.
        others: Its inputs behind the first; those that it has where None.
    """
    others = step.node.inputs[1:] if others is None else others
    taken = step.writer.copy(step.node, [_places(step), *others])
    taken.value.type = ir.TensorType(ir.DataType.INT64)
    return step.added_up(taken)


def _places(step: Step) -> Term:
    """The place of every element of the first input in this input flattened, in the input's shape."""
    places = step.writer.op("Range", np.int64(0), step.x.op("Size"), np.int64(1))
    return places.op("Reshape", step.x.op("Shape"))


def _largest(step: Step) -> Term:
    """Of TopK: the places of the largest elements are its second output."""
    return step.added_up(_places(step).op("GatherElements", step.node.outputs[1], axis=step.axis()))


def _replaced(step: Step) -> Mapping[int, Term]:
    """What is replaced has no gradient; what comes in its place has that of the place."""
    attributes = dict(step.attributes)
    kind, reduction = step.node.op_type, attributes.pop("reduction", "none")
    if reduction not in ("none", "add"):
        raise step.refused(f"its reduction is '{reduction}'")
    if 1 in step.wanted:
        raise step.refused("what it replaces is computed")
    replaced, places = step.gradient, step.input(1)
    if reduction == "none":
        replaced = replaced.op(kind, places, step.input(2) * 0, **attributes)
    return {0: replaced, 2: step.gradient.op(kind.replace("Scatter", "Gather"), places, **attributes)}


#: Names of the interpolation between the four pixels around a place, in older and newer operators.
_LINEAR = ("bilinear", "linear")

#: The four pixels around a place, from the one with the lowest coordinates on: x and y.
_CORNERS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)


def _grid_sample(step: Step) -> Mapping[int, Term]:
    attributes = step.attributes
    mode, padding = attributes.get("mode", "bilinear"), attributes.get("padding_mode", "zeros")
    if mode not in _LINEAR or padding != "zeros":
        raise step.refused(f"its mode is '{mode}' and its padding '{padding}'")
    if step.rank != 4:
        raise step.refused("what it samples are no images")
    # Width and height, as x and y stand in a grid, and what a grid's 1 is in pixels along both.
    sizes = np.array(step.sizes(step.x, [3, 2]), np.float32)
    half = (sizes - np.float32(bool(attributes.get("align_corners", 0)))) / np.float32(2)
    if not half.all():
        raise step.refused("its images are one pixel wide or high")
    pixels = step.input(1) * half + (sizes - 1) / 2
    share = pixels - pixels.op("Floor")
    gradients = {}
    if 0 in step.wanted:
        gradients[0] = _of_images(step, sizes, pixels.op("Floor"), share)
    if 1 in step.wanted:
        gradients[1] = _of_grid(step, sizes, half, pixels, share)
    return gradients


def _of_images(step: Step, sizes: Float32s, lower: Term, share: Term) -> Term:
    """Every gradient goes to the four pixels around its place, as much as each was weighed.

    Args:
        step: The node.
        sizes: Width and height of the images.
        lower: The pixel with the lowest coordinates of the four around each place: x and y on the last axis.
        share: How far the place is from that pixel.
    """
    # One axis more, before x and y, for the four pixels.
    corners = lower.op("Unsqueeze", [-2]) + _CORNERS
    nearest = corners.op("Max", 0).op("Min", sizes - 1)
    inside = corners.op("Equal", nearest).cast(ir.DataType.FLOAT)
    weight = (share.op("Unsqueeze", [-2]) - (1 - _CORNERS)).op("Abs")
    weights = (weight * inside).reduced("ReduceProd", [-1], keep=False)
    index = (nearest * np.array([1, sizes[0]], np.float32)).reduced("ReduceSum", [-1], keep=False)
    values = step.gradient.op("Unsqueeze", [-1]) * weights.op("Unsqueeze", [1])
    values = values.op("Reshape", [0, 0, -1])
    positions = index.op("Unsqueeze", [1]).cast(ir.DataType.INT64).op("Reshape", [0, 1, -1])
    images = step.x.op("Shape", start=0, end=2)
    shape = images.op("Concat", [int(sizes.prod())], axis=0)
    nothing = shape.op("ConstantOfShape", value=ir.tensor(np.zeros(1, np.float32)))
    places = positions.op("Expand", values.op("Shape"))
    summed = nothing.op("ScatterElements", places, values, axis=2, reduction="add")
    return summed.op("Reshape", step.x.op("Shape"))


def _of_grid(step: Step, sizes: Float32s, half: Float32s, pixels: Term, share: Term) -> Term:
    """Between two pixels the value is linear along each axis: its slope is the difference at their ends."""
    slopes = []
    for axis in range(2):
        along = np.eye(2, dtype=np.float32)[axis]
        below = pixels - share * along
        ends = [
            step.writer.copy(step.node, [step.x, (place - (sizes - 1) / 2) / half])
            for place in (below + along, below)
        ]
        slope = ((ends[0] - ends[1]) * step.gradient).reduced("ReduceSum", [1], keep=False)
        slopes.append((slope * float(half[axis])).op("Unsqueeze", [-1]))
    return slopes[0].op("Concat", slopes[1], axis=-1)


#: With these, and whole numbers as scales, every element becomes a block of equal ones.
_BLOCKS = (
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
)


def _resize(step: Step) -> Term:
    attributes = step.attributes
    if step.rank != 4 or attributes.get("axes") or attributes.get("antialias"):
        raise step.refused("what it resizes is no image, or it smooths it")
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise step.refused("it keeps the ratio of the sides")
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise step.refused("it resizes a part of its input")
    spatial = range(2, 4)
    before, after = step.sizes(step.x, spatial), step.sizes(step.y, spatial)
    if step.shape(step.x)[:2] != step.shape(step.y)[:2]:
        raise step.refused("samples or channels are resized")
    if _makes_blocks(step, before, after):
        factors = [big // small for small, big in zip(before, after, strict=True)]
        mean = step.gradient.op("AveragePool", kernel_shape=factors, strides=factors)
        return mean * math.prod(factors)
    gradient = step.gradient
    for axis, small, big in zip(spatial, before, after, strict=True):
        if small != big:
            gradient = _along(step, gradient, axis, small, big)
    return gradient


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


def _along(step: Step, gradient: Term, axis: int, small: int, big: int) -> Term:
    """The gradient of the Resize of one spatial axis: a product with the matrix that it is.

    The matrix is what the operator itself makes of unit vectors; ONNX Runtime computes it when the network
    is opened.
    """
    units = np.eye(small, dtype=np.float32).reshape(1, 1, small, small)
    scales = constant_input(step.node, 2)
    inputs: list[Operand] = [units, None]
    if scales is not None and scales.size:
        inputs.append(np.array([1, 1, scales[axis], 1], np.float32))
    elif len(step.node.inputs) > 3:
        inputs += [None, [1, 1, big, small]]
    else:
        raise step.refused("by how much is computed")
    resized = step.writer.copy(step.node, inputs)
    resized.value.shape = ir.Shape([1, 1, big, small])
    matrix = resized.op("Reshape", [big, small])
    if axis == 3:
        return gradient.op("MatMul", matrix)
    return matrix.op("Transpose", perm=[1, 0]).op("MatMul", gradient)


MOVEMENT: Mapping[str, Rule] = {
    "Concat": _concat,
    "CumSum": _cumulative_sum,
    "DepthToSpace": _rearranged,
    "Expand": _expand,
    "Flatten": _reshaped,
    "Gather": _picked,
    "GatherElements": _added_up,
    "GatherND": _added_up,
    "GridSample": _grid_sample,
    "Pad": _pad,
    "Reshape": _reshaped,
    "Resize": _resize,
    "ScatterElements": _replaced,
    "ScatterND": _replaced,
    "Slice": _picked,
    "SpaceToDepth": _rearranged,
    "Split": _split,
    "Squeeze": _reshaped,
    "Tile": _tile,
    "TopK": _largest,
    "Transpose": _transpose,
    "Unsqueeze": _reshaped,
}
