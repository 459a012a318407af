"""Gradients of operators that compute every element by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from trtint8.sensitivity.gradients.reductions import LEAST_NORM
from trtint8.sensitivity.gradients.rule import Rule, Step


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


def _elu(step: Step) -> ir.Value:
    """1 above zero, and below it alpha exp(x), which is the output and alpha more."""
    writer = step.writer
    below = writer.op("Add", step.output, writer.number(step.attributes.get("alpha", 1.0)))
    positive = writer.op("Greater", step.input(0), writer.number(0.0))
    return writer.op("Where", positive, writer.number(1.0), below)


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
    return writer.op("Div", writer.number(0.5), writer.op("Max", step.output, writer.number(LEAST_NORM)))


def _log(step: Step) -> Mapping[int, ir.Value]:
    writer = step.writer
    divisor = writer.op("Max", step.input(0), writer.number(LEAST_NORM))
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
        power = writer.op("Clip", power, writer.number(-1 / LEAST_NORM), writer.number(1 / LEAST_NORM))
    slope = writer.op("Mul", power, writer.constant(exponent))
    return {0: step.like(0, writer.op("Mul", step.gradient, slope, like=step.output))}


def _add(step: Step) -> Mapping[int, ir.Value]:
    return {index: step.like(index, step.gradient) for index in step.wanted}


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
    "Add": _add,
    "Cast": _cast,
    "Clip": _kept_where(_within),
    "Cos": _one_input(_cosine),
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
    "Min": _extreme,
    "Mish": _one_input(_mish),
    "Mul": _mul,
    "Neg": lambda step: {0: step.writer.op("Neg", step.gradient, like=step.output)},
    "PRelu": _prelu,
    "Pow": _pow,
    "Reciprocal": _one_input(_reciprocal),
    "Relu": _kept_where(_positive),
    "Sigmoid": _one_input(_sigmoid),
    "Sin": _one_input(_sine),
    "Softplus": _one_input(lambda step: step.writer.op("Sigmoid", step.input(0))),
    "Sqrt": _one_input(_sqrt),
    "Sub": _sub,
    "Tanh": _one_input(_tanh),
    "Where": _where,
}
