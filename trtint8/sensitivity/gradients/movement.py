"""Gradients of operators that move, join, repeat or average elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import constant_input
from trtint8.sensitivity.gradients.rule import Rule, Step, normalized
from trtint8.sensitivity.gradients.writer import static_shape


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
    own, whole = step.shape(x), step.shape(step.output)
    lead = len(whole) - len(own)
    aligned = list(zip(own, whole[lead:], strict=True))
    if any(size is None or (size != 1 and size != other) for size, other in aligned):
        raise step.refused(f"whether '{x.name}' is broadcast is not known")
    axes = [*range(lead), *(axis for axis, (size, other) in enumerate(aligned, lead) if size != other)]
    summed = step.writer.reduced("ReduceSum", step.gradient, axes) if axes else step.gradient
    return {0: step.writer.op("Reshape", summed, step.writer.op("Shape", x), like=x)}


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
    if step.attributes.get("mode", "constant") != "constant":
        return {0: _added_up(step)}  # What is padded with are elements of the input.
    writer, x = step.writer, step.input(0)
    rank = len(step.shape(x))
    pads = step.constant(1).tolist()
    if len(pads) != 2 * rank or len(step.node.inputs) > 3 or min(pads) < 0:
        raise step.refused("it does not pad all axes")
    ends = [-pad if pad else np.iinfo(np.int64).max for pad in pads[rank:]]
    bounds = [writer.integers(values) for values in (pads[:rank], ends, range(rank))]
    return {0: writer.op("Slice", step.gradient, *bounds, like=x)}


def _picked(step: Step) -> Mapping[int, ir.Value]:
    """Puts every gradient at the place that its element came from."""
    if any(index != 0 for index in step.wanted):
        raise step.refused("what it picks is computed")
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


def _added_up(step: Step) -> ir.Value:
    """Adds every gradient up at the place that its element came from.

    The operator is applied to the places of its input's elements, so it may pick them in any way.
    """
    writer, x = step.writer, step.input(0)
    first, by = (writer.constant(np.int64(number)) for number in (0, 1))
    places = writer.op("Range", first, writer.op("Size", x), by)
    grid = writer.op("Reshape", places, writer.op("Shape", x))
    taken = writer.copy(step.node, [grid, *step.node.inputs[1:]])
    taken.type = ir.TensorType(ir.DataType.INT64)
    return step.added_up(taken)


MOVEMENT: Mapping[str, Rule] = {
    "Concat": _concat,
    "DepthToSpace": _rearranged,
    "Expand": _expand,
    "Flatten": _reshaped,
    "Gather": _picked,
    "Pad": _pad,
    "Reshape": _reshaped,
    "Slice": _picked,
    "SpaceToDepth": _rearranged,
    "Split": _split,
    "Squeeze": _reshaped,
    "Transpose": _transpose,
    "Unsqueeze": _reshaped,
}
