"""Gradients of operators that divide values by a sum over axes, such as normalizations and Softmax."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

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
    rank = len(step.shape(step.input(0)))
    factor = step.constant(1).astype("float32").reshape(-1, *[1] * (rank - 2))
    scaled = step.writer.op("Mul", step.gradient, step.writer.constant(factor))
    return {0: _normalized(step, scaled, list(range(2, rank)))}


def _layer_normalization(step: Step) -> Mapping[int, ir.Value]:
    writer, rank = step.writer, len(step.shape(step.input(0)))
    axes = list(range(int(step.attributes.get("axis", -1)) % rank, rank))
    return {0: _normalized(step, writer.op("Mul", step.gradient, step.input(1)), axes)}


def _group_normalization(step: Step) -> Mapping[int, ir.Value]:
    """That of the channels of a group together, which lie along one axis once the tensor is reshaped."""
    writer, x = step.writer, step.input(0)
    (channels,), rank = step.sizes(x, [1]), len(step.shape(x))
    scale, groups = step.constant(1).astype("float32"), int(step.attributes["num_groups"])
    # One factor per channel, and per group in opset 18.
    factor = np.repeat(scale, channels // len(scale)).reshape(-1, *[1] * (rank - 2))
    scaled = writer.op("Mul", step.gradient, writer.constant(factor))
    apart = writer.integers([0, groups, -1])
    values, gradient = (writer.op("Reshape", value, apart) for value in (x, scaled))
    found = _normalized(step, gradient, [2], values)
    return {0: writer.op("Reshape", found, writer.op("Shape", x), like=x)}


def _rms_normalization(step: Step) -> Mapping[int, ir.Value]:
    """As of a layer normalization without centring."""
    writer, x = step.writer, step.input(0)
    rank = len(step.shape(x))
    axes = list(range(int(step.attributes.get("axis", -1)) % rank, rank))
    gradient = writer.op("Mul", step.gradient, step.input(1))
    power = writer.reduced("ReduceMean", writer.op("Mul", x, x), axes)
    root = writer.op("Sqrt", writer.op("Add", power, writer.number(step.attributes.get("epsilon", 1e-5))))
    normal = writer.op("Div", x, root)
    along = writer.reduced("ReduceMean", writer.op("Mul", gradient, normal), axes)
    rest = writer.op("Sub", gradient, writer.op("Mul", normal, along))
    return {0: writer.op("Div", rest, root, like=x)}


def _lp_normalization(step: Step) -> Mapping[int, ir.Value]:
    """Of y = x / |x|: the gradient less its part along y, over the norm."""
    writer, x = step.writer, step.input(0)
    if step.attributes.get("p", 2) != 2:
        raise step.refused("it divides by another norm than the Euclidean one")
    axes = normalized([int(step.attributes.get("axis", -1))], len(step.shape(x)))
    norm = writer.op("Max", writer.reduced("ReduceL2", x, axes), writer.number(LEAST_NORM))
    along = writer.reduced("ReduceSum", writer.op("Mul", step.gradient, step.output), axes)
    rest = writer.op("Sub", step.gradient, writer.op("Mul", step.output, along))
    return {0: writer.op("Div", rest, norm, like=x)}


def _normalized(step: Step, gradient: ir.Value, axes: list[int], x: ir.Value | None = None) -> ir.Value:
    """The gradient through a normalization along axes, from that of the normal values.

    Args:
        step: The node.
        gradient: The gradient of the normal values.
        axes: The axes that mean and variance are taken over.
        x: What is normalized; the node's first input where None.
    """
    writer = step.writer
    x = step.input(0) if x is None else x
    centred = writer.op("Sub", x, writer.reduced("ReduceMean", x, axes))
    variance = writer.reduced("ReduceMean", writer.op("Mul", centred, centred), axes)
    floor = writer.number(step.attributes.get("epsilon", 1e-5))
    deviation = writer.op("Sqrt", writer.op("Add", variance, floor))
    normal = writer.op("Div", centred, deviation)
    along = writer.reduced("ReduceMean", writer.op("Mul", gradient, normal), axes)
    rest = writer.op("Sub", gradient, writer.reduced("ReduceMean", gradient, axes))
    rest = writer.op("Sub", rest, writer.op("Mul", normal, along))
    return writer.op("Div", rest, deviation, like=x)


def _batch_normalization(step: Step) -> Mapping[int, ir.Value]:
    scale, variance = (read_constant(step.input(index)) for index in (1, 4))
    if scale is None or variance is None:
        raise step.refused("its parameters are computed")
    factor = scale / (variance + step.attributes.get("epsilon", 1e-5)) ** 0.5
    rank = len(step.shape(step.input(0)))
    shaped = factor.reshape(-1, *[1] * (rank - 2)).astype(scale.dtype)
    return {0: step.writer.op("Mul", step.gradient, step.writer.constant(shaped), like=step.output)}


NORMALIZATIONS: Mapping[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _log_softmax,
    "LpNormalization": _lp_normalization,
    "RMSNormalization": _rms_normalization,
    "Softmax": _softmax,
}
