"""Whole networks in INT8, and the float network with its layers in INT8 beside it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from calibrators.tables.choice import QMAX
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import is_constant, values_read
from trtint8.models.graph_writer import GraphWriter, reached_from
from trtint8.quantization.qdq import insert_qdq
from trtint8.simulation.layers import Form, Layer, QuantizedLayers, Quantizer, find_layers


class InnerReadError(Exception):
    """A graph inside a node reads what layers compute, so it cannot be appended a second time."""


@pause_garbage_collection()
def quantized_network(graph_model: ir.Model, quantizer: Quantizer) -> ir.Model:
    """Makes the network in INT8, with Q/DQ pairs at all edges of the placement.

    ONNX Runtime quantizes weights once, when it opens the network: in less time and memory than NumPy.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        quantizer: How the model's tensors are quantized.
    """
    model = graph_model.clone()
    ranges = {tensor: QMAX * float(scale) for tensor, scale in quantizer.scales.items()}
    insert_qdq(model, quantizer.placement, ranges)
    return model


def scales_as_inputs(model: ir.Model) -> Mapping[str, str]:
    """Turns the scales of a network's activations into inputs, so that one session tries any set of ranges.

    Args:
        model: From :func:`quantized_network`; changed in place.

    Returns:
        Name of the input to name of the quantized tensor.
    """
    graph, found = model.graph, {}
    for node in list(graph):
        if node.op_type == "QuantizeLinear" and not is_constant(node.inputs[0]):
            tensor, scale = node.inputs[:2]
            assert tensor is not None and scale is not None and scale.name is not None
            del graph.initializers[scale.name]
            scale.const_value = None
            graph.inputs.append(scale)
            found[scale.name] = tensor.name or ""
    return found


class BesideFloat:
    """A copy of the float network, to which layers are appended a second time, in INT8.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        quantizer: How the model's tensors are quantized.

    Attributes:
        model: The network.
        nodes: The nodes of the float network, in graph order.
        layers: Its layers, in the order in which they run.
        writer: Appends what else is computed.
    """

    def __init__(self, graph_model: ir.Model, quantizer: Quantizer) -> None:
        self.model = graph_model.clone()
        self.nodes = tuple(self.model.graph)
        self.layers = tuple(find_layers(self.model.graph, quantizer.placement))
        self.writer = GraphWriter(self.model.graph)
        self._quantized = QuantizedLayers(self.writer, quantizer)

    def error(self, layer: Layer, form: Form = Form.INT8) -> ir.Value:
        """Appends a layer that reads the float network's tensors.

        Args:
            layer: One of the layers.
            form: Which of its tensors are quantized.

        Returns:
            What its output is more than in float.
        """
        output = layer.node.outputs[0]
        quantized = self._quantized.append(layer, {}, form)[0]
        return self.writer.op("Sub", quantized, output, like=output)

    def append_int8(self) -> Mapping[ir.Value, ir.Value]:
        """Appends the network with every layer in INT8.

        Returns:
            The float network's tensors, where they depend on layers, to those in INT8.

        Raises:
            InnerReadError: A graph inside a node reads what layers compute.
        """
        layers = {layer.node: layer for layer in self.layers}
        reached = reached_from(self.nodes, (layer.node.outputs[0] for layer in self.layers))
        tensors: dict[ir.Value, ir.Value] = {}
        for node in self.nodes:
            if node in layers:
                tensors |= zip(node.outputs, self._quantized.append(layers[node], tensors), strict=True)
            elif any(value in reached for value in values_read(node)):
                if any(value in reached for value in set(values_read(node)) - set(node.inputs)):
                    raise InnerReadError(f"a graph inside '{node.name}' reads what is quantized")
                inputs = [None if value is None else tensors.get(value, value) for value in node.inputs]
                tensors |= zip(node.outputs, self.writer.copies(node, inputs), strict=True)
        return tensors

    def give(self, value: ir.Value, element_type: ir.DataType = ir.DataType.FLOAT) -> None:
        """Makes an appended value an output behind the others."""
        value.type = ir.TensorType(element_type)
        self.model.graph.outputs.append(value)
