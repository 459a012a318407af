"""Gradients of operators that compute elements by themselves, or reduce or normalize along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph import read_constant
from trtint8.sensitivity.gradients.rule import Rule, Step, normalized


def _one_input(derivative: Callable[[Step], ir.Value]) -> Rule:
    """The rule of an operator of one input, whose gradient is the output's times a derivative."""

    def rule(step: Step) -> Mapping[int, ir.Value]:
        return {0: step.writer.op("Mul", step.gradient, derivative(step), like=step.output)}

    return rule


def _kept_where(condition: Callable[[Step], ir.Value]) -> Rule:
    """The rule of an operator that passes some elements on, and others not."""

    def rule(step: Step) -> Mapping[int, ir.Value]:
        return {0: step.kept_where(condition(step), like=step.output)}

    return rule


def _positive(step: Step) -> ir.Value:
    return step.writer.op("Greater", step.output, step.writer.number(0.0))


def _within(step: Step) -> ir.Value:
    """Where a Clip passes its input on. Decided by the output, so that the input need not be kept."""
    writer, conditions = step.writer, []
    for index, kind in ((1, "Greater"), (2, "Less")):
        if index < len(step.node.inputs) and step.node.inputs[index] is not None:
            conditions.append(writer.op(kind, step.output, step.input(index)))
    if not conditions:
        return writer.op("Equal", step.output, step.output)
    return conditions[0] if len(conditions) == 1 else writer.op("And", *conditions)


def _leaky(step: Step, slope: ir.Value) -> Mapping[int, ir.Value]:
    writer = step.writer
    positive = writer.op("Greater", step.input(0), writer.number(0.0))
    scaled = writer.op("Mul", step.gradient, slope)
    return {0: writer.op("Where", positive, step.gradient, scaled, like=step.output)}


def _leaky_relu(step: Step) -> Mapping[int, ir.Value]:
    return _leaky(step, step.writer.number(step.attributes.get("alpha", 0.01)))


def _prelu(step: Step) -> Mapping[int, ir.Value]:
    step.constant(1)
    return _leaky(step, step.input(1))


def _sigmoid(step: Step) -> ir.Value:
    writer = step.writer
    return writer.op("Mul", step.output, writer.op("Sub", writer.number(1.0), step.output))


def _tanh(step: Step) -> ir.Value:
    writer = step.writer
    return writer.op("Sub", writer.number(1.0), writer.op("Mul", step.output, step.output))


def _erf(step: Step) -> ir.Value:
    writer, x = step.writer, step.input(0)
    bell = writer.op("Exp", writer.op("Neg", writer.op("Mul", x, x)))
    return writer.op("Mul", bell, writer.number(2 / math.sqrt(math.pi)))


def _reciprocal(step: Step) -> ir.Value:
    return step.writer.op("Neg", step.writer.op("Mul", step.output, step.output))


def _sine(step: Step) -> ir.Value:
    return step.writer.op("Cos", step.input(0))


def _cosine(step: Step) -> ir.Value:
    return step.writer.op("Neg", step.writer.op("Sin", step.input(0)))


def _tangent(step: Step) -> ir.Value:
    writer = step.writer
    return writer.op("Add", writer.op("Mul", step.output, step.output), writer.number(1.0))


def _inverse(constant: float, square: float, *, root: bool = True, sign: float = 1.0) -> Rule:
    """The rule of an inverse of a function of angles.

    Its slope is ``sign`` over ``constant + square x^2``, or over the root of that, which is taken to be more
    than zero, so that nothing becomes infinite.
    """

    def derivative(step: Step) -> ir.Value:
        writer, x = step.writer, step.input(0)
        scaled = writer.op("Mul", writer.op("Mul", x, x), writer.number(square))
        total = writer.op("Add", scaled, writer.number(constant))
        total = writer.op("Max", total, writer.number(_LEAST_NORM))
        return writer.op("Div", writer.number(sign), writer.op("Sqrt", total) if root else total)

    return _one_input(derivative)


def _bent(step: Step, above: float, below: ir.Value) -> ir.Value:
    """A slope above zero, and another one below it."""
    positive = step.writer.op("Greater", step.input(0), step.writer.number(0.0))
    return step.writer.op("Where", positive, step.writer.number(above), below)


def _elu(step: Step) -> ir.Value:
    """1 above zero, and below it alpha exp(x), which is the output and alpha more."""
    alpha = step.writer.number(step.attributes.get("alpha", 1.0))
    return _bent(step, 1.0, step.writer.op("Add", step.output, alpha))


