"""Gradients of operators that pick elements, and of those that replace some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import constant_input
from trtint8.models.graph_writer import static_shape
from trtint8.sensitivity.gradients.rule import Rule, Step, normalized


def _picked(step: Step) -> Mapping[int, ir.Value]:
    """Puts every gradient at the place that its element came from."""
    step.only_data("what it picks is computed")
    picks = _picks_by_axis(step)
    if picks is None:
        return {0: added_up(step)}
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


def added_up(step: Step, others: Sequence[ir.Value | None] | None = None) -> ir.Value:
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
    return {0: added_up(step)}


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
