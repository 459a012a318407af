"""Gradients of operators that move, join, repeat or add up elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from trtint8.sensitivity.gradients.picking import added_up
from trtint8.sensitivity.gradients.rule import Rule, Step


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
        return {0: added_up(step, [step.input(1), *others])}
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