def _celu(step: Step) -> ir.Value:
    """1 above zero, and below it exp(x / alpha), which is the output over alpha and 1 more."""
    alpha = step.writer.number(step.attributes.get("alpha", 1.0))
    quotient = step.writer.op("Div", step.output, alpha)
    return _bent(step, 1.0, step.writer.op("Add", quotient, step.writer.number(1.0)))


def _selu(step: Step) -> ir.Value:
    """Those of Elu, times gamma; the defaults are ONNX's."""
    gamma, alpha = step.attributes.get("gamma", 1.0507010221), step.attributes.get("alpha", 1.6732632423)
    below = step.writer.op("Add", step.output, step.writer.number(gamma * alpha))
    return _bent(step, gamma, below)


def _softsign(step: Step) -> ir.Value:
    """One over the square of 1 + |x|, and x over that is the output."""
    writer = step.writer
    rest = writer.op("Sub", writer.number(1.0), writer.op("Abs", step.output))
    return writer.op("Mul", rest, rest)


def _above_threshold(step: Step) -> ir.Value:
    return step.writer.op("Greater", step.input(0), step.writer.number(step.attributes.get("alpha", 1.0)))


def _gelu(step: Step) -> ir.Value:
    """Of x P(x): P(x) and x times the density; for the approximation the slope of the exact function."""
    writer, x = step.writer, step.input(0)
    error = writer.op("Erf", writer.op("Mul", x, writer.number(math.sqrt(0.5))))
    share = writer.op("Mul", writer.op("Add", error, writer.number(1.0)), writer.number(0.5))
    bell = writer.op("Exp", writer.op("Mul", writer.op("Mul", x, x), writer.number(-0.5)))
    density = writer.op("Mul", bell, writer.number(1 / math.sqrt(2 * math.pi)))
    return writer.op("Add", share, writer.op("Mul", x, density))


def _mish(step: Step) -> ir.Value:
    """Of x tanh(softplus(x)): the tanh t, and x (1 - t^2) sigmoid(x)."""
    writer, x = step.writer, step.input(0)
    bent = writer.op("Tanh", writer.op("Softplus", x))
    slope = writer.op("Sub", writer.number(1.0), writer.op("Mul", bent, bent))
    more = writer.op("Mul", writer.op("Mul", x, slope), writer.op("Sigmoid", x))
    return writer.op("Add", bent, more)


def _extreme(step: Step) -> Mapping[int, ir.Value]:
    """Every gradient goes to the operand that was the largest, or the smallest; of equal ones, to each."""
    if len(set(step.node.inputs)) < len(step.node.inputs):
        raise step.refused("it reads a tensor twice")
    chosen = {index: step.writer.op("Equal", step.input(index), step.output) for index in step.wanted}
    return {index: step.like(index, step.kept_where(condition)) for index, condition in chosen.items()}


def _cast(step: Step) -> Mapping[int, ir.Value]:
    if step.output.dtype != step.input(0).dtype:
        raise step.refused("it changes the type")
    return {0: step.gradient}


def _sqrt(step: Step) -> ir.Value:
    """One half over the root, which is taken to be more than zero, so that nothing becomes infinite."""
    writer = step.writer
    return writer.op("Div", writer.number(0.5), writer.op("Max", step.output, writer.number(_LEAST_NORM)))


def _log(step: Step) -> Mapping[int, ir.Value]:
    writer = step.writer
    divisor = writer.op("Max", step.input(0), writer.number(_LEAST_NORM))
    return {0: writer.op("Div", step.gradient, divisor, like=step.output)}


def _hard_sigmoid(step: Step) -> Mapping[int, ir.Value]:
    writer = step.writer
    inside = writer.op(
        "And",
        writer.op("Greater", step.output, writer.number(0.0)),
        writer.op("Less", step.output, writer.number(1.0)),
    )
    slope = writer.number(step.attributes.get("alpha", 0.2))
    scaled = writer.op("Mul", step.gradient, slope)
    return {0: writer.op("Where", inside, scaled, writer.number(0.0), like=step.output)}


def _hard_swish(step: Step) -> ir.Value:
    """The slope of x clip(x/6 + 1/2, 0, 1): the clipped value, and x/6 more where it is not 0 or 1."""
    writer, x = step.writer, step.input(0)
    gate = writer.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    inside = writer.op("Less", writer.op("Abs", x), writer.number(3.0))
    more = writer.op("Where", inside, writer.op("Div", x, writer.number(6.0)), writer.number(0.0))
    return writer.op("Add", gate, more)


