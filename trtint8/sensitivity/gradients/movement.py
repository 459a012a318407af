"""Gradients of operators that move, join, repeat, add up, pick or replace elements, and of interpolations.

The attention of deformable kind reads feature maps at computed places with GridSample. A Resize is linear in
its input along one axis after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph import constant_input
from trtint8.models.graph_writer import GraphWriter, static_shape
from trtint8.sensitivity.gradients.rule import Rule, Step, normalized


def _reshaped(step: Step) -> Mapping[int, ir.Value]:
    x = step.input(0)
    return {0: step.writer.op("Reshape", step.gradient, step.writer.op("Shape", x), like=x)}


def _transpose(step: Step) -> Mapping[int, ir.Value]:
    rank = len(step.shape(step.input(0)))
    order = list(step.attributes.get("perm", range(rank)[::-1]))
    return {
        0: step.writer.op("Transpose", step.gradient, like=step.input(0), perm=np.argsort(order).tolist())
    }


def _concat(step: Step) -> Mapping[int, ir.Value]:
    """Every input takes its part of the gradient."""
    writer = step.writer
    axis = int(step.attributes["axis"]) % len(step.shape(step.output))
    start, gradients = 0, {}
    for index in range(max(step.wanted) + 1):
        (size,) = step.sizes(step.input(index), [axis])
        if index in step.wanted:
            bounds = [writer.integers([value]) for value in (start, start + size, axis)]
            gradients[index] = writer.op("Slice", step.gradient, *bounds, like=step.input(index))
        start += size
    return gradients


def _split(step: Step) -> Mapping[int, ir.Value]:
    """The gradients of all parts, with zeros for those that nothing depends on."""
    writer = step.writer
    parts = [
        writer.op("Mul", output, writer.number(0.0), like=output) if gradient is None else gradient
        for output, gradient in zip(step.node.outputs, step.gradients, strict=True)
    ]
    return {0: writer.op("Concat", *parts, like=step.input(0), axis=int(step.attributes.get("axis", 0)))}


def _expand(step: Step) -> Mapping[int, ir.Value]:
    x = step.input(0)
    axes = step.broadcast_axes(x, step.shape(x), step.shape(step.output))
    return {0: step.summed(0, step.gradient, axes)}


def _tile(step: Step) -> Mapping[int, ir.Value]:
    """The sum of the gradients of all copies."""
    writer, x = step.writer, step.input(0)
    columns = (step.input(1), writer.op("Shape", x))
    one = writer.integers([1])
    pairs = writer.op("Concat", *(writer.op("Unsqueeze", column, one) for column in columns), axis=1)
    apart = writer.op("Reshape", step.gradient, writer.op("Reshape", pairs, writer.integers([-1])))
    copies = range(0, 2 * len(step.shape(x)), 2)
    return {0: writer.reduced("ReduceSum", apart, copies, keep=False, like=x)}


def _rearranged(step: Step) -> Mapping[int, ir.Value]:
    """Of blocks of pixels that become channels, or the reverse: the other of these operators."""
    attributes = dict(step.attributes)
    if step.node.op_type == "SpaceToDepth":
        return {0: step.writer.op("DepthToSpace", step.gradient, like=step.input(0), **attributes)}
    if attributes.pop("mode", "DCR") == "DCR":
        return {0: step.writer.op("SpaceToDepth", step.gradient, like=step.input(0), **attributes)}
    writer, x, size = step.writer, step.input(0), int(attributes["blocksize"])
    channels, height, width = step.sizes(x, [1, 2, 3])
    blocks = writer.integers([0, channels // size**2, height, size, width, size])
    apart = writer.op("Reshape", step.gradient, blocks)
    ordered = writer.op("Transpose", apart, perm=[0, 1, 3, 5, 2, 4])
    return {0: writer.op("Reshape", ordered, writer.integers([0, channels, height, width]), like=x)}


def _pad(step: Step) -> Mapping[int, ir.Value]:
    axes = step.node.inputs[3:]
    others = [None, *axes] if axes else []  # without the number to pad with, which is none of the places
    if step.attributes.get("mode", "constant") != "constant":
        # What is padded with are elements of the input.
        return {0: _added_up(step, [step.input(1), *others])}
    # Pads that are negative cut off. They may be computed, as PyTorch's older exporter writes them.
    negated = step.writer.op("Neg", step.input(1))
    return {0: step.writer.op("Pad", step.gradient, negated, *others, like=step.input(0))}


def _cumulative_sum(step: Step) -> Mapping[int, ir.Value]:
    """Every element is in all sums from it on, so the gradients are summed the other way round."""
    step.only_data("its axis is computed")
    attributes = dict(step.attributes)
    backwards = 1 - int(attributes.pop("reverse", 0))
    summed = step.writer.op(
        "CumSum", step.gradient, step.input(1), like=step.input(0), reverse=backwards, **attributes
    )
    return {0: summed}


MOVEMENT: Mapping[str, Rule] = {
    "Concat": _concat,
    "CumSum": _cumulative_sum,
    "DepthToSpace": _rearranged,
    "Expand": _expand,
    "Flatten": _reshaped,
    "Pad": _pad,
    "Reshape": _reshaped,
    "SpaceToDepth": _rearranged,
    "Split": _split,
    "Squeeze": _reshaped,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshaped,
}


def _picked(step: Step) -> Mapping[int, ir.Value]:
    """Puts every gradient at the place that its element came from."""
    step.only_data("what it picks is computed")
    picks = _picks_by_axis(step)
    if picks is None:
        return {0: _added_up(step)}
    gradient = step.gradient
    if any(pick.places.ndim == 0 for pick in picks):  # which takes the axis away
        gradient = step.writer.op("Unsqueeze", gradient, step.writer.integers([pick.axis for pick in picks]))
    for pick in picks:
        gradient = _spread(step, gradient, pick)
    gradient.shape, gradient.type = step.input(0).shape, step.input(0).type
    return {0: gradient}


@dataclass(frozen=True)
class _Pick:
    """Which elements are picked along an axis.

    Attributes:
        axis: The axis.
        places: Their indices, int64 of shape () or (picked,), none twice.
        size: How many elements there are along the axis.
    """

    axis: int
    places: NDArray[np.int64]
    size: int


def _picks_by_axis(step: Step) -> list[_Pick] | None:
    """What is picked; None where that is not known before the network runs, or an element is picked twice."""
    node, shape = step.node, static_shape(step.input(0))
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


def _spread(step: Step, gradient: ir.Value, pick: _Pick) -> ir.Value:
    """Puts a gradient's elements along an axis at their places among zeros; quicker than ScatterElements."""
    writer, places = step.writer, np.atleast_1d(pick.places)
    first = int(places[0]) if places.size else 0
    in_a_row = np.array_equal(places, np.arange(first, first + places.size))
    pads = np.zeros((2, len(step.shape(step.input(0)))), np.int64)
    pads[:, pick.axis] = (first, pick.size - first - places.size) if in_a_row else (0, 1)
    padded = writer.op("Pad", gradient, writer.integers(pads.ravel().tolist()))
    if in_a_row:
        return padded
    # Behind the last element there is a zero now, for all places that nothing came from.
    sources = np.full(pick.size, places.size, np.int64)
    sources[places] = np.arange(places.size)
    return writer.op("Gather", padded, writer.constant(sources), axis=pick.axis)


