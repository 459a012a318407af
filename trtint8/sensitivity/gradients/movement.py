"""Gradients of operators that move, join, repeat or average elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import constant_input, read_constant
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


def _pad(step: Step) -> Mapping[int, ir.Value]:
    if step.attributes.get("mode", "constant") != "constant":
        raise step.refused("it pads with elements of its input")
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
    places = _places_by_axis(step)
    if places is None:
        return {0: _added_up(step)}
    gradient = step.gradient
    if len(step.shape(step.output)) < len(step.shape(step.input(0))):  # one element was picked along an axis
        gradient = step.writer.op("Unsqueeze", gradient, step.writer.integers(list(places)))
    for axis, (picked, size) in places.items():
        gradient = _spread(step, gradient, axis, picked, size)
    gradient.shape, gradient.type = step.input(0).shape, step.input(0).type
    return {0: gradient}


def _places_by_axis(step: Step) -> Mapping[int, tuple[NDArray[np.int64], int]] | None:
    """Which elements are picked along each axis, and of how many.

    Returns:
        Axis to indices, int64 of shape (picked,), and the size of the axis; None where they are not known
        before the network runs, or where an element is picked twice.
    """
    node, shape = step.node, step.shape(step.input(0))
    constants = [constant_input(node, index) for index in range(1, len(node.inputs))]
    numbers = [value for value in constants if value is not None]
    if len(numbers) < len(constants):
        return None
    picks: dict[int, Any]
    if node.op_type == "Gather":
        picks = {normalized([step.attributes.get("axis", 0)], len(shape))[0]: numbers[0]}
    else:
        starts, ends = numbers[:2]
        axes = normalized(numbers[2].tolist() if len(numbers) > 2 else range(len(starts)), len(shape))
        steps = numbers[3] if len(numbers) > 3 else [1] * len(axes)
        bounds = zip(starts, ends, steps, strict=True)
        picks = {axis: slice(*map(int, bound)) for axis, bound in zip(axes, bounds, strict=True)}
    places: dict[int, tuple[NDArray[np.int64], int]] = {}
    for axis, pick in picks.items():
        size = shape[axis]
        if not isinstance(size, int):
            return None
        picked = np.atleast_1d(np.arange(size)[pick])
        if picked.ndim != 1 or len(set(picked.tolist())) != picked.size:
            return None
        places[axis] = (picked, size)
    return places


def _spread(step: Step, gradient: ir.Value, axis: int, picked: NDArray[np.int64], size: int) -> ir.Value:
    """Puts a gradient's elements along an axis at their places among zeros; quicker than ScatterElements."""
    writer, rank = step.writer, len(step.shape(step.input(0)))
    pads = np.zeros((2, rank), np.int64)
    if picked.size and np.array_equal(picked, np.arange(picked[0], picked[0] + picked.size)):
        pads[:, axis] = picked[0], size - picked[0] - picked.size
        return writer.op("Pad", gradient, writer.integers(pads.ravel().tolist()))
    pads[1, axis] = 1
    with_zero = writer.op("Pad", gradient, writer.integers(pads.ravel().tolist()))
    sources = np.full(size, picked.size, np.int64)
    sources[picked] = np.arange(picked.size)
    return writer.op("Gather", with_zero, writer.constant(sources), axis=axis)


def _added_up(step: Step) -> ir.Value:
    """Adds every gradient up at the place that its element came from.

    The operator is applied to the places of its input's elements, so it may pick them in any way.
    """
    writer, x, one = step.writer, step.input(0), step.writer.integers([1])
    shape, size = writer.op("Shape", x), writer.op("Size", x)
    places = writer.op("Range", writer.constant(np.int64(0)), size, writer.constant(np.int64(1)))
    grid = writer.op("Reshape", places, shape)
    taken = writer.copy(step.node, [grid, *step.node.inputs[1:]])
    taken.type = ir.TensorType(ir.DataType.INT64)
    flat = writer.integers([-1])
    zeros = writer.op(
        "ConstantOfShape", writer.op("Reshape", size, one), value=ir.tensor(np.zeros(1, np.float32))
    )
    values = [writer.op("Reshape", value, flat) for value in (taken, step.gradient)]
    summed = writer.op("ScatterElements", zeros, *values, axis=0, reduction="add")
    return writer.op("Reshape", summed, shape, like=x)


def _reduce_mean(step: Step) -> Mapping[int, ir.Value]:
    writer, x = step.writer, step.input(0)
    rank = len(step.shape(x))
    axes = step.attributes.get("axes")
    if axes is None and len(step.node.inputs) > 1:
        axes = read_constant(step.input(1))
    axes = normalized(range(rank) if axes is None else axes, rank)
    gradient = step.gradient
    if not step.attributes.get("keepdims", 1):
        gradient = writer.op("Unsqueeze", gradient, writer.integers(axes))
    factor = 1.0
    if step.node.op_type == "ReduceMean":
        factor = 1 / math.prod(step.sizes(x, axes))
    scaled = writer.op("Mul", gradient, writer.number(factor))
    return {0: writer.op("Expand", scaled, writer.op("Shape", x), like=x)}


MOVEMENT: Mapping[str, Rule] = {
    "Concat": _concat,
    "Flatten": _reshaped,
    "Gather": _picked,
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "ReduceSum": _reduce_mean,
    "Reshape": _reshaped,
    "Slice": _picked,
    "Squeeze": _reshaped,
    "Transpose": _transpose,
    "Unsqueeze": _reshaped,
}
