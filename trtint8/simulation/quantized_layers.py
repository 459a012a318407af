"""Appends layers to a graph a second time, with their weights, their activations or both quantized."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from trtint8.models.graph_constants import read_constant
from trtint8.models.graph_writer import GraphWriter
from trtint8.simulation.layers import Layer, Quantizer


class QuantizedLayers:
    """Appends quantized layers; what they have in common is appended once.

    Args:
        writer: Writes to the network's graph.
        quantizer: How the network's tensors are quantized.
    """

    def __init__(self, writer: GraphWriter, quantizer: Quantizer) -> None:
        self._writer, self._quantizer = writer, quantizer
        self._pairs: dict[ir.Value, ir.Value] = {}
        self._weights: dict[tuple[str, int | None], ir.Value] = {}

    def append(
        self,
        layer: Layer,
        tensors: Mapping[ir.Value, ir.Value],
        *,
        weights: bool = True,
        activations: bool = True,
    ) -> ir.Value:
        """Appends a layer.

        Args:
            layer: A layer of the graph.
            tensors: What it reads in place of its own inputs, where that differs.
            weights: Whether its weights are quantized.
            activations: Whether its activations are quantized.

        Returns:
            Its output.
        """
        inputs = [None if value is None else tensors.get(value, value) for value in layer.node.inputs]
        for edge in layer.activations if activations else ():
            inputs[edge.index] = self._pair(inputs[edge.index], self._quantizer.scales[edge.tensor])
        for edge in layer.weights if weights else ():
            key = (edge.tensor, edge.axis)
            if key not in self._weights:
                values = read_constant(layer.node.inputs[edge.index])
                assert values is not None, f"the placement calls '{edge.tensor}' a weight"
                rounded = partial(self._quantizer.weights, edge, values)
                self._weights[key] = self._writer.weights(rounded, values.shape)
            inputs[edge.index] = self._weights[key]
        return self._writer.copy(layer.node, inputs)

    def error(self, layer: Layer, *, weights: bool = True, activations: bool = True) -> ir.Value:
        """Appends a layer on the float network's tensors; returns what its output is more than in float."""
        output = layer.node.outputs[0]
        quantized = self.append(layer, {}, weights=weights, activations=activations)
        return self._writer.op("Sub", quantized, output, like=output)

    def _pair(self, value: ir.Value | None, scale: np.float32) -> ir.Value:
        assert value is not None
        if value not in self._pairs:
            parameters = [self._writer.constant(scale), self._writer.constant(np.zeros((), np.int8))]
            integers = self._writer.op("QuantizeLinear", value, *parameters)
            self._pairs[value] = self._writer.op("DequantizeLinear", integers, *parameters, like=value)
        return self._pairs[value]
