"""Weights that are dequantized by one scale, so that TensorRT for RTX stores a convolution's sums as FP16.

With one scale per channel, its INT8 convolutions write float32, and a second kernel reads that, multiplies by
the scales, adds the bias and quantizes. With one scale for all weights they write FP16, half as much. So the
weights stay the same integers, quantized per channel, but are dequantized by one scale. What the scale of
each channel is more than that multiplies the convolution's output, and the bias is added after it; the second
kernel takes both in.

The scale is free, because the factors undo it. It is chosen so that no sum of products can leave the range of
FP16, whatever the input is, and so that the smallest sum is still a normal number of FP16.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.models.graph import add_initializer, read_constant, take_name, value_names

_logger = logging.getLogger(__name__)

_LARGEST_HALF = float(np.finfo(np.float16).max)
_SMALLEST_HALF = float(np.finfo(np.float16).smallest_normal)

#: The largest magnitude of a quantized input.
_LARGEST_INTEGER = 128

#: The largest share of FP16's range that an output was seen to take, its bias left out.
_SHARE_OF_RANGE = 0.5


def dequantize_by_one_scale(model: ir.Model, peaks: Mapping[str, float]) -> tuple[str, ...]:
    """Rewrites the INT8 convolutions of a model that have FP16 around them.

    Args:
        model: A model with Q/DQ pairs, from :func:`trtint8.quantization.float16.to_float16`; changed
            in place.
        peaks: Tensor name to the largest magnitude seen in it; may lack tensors.

    Returns:
        Names of the convolutions that were rewritten. Left as they are: those in float32, those with one
        scale already or a computed bias, and those for which there is no such scale.
    """
    rewriter = _Rewriter(model.graph, peaks)
    convolutions = [node for node in model.graph if node.domain == "" and node.op_type == "Conv"]
    return tuple(node.name or "" for node in convolutions if rewriter.rewrite(node))


def one_scale(integers: NDArray[np.int8], scales: NDArray[np.floating], input_scale: float) -> float | None:
    """The scale by which all weights of a convolution are dequantized.

    Args:
        integers: The weights, of shape (output channels, ...).
        scales: The scale of each output channel, of shape (output channels,); FP16 numbers.
        input_scale: The scale of the convolution's input.

    Returns:
        A power of two that is at most 1, so that the factors ``scales / scale`` are exact in FP16; None where
        none keeps both sums and factors within FP16's numbers, or where all weights are zero.
    """
    sums = _magnitudes(integers)
    if not sums.any():
        return None
    highest = min(_LARGEST_HALF / (float(sums.max()) * _LARGEST_INTEGER * input_scale), 1.0)
    lowest = max(_SMALLEST_HALF / input_scale, float(scales.max()) / _LARGEST_HALF, _SMALLEST_HALF)
    scale = 2.0 ** math.floor(math.log2(highest))
    return scale if scale >= lowest else None


class _Rewriter:
    def __init__(self, graph: ir.Graph, peaks: Mapping[str, float]) -> None:
        self._graph, self._peaks = graph, peaks
        self._names = value_names(graph) | {node.name for node in graph if node.name}
        self._dequantized: dict[tuple[ir.Value, float], ir.Value] = {}

    def rewrite(self, conv: ir.Node) -> bool:
        """Rewrites one convolution; returns whether it did."""
        source, weights = (_dequantizer(value) for value in conv.inputs[:2])
        bias = conv.inputs[2] if len(conv.inputs) > 2 else None
        addend = read_constant(bias)
        if conv.outputs[0].dtype != ir.DataType.FLOAT16 or source is None or weights is None:
            return False
        if (bias is not None and addend is None) or self._leaves_range(conv.outputs[0], addend):
            return False
        input_scale, integers, scales = read_constant(source.inputs[1]), _integers(weights), _scales(weights)
        if input_scale is None or input_scale.size != 1 or integers is None or scales is None:
            return False
        scale = one_scale(integers, scales, float(input_scale.reshape(-1)[0]))
        if scale is None:
            _logger.debug("no one scale fits the weights of '%s'", conv.name)
            return False
        self._dequantize(conv, integers, scale)
        used = _magnitudes(integers) > 0
        self._finish(conv, np.where(used, scales.astype(np.float64) / scale, 1.0), addend)
        return True

    def _leaves_range(self, output: ir.Value, bias: NDArray[np.floating] | None) -> bool:
        """Whether the output, its bias left out, was seen to come near the end of FP16's range."""
        peak = self._peaks.get(output.name or "", 0.0)
        largest_bias = 0.0 if bias is None else float(np.abs(bias.astype(np.float64)).max(initial=0))
        return peak + largest_bias > _SHARE_OF_RANGE * _LARGEST_HALF

    def _dequantize(self, conv: ir.Node, integers: NDArray[np.int8], scale: float) -> None:
        """Lets a convolution read its weights dequantized by one scale."""
        value = conv.inputs[1]
        assert value is not None
        # Convolutions that share weights share those of one scale too, where it is the same.
        key = (value, scale)
        if key not in self._dequantized:
            parameters = [
                self._constant(f"{value.name}_integers", integers),
                self._constant(f"{value.name}_one_scale", np.asarray(scale, np.float16)),
                self._constant(f"{value.name}_one_zero_point", np.zeros((), np.int8)),
            ]
            name = f"{value.name}_by_one_scale"
            dequantize = self._node("DequantizeLinear", parameters, name, integers.shape)
            self._graph.insert_before(conv, dequantize)
            self._dequantized[key] = dequantize.outputs[0]
        conv.replace_input_with(1, self._dequantized[key])

    def _finish(self, conv: ir.Node, factors: NDArray[np.float64], bias: NDArray[np.floating] | None) -> None:
        """Multiplies a convolution's output by factors per channel and adds its bias."""
        output = conv.outputs[0]
        name, shape, uses = output.name or "", output.shape, tuple(output.uses())
        output.name = take_name(f"{name}_unscaled", self._names)
        column = (-1, *[1] * (len(self._weights_shape(conv)) - 2))
        factor = self._constant(f"{name}_factors", factors.astype(np.float16).reshape(column))
        last = self._node("Mul", [output, factor], f"{name}_Mul", shape)
        added = [last]
        if bias is not None:
            addend = self._constant(f"{name}_bias", bias.astype(np.float16).reshape(column))
            last = self._node("Add", [last.outputs[0], addend], f"{name}_Add", shape)
            added.append(last)
            conv.resize_inputs(2)
        last.outputs[0].name = name
        for reader, index in uses:
            reader.replace_input_with(index, last.outputs[0])
        for index, value in enumerate(self._graph.outputs):
            if value is output:
                self._graph.outputs[index] = last.outputs[0]
        self._graph.insert_after(conv, added)

    def _weights_shape(self, conv: ir.Node) -> ir.Shape:
        value = conv.inputs[1]
        assert value is not None and value.shape is not None
        return value.shape

    def _node(
        self,
        operator: str,
        inputs: list[ir.Value],
        name: str,
        shape: ir.Shape | tuple[int, ...] | None,
    ) -> ir.Node:
        node = ir.Node("", operator, inputs, name=take_name(name, self._names))
        output = node.outputs[0]
        output.name = take_name(f"{name}_out", self._names)
        output.type = ir.TensorType(ir.DataType.FLOAT16)
        output.shape = None if shape is None else ir.Shape(tuple(shape))
        return node

    def _constant(self, name: str, array: NDArray[np.generic]) -> ir.Value:
        return add_initializer(self._graph, take_name(name, self._names), array)


def _dequantizer(value: ir.Value | None) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def _integers(dequantize: ir.Node) -> NDArray[np.int8] | None:
    """The integers of weights, where they have one scale per output channel and a pair of their own."""
    source = dequantize.inputs[0].producer() if dequantize.inputs[0] is not None else None
    if source is None or source.op_type != "QuantizeLinear":
        return None
    weights, scales = (read_constant(value) for value in source.inputs[:2])
    if weights is None or scales is None or scales.shape != weights.shape[:1]:
        return None
    if dequantize.attributes.get_int("axis", 1) != 0 or source.attributes.get_int("axis", 1) != 0:
        return None
    column = scales.reshape(-1, *[1] * (weights.ndim - 1))
    integers: NDArray[np.int8] = np.clip(np.rint(weights / column), -128, 127).astype(np.int8)
    return integers


def _scales(dequantize: ir.Node) -> NDArray[np.floating] | None:
    return read_constant(dequantize.inputs[1])


def _magnitudes(integers: NDArray[np.int8]) -> NDArray[np.int64]:
    """The sum of the weights' magnitudes of each output channel, of shape (output channels,)."""
    found: NDArray[np.int64] = np.abs(integers.astype(np.int64)).reshape(len(integers), -1).sum(axis=1)
    return found