def _added_up(step: Step, others: Sequence[ir.Value | None] | None = None) -> ir.Value:
    """The gradient of the first input of an operator that picks elements, in any way.

    The operator is applied to the places of its input's elements, and every gradient added up there.

    Args:
        step: The node.
        others: Its inputs behind the first; those that it has where None.
    """
    others = step.node.inputs[1:] if others is None else others
    taken = step.writer.copy(step.node, [_places(step), *others])
    taken.type = ir.TensorType(ir.DataType.INT64)
    return step.added_up(taken)


def _places(step: Step) -> ir.Value:
    """The place of every element of the first input in this input flattened, in the input's shape."""
    writer, x = step.writer, step.input(0)
    first, by = (writer.constant(np.int64(number)) for number in (0, 1))
    return writer.op("Reshape", writer.op("Range", first, writer.op("Size", x), by), writer.op("Shape", x))


def _gathered(step: Step) -> Mapping[int, ir.Value]:
    """Adds every gradient up at the place that its element came from."""
    step.only_data("what it picks is computed")
    return {0: _added_up(step)}


def _largest(step: Step) -> Mapping[int, ir.Value]:
    """Of TopK: the places of the largest elements are its second output."""
    step.only_data("what it picks is computed")
    places = step.writer.op(
        "GatherElements", _places(step), step.node.outputs[1], axis=int(step.attributes.get("axis", -1))
    )
    return {0: step.added_up(places)}


