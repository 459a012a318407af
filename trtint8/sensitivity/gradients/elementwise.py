"""Gradients of operators that compute every element by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from trtint8.models.graph_constants import read_constant
from trtint8.sensitivity.gradients.rule import Rule, Step


def _one_input(derivative: Callable[[Step], ir.Value]) -> Rule:
    """The rule of an operator of one input, whose gradient is the output's times a derivative."""

    def rule(step: Step) -> Mapping[int, ir.Value]:
        return {0: step.writer.op("Mul", step.gradient, derivative(step), like=step.output)}

    return rule


def _kept_where(condition: Callable[[Step], ir.Value]) -> Rule:
    """The rule of an operator that passes some elements on, and others not."""

    def rule(step: Step) -> Mapping[int, ir.Value]:
        # Faster than Where.
        kept = step.writer.op("Cast", condition(step), to=ir.DataType.FLOAT.value)
        return {0: step.writer.op("Mul", step.gradient, kept, like=step.output)}

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


def _sqrt(step: Step) -> ir.Value:
    return step.writer.op("Div", step.writer.number(0.5), step.output)


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
    exponent = float(step.constant(1).reshape(()))
    writer, x = step.writer, step.input(0)
    power = x if exponent == 2 else writer.op("Pow", x, writer.number(exponent - 1))
    slope = writer.op("Mul", power, writer.number(exponent))
    return {0: writer.op("Mul", step.gradient, slope, like=step.output)}


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


def _softmax(step: Step) -> Mapping[int, ir.Value]:
    writer, output = step.writer, step.output
    axis = int(step.attributes.get("axis", -1)) % len(step.shape(output))
    product = writer.op("Mul", step.gradient, output)
    mean = writer.reduced("ReduceSum", product, [axis])
    centred = writer.op("Sub", step.gradient, mean)
    return {0: writer.op("Mul", centred, output, like=output)}


def _layer_normalization(step: Step) -> Mapping[int, ir.Value]:
    writer, x = step.writer, step.input(0)
    rank = len(step.shape(x))
    axes = list(range(int(step.attributes.get("axis", -1)) % rank, rank))
    centred = writer.op("Sub", x, writer.reduced("ReduceMean", x, axes))
    variance = writer.reduced("ReduceMean", writer.op("Mul", centred, centred), axes)
    floor = writer.number(step.attributes.get("epsilon", 1e-5))
    deviation = writer.op("Sqrt", writer.op("Add", variance, floor))
    normal = writer.op("Div", centred, deviation)
    scaled = writer.op("Mul", step.gradient, step.input(1))
    along = writer.reduced("ReduceMean", writer.op("Mul", scaled, normal), axes)
    rest = writer.op("Sub", scaled, writer.reduced("ReduceMean", scaled, axes))
    rest = writer.op("Sub", rest, writer.op("Mul", normal, along))
    return {0: writer.op("Div", rest, deviation, like=x)}


def _batch_normalization(step: Step) -> Mapping[int, ir.Value]:
    scale, variance = (read_constant(step.input(index)) for index in (1, 4))
    if scale is None or variance is None:
        raise step.refused("its parameters are computed")
    factor = scale / (variance + step.attributes.get("epsilon", 1e-5)) ** 0.5
    rank = len(step.shape(step.input(0)))
    shaped = factor.reshape(-1, *[1] * (rank - 2)).astype(scale.dtype)
    return {0: step.writer.op("Mul", step.gradient, step.writer.constant(shaped), like=step.output)}


ELEMENTWISE: Mapping[str, Rule] = {
    "Add": _add,
    "BatchNormalization": _batch_normalization,
    "Clip": _kept_where(_within),
    "Div": _div,
    "Dropout": _identity,
    "Erf": _one_input(_erf),
    "Exp": _one_input(lambda step: step.output),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _one_input(_hard_swish),
    "Identity": _identity,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": _leaky_relu,
    "Mul": _mul,
    "Neg": lambda step: {0: step.writer.op("Neg", step.gradient, like=step.output)},
    "PRelu": _prelu,
    "Pow": _pow,
    "Relu": _kept_where(_positive),
    "Sigmoid": _one_input(_sigmoid),
    "Softmax": _softmax,
    "Sqrt": _one_input(_sqrt),
    "Sub": _sub,
    "Tanh": _one_input(_tanh),
    "Where": _where,
}
