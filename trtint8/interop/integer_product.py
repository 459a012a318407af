"""Matches the pattern of nodes around a ConvInteger or MatMulInteger.

ONNX Runtime's dynamic quantization writes a DynamicQuantizeLinear, the integer operator, a Cast, and a Mul by
the product of both scales ("Quantize ONNX Models", ONNX Runtime documentation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.interop.pairs import Parameters, agree, input_at, read_parameters
from trtint8.models.graph_constants import read_constant

#: Integer operator to the float operator that computes the same.
FLOAT_COUNTERPARTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}


@dataclass(frozen=True)
class Activation:
    """An operand that is the output of a quantizer.

    Attributes:
        data: The integers.
        source: The float input of the quantizer.
        parameters: The quantizer's scale and zero point.
    """

    data: ir.Value
    source: ir.Value
    parameters: Parameters

    @property
    def is_dynamic(self) -> bool:
        """Whether the scale is computed at run time."""
        return read_constant(self.parameters.scale) is None


@dataclass(frozen=True)
class Weights:
    """A constant operand.

    Attributes:
        data: The integers.
        zero_point: Zero points, of shape () or (channels,).
        scale: Scales, of shape () or (channels,).
        axis: The axis of the channels; None where there is one scale.
    """

    data: ir.Value
    zero_point: NDArray[np.integer]
    scale: NDArray[np.float32]
    axis: int | None


@dataclass(frozen=True)
class IntegerProduct:
    """An integer operator and the nodes that a float operator can replace together with it.

    Attributes:
        node: The operator.
        operands: The two operands of the product.
        scaled: The Mul after it, whose output is the float result.
    """

    node: ir.Node
    operands: tuple[Activation | Weights, ...]
    scaled: ir.Node

    @property
    def is_dynamic(self) -> bool:
        """Whether the scale of an operand is computed at run time."""
        return any(isinstance(operand, Activation) and operand.is_dynamic for operand in self.operands)


class MismatchError(Exception):
    """A part of the pattern is missing; the message says which."""


def integer_product(node: ir.Node) -> IntegerProduct | str:
    """Matches the pattern around a ConvInteger or MatMulInteger.

    Args:
        node: The operator.

    Returns:
        The match, or, in words for the user, what does not fit.
    """
    try:
        return _matched(node)
    except MismatchError as mismatch:
        return str(mismatch)


def _matched(node: ir.Node) -> IntegerProduct:
    cast = _only_reader(node, "Cast")
    if cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        raise MismatchError(f"'{cast.name}' casts to something else than float32")
    scaled = _only_reader(cast, "Mul")
    product = next(value for value in scaled.inputs if value is not None and value is not cast.outputs[0])
    factors = list(_factors(product))
    activations = [_activation(node, index) for index in (0, 1)]
    if all(operand is None for operand in activations):
        raise MismatchError("both of its operands are constant")
    # A computed scale is one of the factors; a constant one may have been multiplied into another factor.
    unfound = [operand for operand in activations if operand and not _remove_scale(factors, operand)]
    scale = _constant_product(factors)
    for operand in unfound:
        known = read_constant(operand.parameters.scale)
        if known is None or None not in activations:
            raise MismatchError(
                f"the scale of '{operand.data.name}' is not in the product '{product.name}', with which its "
                "output is multiplied"
            )
        scale = scale / known.astype(np.float64)
    if None not in activations and (scale != 1).any():
        raise MismatchError(f"its output is multiplied with more than its scales in '{product.name}'")
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
        raise MismatchError(f"'{output.name}' is read by {found}, and not by one {operator} alone")
    return uses[0][0]


def _factors(value: ir.Value) -> Iterator[ir.Value]:
    producer = value.producer()
    if producer is None or producer.op_type != "Mul" or read_constant(value) is not None:
        yield value
        return
    for factor in producer.inputs:
        assert factor is not None
        yield from _factors(factor)


def _activation(node: ir.Node, index: int) -> Activation | None:
    """An operand with its quantizer; None where the operand is constant."""
    data, zero_point = node.inputs[index], input_at(node, index + 2)
    assert data is not None
    if read_constant(data) is not None:
        return None
    quantizer = data.producer()
    parameters = read_parameters(quantizer) if quantizer is not None else None
    if quantizer is None or parameters is None or data is not quantizer.outputs[0]:
        origin = "a graph input" if quantizer is None else f"the {quantizer.op_type} '{quantizer.name}'"
        raise MismatchError(f"'{data.name}' comes from {origin}, and not from a quantizer")
    scale = read_constant(parameters.scale)
    if scale is not None and scale.size > 1:
        raise MismatchError(f"'{data.name}' has one scale per channel")
    if not agree(parameters, Parameters(parameters.scale, zero_point)):
        raise MismatchError(f"its zero point for '{data.name}' is not that of '{quantizer.name}'")
    source = quantizer.inputs[0]
    assert source is not None
    return Activation(data, source, parameters)


def _remove_scale(factors: list[ir.Value], operand: Activation) -> bool:
    """Removes an operand's scale from the factors; returns whether it was among them."""
    for position, factor in enumerate(factors):
        if agree(Parameters(factor, None), Parameters(operand.parameters.scale, None)):
            del factors[position]
            return True
    return False