def _replaced(step: Step) -> Mapping[int, ir.Value]:
    """What is replaced has no gradient; what comes in its place has that of the place."""
    writer, attributes = step.writer, dict(step.attributes)
    kind, reduction = step.node.op_type, attributes.pop("reduction", "none")
    if reduction not in ("none", "add"):
        raise step.refused(f"its reduction is '{reduction}'")
    if 1 in step.wanted:
        raise step.refused("what it replaces is computed")
    gradients, gradient, places = {}, step.gradient, step.input(1)
    if 0 in step.wanted:
        gradients[0] = gradient
        if reduction == "none":
            nothing = writer.op("Mul", step.input(2), writer.number(0.0))
            gradients[0] = writer.op(kind, gradient, places, nothing, like=step.input(0), **attributes)
    if 2 in step.wanted:
        picking = kind.replace("Scatter", "Gather")
        gradients[2] = writer.op(picking, gradient, places, like=step.input(2), **attributes)
    return gradients


PICKING: Mapping[str, Rule] = {
    "Gather": _picked,
    "GatherElements": _gathered,
    "GatherND": _gathered,
    "ScatterElements": _replaced,
    "ScatterND": _replaced,
    "Slice": _picked,
    "TopK": _largest,
}


#: Names of the interpolation between the four pixels around a place, in older and newer operators.
_LINEAR = ("bilinear", "linear")

#: The four pixels around a place, from the one with the lowest coordinates on: x and y.
_CORNERS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)


def _grid_sample(step: Step) -> Mapping[int, ir.Value]:
    attributes = step.attributes
    mode, padding = attributes.get("mode", "bilinear"), attributes.get("padding_mode", "zeros")
    if mode not in _LINEAR or padding != "zeros":
        raise step.refused(f"its mode is '{mode}' and its padding '{padding}'")
    if len(step.shape(step.input(0))) != 4:
        raise step.refused("what it samples are no images")
    places = _Places.of(step)
    gradients = {}
    if 0 in step.wanted:
        gradients[0] = _of_images(step, places)
    if 1 in step.wanted:
        gradients[1] = _of_grid(step, places)
    return gradients


@dataclass(frozen=True)
class _Places:
    """Where values are read.

    Attributes:
        sizes: Width and height of the images.
        half: What a grid's 1 is in pixels, along x and y.
        centre: The middle of the images in pixels, x and y.
        pixels: The places in pixels: x and y along the last axis.
        lower: The pixel with the lowest coordinates of the four around each place.
        share: How far the place is from that pixel.
    """

    sizes: tuple[int, int]
    half: tuple[float, float]
    centre: ir.Value
    pixels: ir.Value
    lower: ir.Value
    share: ir.Value

    @classmethod
    def of(cls, step: Step) -> _Places:
        writer = step.writer
        height, width = step.sizes(step.input(0), [2, 3])
        reach = 1 if step.attributes.get("align_corners", 0) else 0
        half = ((width - reach) / 2, (height - reach) / 2)
        if not all(half):
            raise step.refused("its images are one pixel wide or high")
        scaled = writer.op("Mul", step.input(1), _numbers(writer, *half))
        centre = _numbers(writer, (width - 1) / 2, (height - 1) / 2)
        pixels = writer.op("Add", scaled, centre)
        lower = writer.op("Floor", pixels)
        return cls((width, height), half, centre, pixels, lower, writer.op("Sub", pixels, lower))

    def as_grid(self, step: Step, pixels: ir.Value) -> ir.Value:
        """Places in pixels as GridSample takes them."""
        writer = step.writer
        return writer.op("Div", writer.op("Sub", pixels, self.centre), _numbers(writer, *self.half))