def _pow(step: Step) -> Mapping[int, ir.Value]:
    exponent = step.constant(1).astype(np.float32)
    writer, x = step.writer, step.input(0)
    power = x if (exponent == 2).all() else writer.op("Pow", x, writer.constant(exponent - 1))
    if (exponent < 1).any():  # infinite at zero
        power = writer.op("Clip", power, writer.number(-1 / _LEAST_NORM), writer.number(1 / _LEAST_NORM))
    slope = writer.op("Mul", power, writer.constant(exponent))
    return {0: step.like(0, writer.op("Mul", step.gradient, slope, like=step.output))}


def _add(step: Step) -> Mapping[int, ir.Value]:
    return {index: step.like(index, step.gradient) for index in step.wanted}


def _mean(step: Step) -> Mapping[int, ir.Value]:
    share = step.writer.op("Div", step.gradient, step.writer.number(len(step.node.inputs)), like=step.output)
    return {index: step.like(index, share) for index in step.wanted}


def _sub(step: Step) -> Mapping[int, ir.Value]:
    negative = step.writer.op("Neg", step.gradient) if 1 in step.wanted else step.gradient
    return {index: step.like(index, negative if index else step.gradient) for index in step.wanted}


def _mul(step: Step) -> Mapping[int, ir.Value]:
    gradients = {}
    for index in step.wanted:
        product = step.writer.op("Mul", step.gradient, step.input(1 - index))
        gradients[index] = step.like(index, product)
    return gradients


def _div(step: Step) -> Mapping[int, ir.Value]:
    writer, gradients = step.writer, {}
    quotient = writer.op("Div", step.gradient, step.input(1))
    if 0 in step.wanted:
        gradients[0] = step.like(0, quotient)
    if 1 in step.wanted:
        gradients[1] = step.like(1, writer.op("Neg", writer.op("Mul", quotient, step.output)))
    return gradients


def _where(step: Step) -> Mapping[int, ir.Value]:
    writer, zero, gradients = step.writer, step.writer.number(0.0), {}
    for index in step.wanted:
        parts = (step.gradient, zero) if index == 1 else (zero, step.gradient)
        gradients[index] = step.like(index, writer.op("Where", step.input(0), *parts))
    return gradients


def _identity(step: Step) -> Mapping[int, ir.Value]:
    return {0: step.gradient}


ELEMENTWISE: Mapping[str, Rule] = {
    "Abs": _one_input(lambda step: step.writer.op("Sign", step.input(0))),
    "Acos": _inverse(1.0, -1.0, sign=-1.0),
    "Acosh": _inverse(-1.0, 1.0),
    "Add": _add,
    "Asin": _inverse(1.0, -1.0),
    "Asinh": _inverse(1.0, 1.0),
    "Atan": _inverse(1.0, 1.0, root=False),
    "Atanh": _inverse(1.0, -1.0, root=False),
    "Cast": _cast,
    "Celu": _one_input(_celu),
    "Clip": _kept_where(_within),
    "Cos": _one_input(_cosine),
    "Cosh": _one_input(lambda step: step.writer.op("Sinh", step.input(0))),
    "Div": _div,
    "Dropout": _identity,
    "Elu": _one_input(_elu),
    "Erf": _one_input(_erf),
    "Exp": _one_input(lambda step: step.output),
    "Gelu": _one_input(_gelu),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _one_input(_hard_swish),
    "Identity": _identity,
    "LeakyRelu": _leaky_relu,
    "Log": _log,
    "Max": _extreme,
    "Mean": _mean,
    "Min": _extreme,
    "Mish": _one_input(_mish),
    "Mul": _mul,
    "Neg": lambda step: {0: step.writer.op("Neg", step.gradient, like=step.output)},
    "PRelu": _prelu,
    "Pow": _pow,
    "Reciprocal": _one_input(_reciprocal),
    "Relu": _kept_where(_positive),
    "Selu": _one_input(_selu),
    "Sigmoid": _one_input(_sigmoid),
    "Sin": _one_input(_sine),
    "Sinh": _one_input(lambda step: step.writer.op("Cosh", step.input(0))),
    "Softplus": _one_input(lambda step: step.writer.op("Sigmoid", step.input(0))),
    "Softsign": _one_input(_softsign),
    "Sqrt": _one_input(_sqrt),
    "Sub": _sub,
    "Sum": _add,
    "Tan": _one_input(_tangent),
    "Tanh": _one_input(_tanh),
    "ThresholdedRelu": _kept_where(_above_threshold),
    "Where": _where,
}


#: The least norm that is divided by, so that nothing becomes infinite.
_LEAST_NORM = 1e-12


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
    return writer.op("Div", x, writer.op("Max", output, writer.number(_LEAST_NORM)))


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
    norm = writer.op("Max", writer.reduced("ReduceL2", x, axes), writer.number(_LEAST_NORM))
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
