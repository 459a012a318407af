"""Gradients of operators that compute elements by themselves, or reduce or normalize along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Float32s
from trtint8.models.graph import read_constant
from trtint8.models.graph_writer import Operand, Term
from trtint8.sensitivity.gradients.rule import Rule, Step, normalized

#: The least norm that is divided by, so that nothing becomes infinite.
_LEAST_NORM = 1e-12


def _above_zero(term: Term) -> Term:
    return term.op("Max", _LEAST_NORM)


def _where(condition: Term) -> Term:
    """1 where a condition holds, else 0: a product with it is faster than Where."""
    return condition.cast(ir.DataType.FLOAT)


def _bent(step: Step, above: Operand, below: Operand) -> Term:
    """A slope above zero, and another one below it."""
    return (step.x > 0).op("Where", above, below)


def _within(step: Step) -> Term:
    """Where a Clip passes its input on. Decided by the output, so that the input need not be kept."""
    low, high = (*step.node.inputs[1:], None, None)[:2]
    if low is None and high is None:
        return _where(step.y.op("Equal", step.y))
    if low is None or high is None:
        return _where(step.y < high if low is None else step.y > low)
    return _where((step.y > low) & (step.y < high))


def _selu(step: Step) -> Term:
    """Those of Elu, times gamma; the defaults are ONNX's."""
    gamma, alpha = step.number("gamma", 1.0507010221), step.number("alpha", 1.6732632423)
    return _bent(step, gamma, step.y + gamma * alpha)


def _softsign(step: Step) -> Term:
    """One over the square of 1 + |x|, and x over that is the output."""
    rest = 1 - step.y.op("Abs")
    return rest * rest


def _gelu(step: Step) -> Term:
    """Of x P(x): P(x) and x times the density; for the approximation the slope of the exact function."""
    x = step.x
    share = ((x * math.sqrt(0.5)).op("Erf") + 1) * 0.5
    density = (x * x * -0.5).op("Exp") * (1 / math.sqrt(2 * math.pi))
    return share + x * density


def _mish(step: Step) -> Term:
    """Of x tanh(softplus(x)): the tanh t, and x (1 - t^2) sigmoid(x)."""
    bent = step.x.op("Softplus").op("Tanh")
    return bent + step.x * (1 - bent * bent) * step.x.op("Sigmoid")


def _hard_swish(step: Step) -> Term:
    """The slope of x clip(x/6 + 1/2, 0, 1): the clipped value, and x/6 more where it is not 0 or 1."""
    gate = step.x.op("HardSigmoid", alpha=1 / 6, beta=0.5)
    return gate + (step.x.op("Abs") < 3).op("Where", step.x / 6, 0)


#: The slopes of operators of one input, from the input x and the output y.
_SLOPES: Mapping[str, Callable[[Step], Term]] = {
    "Abs": lambda step: step.x.op("Sign"),
    "Acos": lambda step: -1 / _above_zero(1 - step.x * step.x).op("Sqrt"),
    "Acosh": lambda step: 1 / _above_zero(step.x * step.x - 1).op("Sqrt"),
    "Asin": lambda step: 1 / _above_zero(1 - step.x * step.x).op("Sqrt"),
    "Asinh": lambda step: 1 / (step.x * step.x + 1).op("Sqrt"),
    "Atan": lambda step: 1 / (step.x * step.x + 1),
    "Atanh": lambda step: 1 / _above_zero(1 - step.x * step.x),
    # Below zero exp(x / alpha), which is the output over alpha and 1 more.
    "Celu": lambda step: _bent(step, 1, step.y / step.number("alpha", 1) + 1),
    "Clip": _within,
    "Cos": lambda step: -step.x.op("Sin"),
    "Cosh": lambda step: step.x.op("Sinh"),
    # Below zero alpha exp(x), which is the output and alpha more.
    "Elu": lambda step: _bent(step, 1, step.y + step.number("alpha", 1)),
    "Erf": lambda step: (-(step.x * step.x)).op("Exp") * (2 / math.sqrt(math.pi)),
    "Exp": lambda step: step.y,
    "Gelu": _gelu,
    "HardSigmoid": lambda step: _where((step.y > 0) & (step.y < 1)) * step.number("alpha", 0.2),
    "HardSwish": _hard_swish,
    "LeakyRelu": lambda step: _bent(step, 1, step.number("alpha", 0.01)),
    "Mish": _mish,
    "PRelu": lambda step: _bent(step, 1, step.constant(1)),
    "Reciprocal": lambda step: -(step.y * step.y),
    "Relu": lambda step: _where(step.y > 0),
    "Selu": _selu,
    "Sigmoid": lambda step: step.y * (1 - step.y),
    "Sin": lambda step: step.x.op("Cos"),
    "Sinh": lambda step: step.x.op("Cosh"),
    "Softplus": lambda step: step.x.op("Sigmoid"),
    "Softsign": _softsign,
    # One half over the root, which is taken to be more than zero, so that nothing becomes infinite.
    "Sqrt": lambda step: 0.5 / _above_zero(step.y),
    "Tan": lambda step: step.y * step.y + 1,
    "Tanh": lambda step: 1 - step.y * step.y,
    "ThresholdedRelu": lambda step: _where(step.x > step.number("alpha", 1)),
}


