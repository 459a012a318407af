"""A network in INT8, simulated: its layers in float and in INT8, and networks of either beside each other."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Float32s
from calibrators.operators import Axes, Product, operator_of
from calibrators.tables.choice import QMAX
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import is_constant, values_read
from trtint8.models.graph_writer import GraphWriter, Term
from trtint8.models.shapes import open_shape
from trtint8.quantization.placement import Edge, Placement
from trtint8.quantization.qdq import activation_scales, insert_qdq, make_pair, read_weights, rounded_weights


class Form(Enum):
    """Which tensors of a layer are quantized."""

    FLOAT = "float"
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    INT8 = "int8"


@dataclass(frozen=True)
class Layer:
    """A node that a placement quantizes.

    Attributes:
        node: The node.
        activations: The edges through which it reads quantized activations.
        weights: The edges through which it reads quantized constants.
    """

    node: ir.Node
    activations: tuple[Edge, ...]
    weights: tuple[Edge, ...]

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name or ""

    @property
    def output(self) -> str:
        """Name of the tensor that the layer produces."""
        return self.node.outputs[0].name or ""

    def channel_axis(self, rank: int) -> int:
        """The axis of the channels of the layer's first quantized activation.

        Args:
            rank: How many axes the activation has, at least two.
        """
        operator, index = operator_of(self.node), self.activations[0].index
        if operator.axes is Axes.IMAGES:
            return 1
        if operator.product is Product.MATRICES:
            # The axis that is summed over: the last one of the first operand, the one before of the second.
            turned = self.node.attributes.get_int("transB" if index else "transA", 0)
            return rank - 1 - (index ^ turned)
        # Of other operators, images have their channels on axis 1, sequences of vectors on the last axis.
        return 1 if rank == 4 else rank - 1


@dataclass(frozen=True)
class Quantizer:
    """How a network's tensors are quantized.

    Attributes:
        placement: Which edges are quantized.
        scales: Tensor name to scale, for every quantized activation.
    """

    placement: Placement
    scales: Mapping[str, np.float32]

    @classmethod
    def of(cls, placement: Placement, amax: Mapping[str, float]) -> Quantizer:
        """The quantizer for the ranges of a calibration table.

        Args:
            placement: Which edges are quantized.
            amax: The range of every tensor in ``placement.tensors``.
        """
        return cls(placement, activation_scales(placement, amax))

    def only(self, nodes: Container[str]) -> Quantizer:
        """The same where only some nodes are quantized.

        Args:
            nodes: Their names.
        """
        activations, weights = (
            tuple(edge for edge in edges if edge.node in nodes)
            for edges in (self.placement.activations, self.placement.weights)
        )
        return replace(self, placement=replace(self.placement, activations=activations, weights=weights))

    def weights(self, edge: Edge, weights: Float32s) -> Float32s:
        """Quantizes constant weights and dequantizes them again.

        Args:
            edge: The edge through which a layer reads them.
            weights: The weights, float32.
        """
        return rounded_weights(self.placement, edge, weights)


def find_layers(graph: ir.Graph, placement: Placement) -> list[Layer]:
    """The nodes of a graph that a placement quantizes, in graph order.

    Args:
        graph: The graph that the placement was made for, or a copy of it.
        placement: Which edges are quantized.
    """
    edges: dict[str, tuple[list[Edge], list[Edge]]] = {}
    for index, quantized in enumerate((placement.activations, placement.weights)):
        for edge in quantized:
            edges.setdefault(edge.node, ([], []))[index].append(edge)
    return [Layer(node, *map(tuple, edges[node.name])) for node in graph if node.name in edges]


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
        self, layer: Layer, tensors: Mapping[ir.Value, ir.Value], form: Form = Form.INT8
    ) -> Sequence[ir.Value]:
        """Appends a layer.

        Args:
            layer: A layer of the graph.
            tensors: What it reads in place of its own inputs, where that differs.
            form: Which of its tensors are quantized.

        Returns:
            Its outputs.
        """
        inputs = [None if value is None else tensors.get(value, value) for value in layer.node.inputs]
        for edge in layer.activations if form in (Form.INT8, Form.ACTIVATIONS) else ():
            inputs[edge.index] = self._pair(inputs[edge.index], self._quantizer.scales[edge.tensor])
        for edge in layer.weights if form in (Form.INT8, Form.WEIGHTS) else ():
            key = (edge.tensor, edge.axis)
            if key not in self._weights:
                values = read_weights(layer.node, edge)
                rounded = partial(self._quantizer.weights, edge, values)
                self._weights[key] = self._writer.weights(rounded, values.shape)
            inputs[edge.index] = self._weights[key]
        return self._writer.copies(layer.node, inputs)

    def _pair(self, value: ir.Value | None, scale: np.float32) -> ir.Value:
        assert value is not None
        if value not in self._pairs:
            parameters = [self._writer.constant(scale), self._writer.constant(np.zeros((), np.int8))]
            for node in make_pair(value, *parameters):
                self._pairs[value] = self._writer.append(node)
        return self._pairs[value]


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
        shapes = map(open_shape, self.model.graph.inputs)
        self._open_sizes = {size for shape in shapes for size in shape or () if isinstance(size, str)}
        self.writer = GraphWriter(self.model.graph)
        self._quantized = QuantizedLayers(self.writer, quantizer)

    def error(self, layer: Layer, form: Form = Form.INT8) -> Term:
        """Appends a layer that reads the float network's tensors.

        Args:
            layer: One of the layers.
            form: Which of its tensors are quantized.

        Returns:
            What its output is more than in float.
        """
        output = layer.node.outputs[0]
        quantized = self._quantized.append(layer, {}, form)[0]
        return (Term(self.writer, quantized) - output).like(output)

    def append_int8(self) -> Mapping[ir.Value, ir.Value]:
        """Appends the network with every layer in INT8.

        Returns:
            The float network's tensors, where they depend on layers, to those in INT8.

        Raises:
            InnerReadError: A graph inside a node reads what layers compute.
        """
        layers = {layer.node: layer for layer in self.layers}
        tensors: dict[ir.Value, ir.Value] = {}
        for node in self.nodes:
            if node in layers:
                tensors |= zip(node.outputs, self._quantized.append(layers[node], tensors), strict=True)
                continue
            # Masks and places depend on layers as well; the size of a tensor mostly does not.
            read = [value for value in values_read(node) if value in tensors]
            if not read or (operator_of(node).reads_shape and all(map(self.keeps_size, read))):
                continue
            if any(value not in node.inputs for value in read):
                raise InnerReadError(f"a graph inside '{node.name}' reads what is quantized")
            inputs = [None if value is None else tensors.get(value, value) for value in node.inputs]
            tensors |= zip(node.outputs, self.writer.copies(node, inputs), strict=True)
        return tensors

    def keeps_size(self, value: ir.Value) -> bool:
        """True if a tensor has the same size in INT8, because only sizes of inputs decide it.

        Args:
            value: A tensor of the float network.
        """
        sizes = open_shape(value)
        return sizes is not None and all(isinstance(size, int) or size in self._open_sizes for size in sizes)

    def give(self, appended: Term | ir.Value, element_type: ir.DataType = ir.DataType.FLOAT) -> None:
        """Makes an appended value an output behind the others."""
        value = appended.value if isinstance(appended, Term) else appended
        value.type = ir.TensorType(element_type)
        self.model.graph.outputs.append(value)