def _of_images(step: Step, places: _Places) -> ir.Value:
    """Every gradient goes to the four pixels around its place, as much as each was weighed."""
    writer, x = step.writer, step.input(0)
    width, height = places.sizes
    # One axis more, before x and y, for the four pixels.
    four = writer.integers([-2])
    share = writer.op("Unsqueeze", places.share, four)
    corners = writer.op("Add", writer.op("Unsqueeze", places.lower, four), writer.constant(_CORNERS))
    nearest = writer.op(
        "Min",
        writer.op("Max", corners, writer.number(0.0)),
        _numbers(writer, width - 1, height - 1),
    )
    inside = writer.op("Cast", writer.op("Equal", corners, nearest), to=ir.DataType.FLOAT.value)
    weight = writer.op("Abs", writer.op("Sub", share, writer.constant(1 - _CORNERS)))
    weights = writer.reduced("ReduceProd", writer.op("Mul", weight, inside), [-1], keep=False)
    index = writer.op("Mul", nearest, _numbers(writer, 1, width))
    flat = writer.reduced("ReduceSum", index, [-1], keep=False)
    shared = writer.op(
        "Mul",
        writer.op("Unsqueeze", step.gradient, writer.integers([-1])),
        writer.op("Unsqueeze", weights, writer.integers([1])),
    )
    values = writer.op("Reshape", shared, writer.integers([0, 0, -1]))
    positions = writer.op(
        "Expand",
        writer.op(
            "Reshape",
            writer.op("Cast", writer.op("Unsqueeze", flat, writer.integers([1])), to=ir.DataType.INT64.value),
            writer.integers([0, 1, -1]),
        ),
        writer.op("Shape", values),
    )
    images = writer.op("Shape", x, start=0, end=2)
    shape = writer.op("Concat", images, writer.integers([width * height]), axis=0)
    nothing = writer.op("ConstantOfShape", shape, value=ir.tensor(np.zeros(1, np.float32)))
    summed = writer.op("ScatterElements", nothing, positions, values, axis=2, reduction="add")
    return writer.op("Reshape", summed, writer.op("Shape", x), like=x)


def _of_grid(step: Step, places: _Places) -> ir.Value:
    """Between two pixels the value is linear along each axis: its slope is the difference at their ends."""
    writer = step.writer
    slopes = []
    for axis, half in enumerate(places.half):
        along = _numbers(writer, axis == 0, axis == 1)
        below = writer.op("Sub", places.pixels, writer.op("Mul", places.share, along))
        above = writer.op("Add", below, along)
        ends = [
            writer.copy(step.node, [step.input(0), places.as_grid(step, pixels)]) for pixels in (above, below)
        ]
        slope = writer.op("Mul", writer.op("Sub", *ends), step.gradient)
        summed = writer.reduced("ReduceSum", slope, [1], keep=False)
        scaled = writer.op("Mul", summed, writer.number(half))
        slopes.append(writer.op("Unsqueeze", scaled, writer.integers([-1])))
    return writer.op("Concat", *slopes, axis=-1, like=step.input(1))


def _numbers(writer: GraphWriter, *values: float) -> ir.Value:
    """A constant of float32, shape (values,)."""
    return writer.constant(np.array(values, np.float32))


SAMPLING: Mapping[str, Rule] = {"GridSample": _grid_sample}


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