def _of_slope(slope: Callable[[Step], Term]) -> Rule:
    """The rule of an operator of one input, whose gradient is the output's times a slope."""
    return lambda step: step.gradient * slope(step)


def _of_each(gradient: Callable[[Step, int], Term]) -> Rule:
    """The rule of an operator that broadcasts its inputs, from the index of an input."""
    return lambda step: {index: step.like(index, gradient(step, index)) for index in step.wanted}


def _cast(step: Step) -> Term:
    if step.y.value.dtype != step.x.value.dtype:
        raise step.refused("it changes the type")
    return step.gradient


def _pow(step: Step) -> Mapping[int, Term]:
    exponent = step.constant(1).astype(np.float32)
    power = step.x if (exponent == 2).all() else step.x.op("Pow", exponent - 1)
    if (exponent < 1).any():  # infinite at zero
        power = power.op("Clip", -1 / _LEAST_NORM, 1 / _LEAST_NORM)
    return {0: step.like(0, step.gradient * (power * exponent))}


def _extreme(step: Step, index: int) -> Term:
    """Every gradient goes to the operand that was the largest, or the smallest; of equal ones, to each."""
    if len(set(step.node.inputs)) < len(step.node.inputs):
        raise step.refused("it reads a tensor twice")
    return step.gradient * _where(step.input(index).op("Equal", step.y))


def _quotient(step: Step, index: int) -> Term:
    quotient = step.gradient / step.input(1)
    return -(quotient * step.y) if index else quotient


def _chosen(step: Step, index: int) -> Term:
    return step.x.op("Where", *((step.gradient, 0) if index == 1 else (0, step.gradient)))


def _reduced_axes(step: Step) -> list[int]:
    """The axes, counted from the first one.

    Raises:
        NoGradientError: They are computed, or no axis is reduced, of which versions of ONNX differ in what it
            means.
    """
    axes = step.attributes.get("axes")
    if axes is None and len(step.node.inputs) > 1 and step.node.inputs[1] is not None:
        axes = step.constant(1)
    if axes is None or not len(axes):
        if step.attributes.get("noop_with_empty_axes", 0):
            raise step.refused("it reduces no axis")
        axes = range(step.rank)
    return normalized(axes, step.rank)


def _with_axes(step: Step, term: Term, axes: list[int]) -> Term:
    """A tensor of the output's shape with the axes that were reduced."""
    return term if step.attributes.get("keepdims", 1) else term.op("Unsqueeze", axes)


def _of_elements(slope: Callable[[Step, Term], Term]) -> Rule:
    """The rule of a reduction whose derivative by an element follows from the element and the output.

    Args:
        slope: Gets the output with the axes that were reduced.
    """

    def rule(step: Step) -> Term:
        axes = _reduced_axes(step)
        found = slope(step, _with_axes(step, step.y, axes))
        return _with_axes(step, step.gradient, axes) * found

    return rule


def _largest(step: Step, y: Term) -> Term:
    """Every gradient goes to the largest element, or the smallest; of equal ones, to each."""
    return _where(step.x.op("Equal", y))


def _reduce_sum(step: Step) -> Term:
    axes = _reduced_axes(step)
    factor = 1 / math.prod(step.sizes(step.x, axes)) if step.node.op_type == "ReduceMean" else 1
    return (_with_axes(step, step.gradient, axes) * factor).op("Expand", step.x.op("Shape"))


def _softmax(step: Step) -> Term:
    mean = (step.gradient * step.y).reduced("ReduceSum", [step.axis()])
    return (step.gradient - mean) * step.y


def _log_softmax(step: Step) -> Term:
    total = step.gradient.reduced("ReduceSum", [step.axis()])
    return step.gradient - step.y.op("Exp") * total


def _instance_normalization(step: Step) -> Term:
    scaled = _scaled(step, step.constant(1).astype(np.float32))
    return _standardized(step, scaled, step.x, range(2, step.rank))


