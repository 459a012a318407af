"""Gradients of operators that divide values by a sum over axes, such as normalizations and Softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph_constants import read_constant
from trtint8.sensitivity.gradients.reductions import LEAST_NORM
from trtint8.sensitivity.gradients.rule import Rule, Step, normalized


def _softmax(step: Step) -> Mapping[int, ir.Value]:
    writer, output = step.writer, step.output
    axis = int(step.attributes.get("axis", -1)) % len(step.shape(output))
    product = writer.op("Mul", step.gradient, output)
    mean = writer.reduced("ReduceSum", product, [axis])
    centred = writer.op("Sub", step.gradient, mean)
    return {0: writer.op("Mul", centred, output, like=output)}


def _log_softmax(step: Step) -> Mapping[int, ir.Value]:
    writer, output = step.writer, step.output
    axis = int(step.attributes.get("axis", -1)) % len(step.shape(output))
    total = writer.reduced("ReduceSum", step.gradient, [axis])
    back = writer.op("Mul", writer.op("Exp", output), total)
    return {0: writer.op("Sub", step.gradient, back, like=output)}


def _instance_normalization(step: Step) -> Mapping[int, ir.Value]:
    scaled = _scaled(step, step.constant(1).astype("float32"))
    return {0: _standardized(step, scaled, step.input(0), list(range(2, len(step.shape(step.input(0))))))}


def _layer_normalization(step: Step) -> Mapping[int, ir.Value]:
    scaled = step.writer.op("Mul", step.gradient, step.input(1))
    return {0: _standardized(step, scaled, step.input(0), _last_axes(step))}


def _group_normalization(step: Step) -> Mapping[int, ir.Value]:
    """That of the channels of a group together, which lie along one axis once the tensor is reshaped."""
    writer, x = step.writer, step.input(0)
    (channels,) = step.sizes(x, [1])
    scale, groups = step.constant(1).astype("float32"), int(step.attributes["num_groups"])
    # One factor per channel, and per group in opset 18.
    scaled = _scaled(step, np.repeat(scale, channels // len(scale)))
    apart = writer.integers([0, groups, -1])
    values, gradient = (writer.op("Reshape", value, apart) for value in (x, scaled))
    found = _standardized(step, gradient, values, [2])
    return {0: writer.op("Reshape", found, writer.op("Shape", x), like=x)}


def _rms_normalization(step: Step) -> Mapping[int, ir.Value]:
    scaled = step.writer.op("Mul", step.gradient, step.input(1))
    return {0: _by_root_mean_square(step, scaled, step.input(0), _last_axes(step), like=step.input(0))}


def _lp_normalization(step: Step) -> Mapping[int, ir.Value]:
    writer, x = step.writer, step.input(0)
    if step.attributes.get("p", 2) != 2:
        raise step.refused("it divides by another norm than the Euclidean one")
    axes = normalized([int(step.attributes.get("axis", -1))], len(step.shape(x)))
    norm = writer.op("Max", writer.reduced("ReduceL2", x, axes), writer.number(LEAST_NORM))
    rest = _less_along(step, step.gradient, step.output, "ReduceSum", axes)
    return {0: writer.op("Div", rest, norm, like=x)}


def _local_response_normalization(step: Step) -> Mapping[int, ir.Value]:
    """Of values that are divided by a power of what the squares of neighbouring channels sum up to.

    With y = x / d^b and d = c + a mean(x^2), the gradient is g / d^b - 2 a b x mean(g y / d); the means are
    over channels around each one, and zeros beyond the first and the last count.
    """
    writer, x, attributes = step.writer, step.input(0), step.attributes
    size = int(attributes["size"])
    alpha, beta = (float(attributes.get(name, usual)) for name, usual in (("alpha", 1e-4), ("beta", 0.75)))
    if size % 2 == 0:
        raise step.refused("its window has no channel in the middle")
    (channels,) = step.sizes(x, [1])
    around, shape = size // 2, writer.op("Shape", x)

    def mean(value: ir.Value) -> ir.Value:
        planes = writer.op("Reshape", value, writer.integers([0, 1, channels, -1]))
        pads = [around, 0, around, 0]
        means = writer.op("AveragePool", planes, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
        return writer.op("Reshape", means, shape)

    power = writer.op("Mul", mean(writer.op("Mul", x, x)), writer.number(alpha))
    divisor = writer.op("Add", power, writer.number(float(attributes.get("bias", 1.0))))
    direct = writer.op("Div", step.gradient, writer.op("Pow", divisor, writer.number(beta)))
    shares = mean(writer.op("Div", writer.op("Mul", step.gradient, step.output), divisor))
    back = writer.op("Mul", writer.op("Mul", x, shares), writer.number(2 * alpha * beta))
    return {0: writer.op("Sub", direct, back, like=x)}


def _batch_normalization(step: Step) -> Mapping[int, ir.Value]:
    scale, variance = (read_constant(step.input(index)) for index in (1, 4))
    if scale is None or variance is None:
        raise step.refused("its parameters are computed")
    factors = scale / (variance + step.attributes.get("epsilon", 1e-5)) ** 0.5
    return {0: _scaled(step, factors.astype(scale.dtype), like=step.output)}


def _scaled(step: Step, factors: NDArray[Any], *, like: ir.Value | None = None) -> ir.Value:
    """The gradient times one factor per channel."""
    shaped = factors.reshape(-1, *[1] * (len(step.shape(step.input(0))) - 2))
    return step.writer.op("Mul", step.gradient, step.writer.constant(shaped), like=like)


def _last_axes(step: Step) -> list[int]:
    """The axes that a node normalizes: its own one and those behind it."""
    rank = len(step.shape(step.input(0)))
    return list(range(int(step.attributes.get("axis", -1)) % rank, rank))


def _standardized(step: Step, gradient: ir.Value, x: ir.Value, axes: list[int]) -> ir.Value:
    """The gradient of values whose mean is subtracted before they are divided by their root mean square.

    Args:
        step: The node.
        gradient: The gradient of the standardized values.
        x: The values.
        axes: The axes that mean and square are taken over.
    """
    writer = step.writer
    centred = writer.op("Sub", x, writer.reduced("ReduceMean", x, axes))
    back = _by_root_mean_square(step, gradient, centred, axes)
    return writer.op("Sub", back, writer.reduced("ReduceMean", back, axes), like=x)


def _by_root_mean_square(
    step: Step, gradient: ir.Value, x: ir.Value, axes: list[int], *, like: ir.Value | None = None
) -> ir.Value:
    """The gradient of values that are divided by their root mean square, from that of the quotients."""
    writer = step.writer
    power = writer.reduced("ReduceMean", writer.op("Mul", x, x), axes)
    floor = writer.number(step.attributes.get("epsilon", 1e-5))
    root = writer.op("Sqrt", writer.op("Add", power, floor))
    rest = _less_along(step, gradient, writer.op("Div", x, root), "ReduceMean", axes)
    return writer.op("Div", rest, root, like=like)


def _less_along(step: Step, gradient: ir.Value, normal: ir.Value, kind: str, axes: list[int]) -> ir.Value:
    """A gradient less its part along the normal values, which a change of their length cannot change."""
    writer = step.writer
    along = writer.reduced(kind, writer.op("Mul", gradient, normal), axes)
    return writer.op("Sub", gradient, writer.op("Mul", normal, along))


NORMALIZATIONS: Mapping[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LRN": _local_response_normalization,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _log_softmax,
    "LpNormalization": _lp_normalization,
    "RMSNormalization": _rms_normalization,
    "Softmax": _softmax,
}
