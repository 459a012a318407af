"""ConvInteger and MatMulInteger with their scales, as the float operators that they stand for.

ONNX Runtime's dynamic quantization writes DynamicQuantizeLinear, the integer operator, a Cast, and a Mul with
the product of both scales ("Quantize ONNX Models", ONNX Runtime documentation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from trtint8.constants import add_initializer, constant
from trtint8.passes.pairs import (
    Parameters,
    agree,
    dequantized,
    input_at,
    parameters_of,
    take_over,
)

#: Operator to the float one.
INTEGER = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}


@dataclass(frozen=True)
class _Activation:
    """An operand that a quantizer makes."""

    data: ir.Value
    source: ir.Value
    parameters: Parameters

    @property
    def is_dynamic(self) -> bool:
        return constant(self.parameters.scale) is None


@dataclass(frozen=True)
class _Weights:
    """A constant operand: its zero points are flat, and so are its scales where they lie along an axis."""

    data: ir.Value
    zero: NDArray[np.integer]
    scale: NDArray[np.float32]
    axis: int | None


@dataclass(frozen=True)
class IntegerProduct:
    """An integer operator with what makes a float one of it.

    Attributes:
        node: The operator.
        operands: Its two operands.
        scaled: The Mul after it, whose output is the float result.
    """

    node: ir.Node
    operands: tuple[_Activation | _Weights, ...]
    scaled: ir.Node

    @property
    def is_dynamic(self) -> bool:
        """Whether the range of an operand is known at run time only."""
        return any(isinstance(operand, _Activation) and operand.is_dynamic for operand in self.operands)


class ExpandDynamicPass(ir.passes.InPlacePass):
    """Replaces integer operators whose pattern is whole; the others stay.

    An operand whose scale is computed at run time is taken as it was before its quantizer. One that is
    quantized with a constant scale, and weights, come out of a DequantizeLinear.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expands, and drops what computed the scales."""
        modified = False
        for node in list(model.graph):
            product = integer_product(node) if node.op_type in INTEGER else None
            if isinstance(product, IntegerProduct):
                _expand(model.graph, product)
                modified = True
        if modified:
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=modified)


class _MismatchError(Exception):
    """What of the pattern is not there."""


def integer_product(node: ir.Node) -> IntegerProduct | str:
    """Matches what stands around a ConvInteger or MatMulInteger.

    Args:
        node: The operator.

    Returns:
        The match, or in words what does not fit.
    """
    try:
        return _matched(node)
    except _MismatchError as mismatch:
        return str(mismatch)


def _matched(node: ir.Node) -> IntegerProduct:
    cast = _only_reader(node, "Cast")
    if cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        raise _MismatchError(f"'{cast.name}' casts to something else than float32")
    scaled = _only_reader(cast, "Mul")
    product = next(value for value in scaled.inputs if value is not None and value is not cast.outputs[0])
    factors = list(_factors(product))
    activations = [_activation(node, index) for index in (0, 1)]
    if all(operand is None for operand in activations):
        raise _MismatchError("both of its operands are constant")
    # Computed scales are found by identity; a constant one may have been multiplied into another.
    unfound = [operand for operand in activations if operand and not _strike(factors, operand)]
    scale = _constant_product(factors)
    for operand in unfound:
        known = constant(operand.parameters.scale)
        if known is None or None not in activations:
            raise _MismatchError(
                f"the scale of '{operand.data.name}' is not in the product '{product.name}', with which its "
                "output is multiplied"
            )
        scale = scale / known.astype(np.float64)
    if None not in activations and (scale != 1).any():
        raise _MismatchError(f"its output is multiplied with more than its scales in '{product.name}'")
    operands = [
        operand or _weights(node, index, scale.astype(np.float32))
        for index, operand in enumerate(activations)
    ]
    return IntegerProduct(node, tuple(operands), scaled)


def _only_reader(node: ir.Node, operator: str) -> ir.Node:
    output = node.outputs[0]
    uses = tuple(output.uses())
    if len(uses) != 1 or output.is_graph_output() or uses[0][0].op_type != operator:
        found = ", ".join(reader.op_type for reader, _ in uses) or "nothing"
        found += " and the caller" if output.is_graph_output() else ""
        raise _MismatchError(f"'{output.name}' is read by {found}, and not by one {operator} alone")
    return uses[0][0]


def _factors(value: ir.Value) -> Iterator[ir.Value]:
    producer = value.producer()
    if producer is None or producer.op_type != "Mul" or constant(value) is not None:
        yield value
        return
    for factor in producer.inputs:
        assert factor is not None
        yield from _factors(factor)


def _activation(node: ir.Node, index: int) -> _Activation | None:
    """An operand and its quantizer; None where it is constant."""
    data, zero = node.inputs[index], input_at(node, index + 2)
    assert data is not None
    if constant(data) is not None:
        return None
    quantizer = data.producer()
    parameters = parameters_of(quantizer) if quantizer is not None else None
    if quantizer is None or parameters is None or data is not quantizer.outputs[0]:
        origin = "a graph input" if quantizer is None else f"the {quantizer.op_type} '{quantizer.name}'"
        raise _MismatchError(f"'{data.name}' comes from {origin}, and not from a quantizer")
    scale = constant(parameters.scale)
    if scale is not None and scale.size > 1:
        raise _MismatchError(f"'{data.name}' has a scale a channel")
    if not agree(parameters, Parameters(parameters.scale, zero)):
        raise _MismatchError(f"its zero point for '{data.name}' is not that of '{quantizer.name}'")
    source = quantizer.inputs[0]
    assert source is not None
    return _Activation(data, source, parameters)


def _strike(factors: list[ir.Value], operand: _Activation) -> bool:
    """Takes an operand's scale from the factors, if it is among them."""
    for position, factor in enumerate(factors):
        if agree(Parameters(factor, None), Parameters(operand.parameters.scale, None)):
            del factors[position]
            return True
    return False