def _group_normalization(step: Step) -> Term:
    """That of the channels of a group together, which lie along one axis once the tensor is reshaped."""
    (channels,) = step.sizes(step.x, [1])
    scale, groups = step.constant(1).astype(np.float32), int(step.attributes["num_groups"])
    # One factor per channel, and per group in opset 18.
    scaled = _scaled(step, np.repeat(scale, channels // len(scale)))
    x, gradient = (term.op("Reshape", [0, groups, -1]) for term in (step.x, scaled))
    return _standardized(step, gradient, x, [2]).op("Reshape", step.x.op("Shape"))


def _lp_normalization(step: Step) -> Term:
    if step.attributes.get("p", 2) != 2:
        raise step.refused("it divides by another norm than the Euclidean one")
    norm = _above_zero(step.x.reduced("ReduceL2", [step.axis()]))
    return _less_along(step.gradient, step.y, "ReduceSum", [step.axis()]) / norm


def _local_response_normalization(step: Step) -> Term:
    """Of values that are divided by a power of what the squares of neighbouring channels sum up to.

    With y = x / d^b and d = c + a mean(x^2), the gradient is g / d^b - 2 a b x mean(g y / d); the means are
    over channels around each one, and zeros beyond the first and the last count.
    """
    x, size = step.x, int(step.attributes["size"])
    alpha, beta = step.number("alpha", 1e-4), step.number("beta", 0.75)
    if size % 2 == 0:
        raise step.refused("its window has no channel in the middle")
    (channels,) = step.sizes(x, [1])
    around, shape = size // 2, x.op("Shape")

    def mean(term: Term) -> Term:
        planes = term.op("Reshape", [0, 1, channels, -1])
        pads = [around, 0, around, 0]
        means = planes.op("AveragePool", kernel_shape=[size, 1], pads=pads, count_include_pad=1)
        return means.op("Reshape", shape)

    divisor = mean(x * x) * alpha + step.number("bias", 1)
    direct = step.gradient / divisor.op("Pow", beta)
    return direct - x * mean(step.gradient * step.y / divisor) * (2 * alpha * beta)


def _batch_normalization(step: Step) -> Term:
    scale, variance = (read_constant(step.input(index).value) for index in (1, 4))
    if scale is None or variance is None:
        raise step.refused("its parameters are computed")
    return _scaled(step, (scale / (variance + step.number("epsilon", 1e-5)) ** 0.5).astype(scale.dtype))


def _scaled(step: Step, factors: Float32s) -> Term:
    """The gradient times one factor per channel."""
    return step.gradient * factors.reshape(-1, *[1] * (step.rank - 2))


def _standardized(step: Step, gradient: Term, x: Term, axes: Sequence[int]) -> Term:
    """The gradient of values whose mean is subtracted before they are divided by their root mean square.

    Args:
        step: The node.
        gradient: The gradient of the standardized values.
        x: The values.
        axes: The axes that mean and square are taken over.
    """
    back = _by_root_mean_square(step, gradient, x - x.reduced("ReduceMean", axes), axes)
    return back - back.reduced("ReduceMean", axes)


def _by_root_mean_square(step: Step, gradient: Term, x: Term, axes: Sequence[int]) -> Term:
    """The gradient of values that are divided by their root mean square, from that of the quotients."""
    power = (x * x).reduced("ReduceMean", axes)
    root = (power + step.number("epsilon", 1e-5)).op("Sqrt")
    return _less_along(gradient, x / root, "ReduceMean", axes) / root


def _of_last_axes(gradient: Callable[[Step, Term, Term, Sequence[int]], Term]) -> Rule:
    """The rule of a normalization over the axes from one on, whose values are scaled then."""
    return lambda step: gradient(step, step.gradient * step.input(1), step.x, range(step.axis(), step.rank))


def _less_along(gradient: Term, normal: Term, kind: str, axes: Sequence[int]) -> Term:
    """A gradient less its part along the normal values, which a change of their length cannot change."""
    return gradient - normal * (gradient * normal).reduced(kind, axes)


ELEMENTWISE: Mapping[str, Rule] = {
    **{kind: _of_slope(slope) for kind, slope in _SLOPES.items()},
    "Add": _of_each(lambda step, _: step.gradient),
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Div": _of_each(_quotient),
    "Dropout": lambda step: step.gradient,
    "GroupNormalization": _group_normalization,
    "Identity": lambda step: step.gradient,
    "InstanceNormalization": _instance_normalization,
    "LRN": _local_response_normalization,
    "LayerNormalization": _of_last_axes(_standardized),
    "Log": lambda step: step.gradient / _above_zero(step.x),
    "LogSoftmax": _log_softmax,
    "LpNormalization": _lp_normalization,
    "Max": _of_each(_extreme),
    "Mean": _of_each(lambda step, _: step.gradient / len(step.node.inputs)),
    "Min": _of_each(_extreme),
    "Mul": _of_each(lambda step, index: step.gradient * step.input(1 - index)),
    "Neg": lambda step: -step.gradient,
    "Pow": _pow,
    "RMSNormalization": _of_last_axes(_by_root_mean_square),
    "ReduceL1": _of_elements(lambda step, _: step.x.op("Sign")),
    # The element over the norm; zero where the norm is.
    "ReduceL2": _of_elements(lambda step, norm: step.x / _above_zero(norm)),
    "ReduceLogSumExp": _of_elements(lambda step, y: (step.x - y).op("Exp")),
    "ReduceMax": _of_elements(_largest),
    "ReduceMean": _reduce_sum,
    "ReduceMin": _of_elements(_largest),
    "ReduceSum": _reduce_sum,
    "ReduceSumSquare": _of_elements(lambda step, _: step.x * 2),
    "Softmax": _softmax,
    "Sub": _of_each(lambda step, index: -step.gradient if index else step.gradient),
    "Sum": _of_each(lambda step, _: step.gradient),
    "Where": _of_each(_chosen),
}