def _constant_product(factors: list[ir.Value]) -> NDArray[np.float64]:
    product: NDArray[np.float64] = np.ones((), np.float64)
    for factor in factors:
        array = read_constant(factor)
        if array is None:
            raise MismatchError(f"its output is multiplied with '{factor.name}', which is no operand's scale")
        product = product * array.astype(np.float64)
    return product


def _weights(node: ir.Node, index: int, scale: NDArray[np.float32]) -> Weights:
    data, given = node.inputs[index], input_at(node, index + 2)
    integers = read_constant(data)
    assert data is not None and integers is not None
    zero = np.zeros(1, integers.dtype) if given is None else read_constant(given)
    if zero is None:
        raise MismatchError(f"the zero point of '{data.name}' is computed at run time")
    if not ((scale > 0) & np.isfinite(scale)).all():
        raise MismatchError(f"a scale of '{data.name}' is not positive and finite")
    if zero.size == 1 and scale.size == 1:
        return Weights(data, zero.reshape(()), scale.reshape(()), None)
    conv = node.op_type == "ConvInteger"
    axis = 0 if conv else integers.ndim - 1
    if index == 0 or integers.ndim < 2:
        raise MismatchError(f"'{data.name}' has several scales or zero points, and is no weight matrix")
    channels, rank = integers.shape[axis], integers.ndim
    scale = flatten_per_channel(scale, channels, rank, 1 if conv else axis, data)
    # The zero points of a ConvInteger are a vector; those of a MatMulInteger broadcast against the weights.
    zero_rank, zero_axis = (1, 0) if conv else (rank, axis)
    zero = flatten_per_channel(zero, channels, zero_rank, zero_axis, data)
    return Weights(data, zero, scale, axis)


def flatten_per_channel(
    array: NDArray[Any], channels: int, rank: int, axis: int, data: ir.Value
) -> NDArray[Any]:
    """Flattens an array that broadcasts along one axis of a tensor to one number per channel.

    Args:
        array: An array that broadcasts against the tensor.
        channels: The size of the tensor along the axis.
        rank: The rank of the tensor.
        axis: The axis of the channels.
        data: The value that the array belongs to, for the message.

    Returns:
        An array of shape (channels,).

    Raises:
        MismatchError: The array does not broadcast along that axis alone.
    """
    if array.size == 1:
        return np.full(channels, array.reshape(()), array.dtype)
    wanted = [1] * rank
    wanted[axis] = channels
    shape = (*[1] * (rank - array.ndim), *array.shape)
    if set(shape[:-rank]) - {1} or shape[-rank:] != tuple(wanted):
        raise MismatchError(
            f"the scales or zero points of '{data.name}' have shape {array.shape}, and not one number per "
            "output channel"
        )
    return array.reshape(-1)
