"""Removes Q/DQ pairs from a model that any tool quantized, and keeps their ranges and scales."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.errors import ModelError
from trtint8.interop.float_movement import moved_data
from trtint8.interop.pairs import quantized_type, reads_integers
from trtint8.interop.stored_integers import channel_axis, fits_int8, float_values
from trtint8.models.graph_constants import (
    add_initializer,
    constant_input,
    read_constant,
    take_name,
    value_names,
)
from trtint8.models.inner_graphs import nodes_inside
from trtint8.quantization.operators import MULTIPLYING, WEIGHTED

#: Activation functions whose results are never negative.
_POSITIVE = ("Relu", "Sigmoid", "Softmax")

#: Operators whose results have bounds of their own.
_BOUNDED = ("Clip", "Cos", "Erf", "Sigmoid", "Sin", "Softmax", "Softsign", "Tanh")

#: By how much a scale may differ, as a part of it, after two roundings to float32.
_ROUNDING = float(2 * np.finfo(np.float32).eps)

#: The scales of a constant, flat float32, and the axis of its channels; None in its place for one scale.
_Scale = tuple[NDArray[np.float32], int | None]


@dataclass
class Unquantized:
    """The ranges and scales of the pairs that were removed from a model.

    Attributes:
        ranges: Tensor name to the largest magnitude that its pair can represent.
        weight_scales: Name of a constant to the symmetric scales that it had, flat float32, and the axis of
            its channels; the axis is None for one scale. Constants that do not fit int8, or that have one
            scale per block, are left out.
        kept_float: Names of the weighted nodes that have an input without a pair.
        restored: Names of the Relu and Clip nodes that were part of a QuantizeLinear, and that are nodes of
            the graph again.
    """

    ranges: dict[str, float] = field(default_factory=dict)
    weight_scales: dict[str, _Scale] = field(default_factory=dict)
    kept_float: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)


def unquantize(model: ir.Model) -> Unquantized:
    """Turns a Q/DQ model into a float model, in place.

    Quantized constants become float32 constants of the same values. A pair on an activation is removed. Tools
    leave out a Relu or a Clip before a quantizer that clips as it does, so a Relu replaces a pair that
    represents no value below zero, and a Clip one whose range is that of a Clip and not of a calibration.

    Args:
        model: A model of opset 11 or later with QuantizeLinear and DequantizeLinear nodes.

    Returns:
        The ranges and scales of the pairs.

    Raises:
        ModelError: A scale or zero point is not constant, or a scale is not positive and finite.
    """
    return _Unquantizer(model).run()


class _Unquantizer:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._graph = model.graph
        self._names = value_names(model.graph)
        self._result = Unquantized()
        self._restored: dict[str, ir.Value] = {}

    def run(self) -> Unquantized:
        weighted = [node.name or "" for node in self._graph if node.op_type in WEIGHTED]
        quantized = quantized_nodes(self._model)
        self._result.kept_float = [name for name in weighted if name not in quantized]
        for node in list(self._graph):
            if node.op_type == "DequantizeLinear":
                self._replace(node.outputs[0], self._float_value(node))
            elif node.op_type == "Transpose":
                self._keep_transposed_scale(node)
        common.RemoveUnusedNodesPass()(self._model)
        return self._result

    def _float_value(self, dequantize: ir.Node) -> ir.Value:
        source = dequantize.inputs[0]
        assert source is not None
        integers = read_constant(source)
        if integers is not None:
            return self._constant(dequantize, integers)
        quantize = source.producer()
        if quantize is None or quantize.op_type != "QuantizeLinear" or quantize.inputs[0] is None:
            raise ModelError(
                f"node '{dequantize.name}' dequantizes '{source.name}', which no QuantizeLinear makes; "
                "export the model with Q/DQ pairs"
            )
        weights = read_constant(quantize.inputs[0])
        if weights is None:
            return self._activation(quantize, quantize.inputs[0])
        own = _symmetric_scale(dequantize, weights.shape)
        if own is None or quantized_type(quantize) != ir.DataType.INT8:
            return quantize.inputs[0]  # weights that are still float
        return self._with_scale(
            quantize.inputs[0], own, take_name(f"{dequantize.outputs[0].name}_float", self._names)
        )

    def _constant(self, node: ir.Node, integers: NDArray[Any]) -> ir.Value:
        scale, zero_point = parameters(node)
        name = take_name(f"{node.outputs[0].name}_float", self._names)
        own = _symmetric_scale(node, integers.shape)
        if own is not None and fits_int8(integers):
            self._result.weight_scales[name] = own
        return add_initializer(self._graph, name, float_values(node, integers, scale, zero_point))

    def _with_scale(self, weights: ir.Value, own: _Scale, name: str) -> ir.Value:
        """Weights whose scales are noted: a copy of this name where another pair gives them other scales."""
        scale, axis = self._result.weight_scales.setdefault(weights.name or "", own)
        if axis == own[1] and np.array_equal(scale, own[0]):
            return weights
        array = read_constant(weights)
        assert array is not None, "weights are constant"
        self._result.weight_scales[name] = own
        return add_initializer(self._graph, name, array)

    def _keep_transposed_scale(self, node: ir.Node) -> None:
        """Notes the scales of a constant for what a Transpose, which will be folded, makes of it."""
        source, perm = node.inputs[0], node.attributes.get_ints("perm", ())
        scale, axis = self._result.weight_scales.get((source.name if source else None) or "", (None, None))
        if scale is not None and (axis is None or perm):
            place = None if axis is None else list(perm).index(axis)
            self._result.weight_scales[node.outputs[0].name or ""] = (scale, place)

    def _activation(self, node: ir.Node, value: ir.Value) -> ir.Value:
        low, high = quantizer_range(node)
        # No tool leaves out what stands behind an input of the model.
        clips = value.producer() is not None and _has_range_of_clip(node)
        if low == 0 and not _is_never_negative(value):
            value = self._restore(value, "Clip" if clips else "Relu", low, high)
        elif clips and not _is_bounded(value):
            value = self._restore(value, "Clip", low, high)
        name = value.name or ""
        self._result.ranges[name] = max(self._result.ranges.get(name, 0.0), abs(low), abs(high))
        return value

    def _restore(self, value: ir.Value, operator: str, low: float, high: float) -> ir.Value:
        """The result of a Relu, or of a Clip with these bounds, behind a value; each value has one."""
        name = value.name or ""
        if name not in self._restored:
            output = take_name(f"{name}_{operator.lower()}", self._names)
            bounds = {"low": low, "high": high} if operator == "Clip" else {}
            inputs = [
                add_initializer(
                    self._graph, take_name(f"{output}_{end}", self._names), np.asarray(bound, np.float32)
                )
                for end, bound in bounds.items()
            ]
            node = ir.Node("", operator, [value, *inputs], name=f"{name}_{operator}")
            node.outputs[0].name = output
            node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
            producer = value.producer()
            if producer is not None:
                self._graph.insert_after(producer, node)
            else:
                self._graph.insert_before(self._graph[0], node)
            self._restored[name] = node.outputs[0]
            self._result.restored.append(node.name or "")
        return self._restored[name]

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        for node, index in tuple(old.uses()):
            node.replace_input_with(index, new)
        for index, output in enumerate(self._graph.outputs):
            if output is old:
                # The output keeps its name, which callers use.
                name, old.name = old.name, f"{old.name}_dequantized"
                if new.is_graph_input() or new.is_initializer() or new.is_graph_output():
                    self._graph.outputs[index] = self._copy(old, new, name)
                    continue
                if (new.name or "") in self._result.ranges:
                    self._result.ranges[name or ""] = self._result.ranges.pop(new.name or "")
                new.name = name
                self._graph.outputs[index] = new

    def _copy(self, old: ir.Value, new: ir.Value, name: str | None) -> ir.Value:
        """An Identity of a value that keeps its own name, in place of a dequantized output."""
        identity = ir.Node("", "Identity", [new], name=f"{name}_Identity")
        copy = identity.outputs[0]
        copy.name, copy.shape, copy.type = name, old.shape, old.type
        dequantize = old.producer()
        assert dequantize is not None
        self._graph.insert_after(dequantize, identity)
        return copy


def _symmetric_scale(node: ir.Node, shape: tuple[int, ...]) -> _Scale | None:
    """The scales of a constant of some shape; None where they are of blocks or have zero points."""
    scale, zero_point = parameters(node)
    if node.attributes.get_int("block_size", 0) or zero_point.any():
        return None
    return scale, channel_axis(node, scale.size, shape) if scale.size > 1 else None


def quantized_nodes(model: ir.Model) -> tuple[str, ...]:
    """Names of the weighted nodes of which both operands are dequantized."""
    return tuple(
        node.name or ""
        for node in model.graph
        if node.op_type in WEIGHTED and all(map(reads_integers, node.inputs[:2]))
    )


def float_nodes(model: ir.Model) -> tuple[tuple[str, str], ...]:
    """Names of the nodes that multiply matrices in float, each with the reason in words for the user."""
    quantized = frozenset(quantized_nodes(model))
    nodes = itertools.chain.from_iterable((node, *nodes_inside(node)) for node in model.graph)
    return tuple(
        (node.name or node.op_type, "the model has no Q/DQ pairs before both of its operands")
        for node in nodes
        if node.domain == "" and node.op_type in MULTIPLYING and node.name not in quantized
    )


def parameters(node: ir.Node) -> tuple[NDArray[np.float32], NDArray[np.integer]]:
    """The scales and zero points of a QuantizeLinear or DequantizeLinear.

    Returns:
        Scales, float32, and zero points, int64, both flat; the zero points are 0 where the node gives none.

    Raises:
        ModelError: They are not constant, a scale is not positive and finite, or there is no scale, or
            another number of zero points.
    """
    constants = [read_constant(value) for value in node.inputs[1:3]]
    if constants[0] is None or (len(node.inputs) > 2 and node.inputs[2] is not None and constants[1] is None):
        raise ModelError(f"the scale or zero point of node '{node.name}' is computed at run time")
    scale = np.asarray(constants[0], np.float32).reshape(-1)
    if not ((scale > 0) & np.isfinite(scale)).all():
        bad = scale[~((scale > 0) & np.isfinite(scale))][0]
        raise ModelError(f"a scale of node '{node.name}' is {bad}; scales must be positive and finite")
    zero = constants[1] if len(constants) > 1 else None
    point = np.zeros(scale.shape, np.int64) if zero is None else zero.reshape(-1).astype(np.int64)
    if not scale.size or point.size not in (1, scale.size):
        name = node.inputs[1].name if node.inputs[1] is not None else ""
        raise ModelError(
            f"node '{node.name}' has {scale.size} scales in the tensor '{name}' and {point.size} zero "
            "points; give one of each, or one of each per channel"
        )
    return scale, point


def quantizer_range(node: ir.Node) -> tuple[float, float]:
    """The smallest and the largest value that the integers of a QuantizeLinear represent.

    Raises:
        ModelError: The scale or zero point is not constant, a scale is not positive and finite, or the node
            quantizes to no integer type.
    """
    scale, point = parameters(node)
    dtype = quantized_type(node)
    assert dtype is not None, "a QuantizeLinear has a type"
    if not dtype.is_integer():
        raise ModelError(
            f"node '{node.name}' quantizes to {dtype.name}, which is no integer type; export the model with "
            "int8 or uint8"
        )
    # In float64, so that the largest value divided by the largest integer gives back exactly the scale.
    scale = scale.astype(np.float64)
    if dtype == ir.DataType.INT8 and not point.any():
        return float(-127 * scale.max()), float(127 * scale.max())  # symmetric
    smallest = -(2 ** (dtype.bitwidth - 1)) if dtype.is_signed() else 0
    low, high = ((end - point) * scale for end in (smallest, smallest + 2**dtype.bitwidth - 1))
    return float(low.min()), float(high.max())


def _has_range_of_clip(node: ir.Node) -> bool:
    """Whether the range of a QuantizeLinear was given by the bounds of a Clip.

    These are numbers of few digits, such as 0 and 6, and a calibration that reaches them measures just them.
    Otherwise it hardly ever measures a range whose width has two digits. The scale says the width exactly;
    the bounds are moved by up to half a step, so that the zero point is whole.
    """
    scale, _ = parameters(node)
    dtype = quantized_type(node)
    assert dtype is not None, "a QuantizeLinear has a type"
    step = float(scale[0])
    width, (low, _) = step * (2**dtype.bitwidth - 1), quantizer_range(node)
    return scale.size == 1 and _has_two_digits(width, _ROUNDING * width) and _has_two_digits(low, 0.51 * step)


def _has_two_digits(number: float, tolerance: float) -> bool:
    return abs(number - float(f"{number:.1e}")) <= tolerance


def _is_bounded(value: ir.Value) -> bool:
    """Whether the operator that computes a value, or the values that it moves, gives it bounds."""
    stored = read_constant(value)
    if stored is not None:
        return not stored.any()  # Zero is within all bounds.
    node = value.producer()
    if node is None or node.op_type in _BOUNDED:
        return node is not None
    sources = moved_data(node).values()
    return bool(sources) and all(map(_is_bounded, sources))


def _is_never_negative(value: ir.Value) -> bool:
    """Whether a value is never negative, so that a quantizer without negative values is not a fused Relu."""
    stored = read_constant(value)
    if stored is not None:
        return bool((stored >= 0).all())
    node = value.producer()
    if node is None or node.op_type in _POSITIVE:
        return node is not None
    if node.op_type == "Clip":
        low = constant_input(node, 1)
        return low is not None and bool(low >= 0)
    if node.op_type in ("AveragePool", "GlobalAveragePool"):
        sources = node.inputs[:1]
    elif node.op_type in ("Add", "Mul"):
        sources = node.inputs
    elif node.op_type == "Resize":
        return False  # cubic interpolation overshoots
    else:
        sources = tuple(moved_data(node).values())
    return bool(sources) and all(source is not None and _is_never_negative(source) for source in sources)