def _constant_product(factors: list[ir.Value]) -> NDArray[np.float64]:
    product: NDArray[np.float64] = np.ones((), np.float64)
    for factor in factors:
        array = constant(factor)
        if array is None:
            raise _MismatchError(
                f"its output is multiplied with '{factor.name}', which is no operand's scale"
            )
        product = product * array.astype(np.float64)
    return product


def _weights(node: ir.Node, index: int, scale: NDArray[np.float32]) -> _Weights:
    data, given = node.inputs[index], input_at(node, index + 2)
    whole = constant(data)
    assert data is not None and whole is not None
    zero = np.zeros(1, whole.dtype) if given is None else constant(given)
    if zero is None:
        raise _MismatchError(f"the zero point of '{data.name}' is computed at run time")
    if not ((scale > 0) & np.isfinite(scale)).all():
        raise _MismatchError(f"a scale of '{data.name}' is not positive and finite")
    if zero.size == 1 and scale.size == 1:
        return _Weights(data, zero.reshape(()), scale.reshape(()), None)
    conv = node.op_type == "ConvInteger"
    axis = 0 if conv else whole.ndim - 1
    if index == 0 or whole.ndim < 2:
        raise _MismatchError(f"'{data.name}' has several scales or zero points, and is no weight matrix")
    channels = whole.shape[axis]
    scale = _along(scale, channels, whole.ndim, 1 if conv else axis, data)
    zero = _along(zero, channels, 1, 0, data) if conv else _along(zero, channels, whole.ndim, axis, data)
    return _Weights(data, zero, scale, axis)


def _along(array: NDArray[Any], channels: int, rank: int, axis: int, data: ir.Value) -> NDArray[Any]:
    """An array that broadcasts along one axis of a tensor, flat: one number a channel."""
    if array.size == 1:
        return np.full(channels, array.reshape(()), array.dtype)
    wanted = [1] * rank
    wanted[axis] = channels
    shape = (*[1] * (rank - array.ndim), *array.shape)
    if set(shape[:-rank]) - {1} or shape[-rank:] != tuple(wanted):
        raise _MismatchError(
            f"the scales or zero points of '{data.name}' have shape {array.shape}, and not one number an "
            "output channel"
        )
    return array.reshape(-1)


def _expand(graph: ir.Graph, product: IntegerProduct) -> None:
    node, result = product.node, product.scaled.outputs[0]
    cast = next(reader for reader, _ in node.outputs[0].uses())
    operands = [_operand(graph, node, index, operand) for index, operand in enumerate(product.operands)]
    attributes = list(node.attributes.values())
    new = ir.Node("", INTEGER[node.op_type], operands, attributes, name=node.name)
    new.outputs[0].dtype, new.outputs[0].shape = ir.DataType.FLOAT, node.outputs[0].shape
    graph.insert_after(node, new)
    take_over(result, new.outputs[0])
    graph.remove([product.scaled, cast, node], safe=True)
    if new.op_type == "Conv":
        _take_bias(graph, new)


def _operand(graph: ir.Graph, node: ir.Node, index: int, operand: _Activation | _Weights) -> ir.Value:
    name = f"{node.name}_input{index}"
    if isinstance(operand, _Activation):
        if operand.is_dynamic:
            return operand.source
        return dequantized(node, operand.data, operand.parameters, name)
    scale, zero = (
        add_initializer(graph, f"{name}_{what}", array)
        for what, array in (("scale", operand.scale), ("zero_point", operand.zero))
    )
    return dequantized(node, operand.data, Parameters(scale, zero), name, operand.axis)


def _take_bias(graph: ir.Graph, conv: ir.Node) -> None:
    """An Add of one number an output channel becomes the convolution's bias."""
    output, weights = conv.outputs[0], conv.inputs[1]
    uses = tuple(output.uses())
    if len(uses) != 1 or uses[0][0].op_type != "Add" or output.is_graph_output() or weights is None:
        return
    add, index = uses[0]
    bias, shape = _known(add.inputs[1 - index]), weights.shape
    if bias is None or shape is None or not shape.is_static() or bias.dtype != np.float32:
        return
    sizes = shape.numpy()
    try:
        channels = _along(bias, sizes[0], len(sizes), 1, output)
    except _MismatchError:
        return
    conv.resize_inputs(3)
    conv.replace_input_with(2, add_initializer(graph, f"{conv.name}_bias", channels))
    take_over(add.outputs[0], output)
    graph.remove(add, safe=True)


def _known(value: ir.Value | None) -> NDArray[Any] | None:
    """A constant, or the Reshape of one, as ONNX Runtime leaves biases."""
    array = constant(value)
    producer = value.producer() if value is not None else None
    if array is None and producer is not None and producer.op_type == "Reshape":
        source, shape = constant(producer.inputs[0]), constant(producer.inputs[1])
        if source is not None and shape is not None and (shape != 0).all():
            array = source.reshape(tuple(int(size) for size in shape))
    return array
