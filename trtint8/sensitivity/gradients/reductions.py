"""Gradients of sums, means, norms and extremes over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from trtint8.sensitivity.gradients.rule import Rule, Step, normalized

#: The least norm that is divided by, so that nothing becomes infinite.
LEAST_NORM = 1e-12


def _reduced_axes(step: Step) -> list[int]:
    """The axes, counted from the first one.

    Raises:
        NoGradientError: They are computed, or no axis is reduced, of which versions of ONNX differ in what it
            means.
    """
    rank = len(step.shape(step.input(0)))
    axes = step.attributes.get("axes")
    if axes is None and len(step.node.inputs) > 1 and step.node.inputs[1] is not None:
        axes = step.constant(1)
    if axes is None or not len(axes):
        if step.attributes.get("noop_with_empty_axes", 0):
            raise step.refused("it reduces no axis")
        axes = range(rank)
    return normalized(axes, rank)


def _with_axes(step: Step, value: ir.Value, axes: list[int]) -> ir.Value:
    """A value of the output's shape with the axes that were reduced."""
    if step.attributes.get("keepdims", 1):
        return value
    return step.writer.op("Unsqueeze", value, step.writer.integers(axes))


def _reduce_extreme(step: Step) -> Mapping[int, ir.Value]:
    """Every gradient goes to the largest element, or the smallest; of equal ones, to each."""
    x, axes = step.input(0), _reduced_axes(step)
    chosen = step.writer.op("Equal", x, _with_axes(step, step.output, axes))
    return {0: step.kept_where(chosen, gradient=_with_axes(step, step.gradient, axes), like=x)}


def _reduce_mean(step: Step) -> Mapping[int, ir.Value]:
    writer, x, axes = step.writer, step.input(0), _reduced_axes(step)
    gradient, factor = _with_axes(step, step.gradient, axes), 1.0
    if step.node.op_type == "ReduceMean":
        factor = 1 / math.prod(step.sizes(x, axes))
    scaled = writer.op("Mul", gradient, writer.number(factor))
    return {0: writer.op("Expand", scaled, writer.op("Shape", x), like=x)}


def _of_elements(derivative: Callable[[Step, ir.Value], ir.Value]) -> Rule:
    """The rule of a reduction whose derivative by an element follows from the element and the output.

    Args:
        derivative: Gets the output with the axes that were reduced.
    """

    def rule(step: Step) -> Mapping[int, ir.Value]:
        axes = _reduced_axes(step)
        slope = derivative(step, _with_axes(step, step.output, axes))
        gradient = _with_axes(step, step.gradient, axes)
        return {0: step.writer.op("Mul", gradient, slope, like=step.input(0))}

    return rule


def _of_norm(step: Step, output: ir.Value) -> ir.Value:
    """The element over the norm; zero where the norm is."""
    writer, x = step.writer, step.input(0)
    return writer.op("Div", x, writer.op("Max", output, writer.number(LEAST_NORM)))


def _of_log_sum(step: Step, output: ir.Value) -> ir.Value:
    return step.writer.op("Exp", step.writer.op("Sub", step.input(0), output))


REDUCTIONS: Mapping[str, Rule] = {
    "ReduceL1": _of_elements(lambda step, _: step.writer.op("Sign", step.input(0))),
    "ReduceL2": _of_elements(_of_norm),
    "ReduceLogSumExp": _of_elements(_of_log_sum),
    "ReduceMax": _reduce_extreme,
    "ReduceMean": _reduce_mean,
    "ReduceMin": _reduce_extreme,
    "ReduceSum": _reduce_mean,
    "ReduceSumSquare": _of_elements(
        lambda step, _: step.writer.op("Mul", step.input(0), step.writer.number(2.0))
    ),
}
