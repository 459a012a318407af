"""A network cut into segments, each of which runs in float or in INT8 on its own.

A segment begins with a layer, which is a node that a placement quantizes, and ends before the next layer. So
a variant of the network that differs in one layer shares everything before that layer with the other
variants, and only what depends on the layer has to be computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from calibrators.errors import CalibrationDataError, ModelError
from calibrators.host.onnx_session import first_line, open_session
from calibrators.operators import Axes, Product, operator_of
from trtint8.models.inner_graphs import values_read
from trtint8.models.outputs.parts import OutputPart, output_parts, split_outputs
from trtint8.quantization.placement import Edge, Placement
from trtint8.quantization.qdq import activation_scales, rounded_weights

#: Tensor name to array.
Tensors = dict[str, NDArray[Any]]


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

    def weights(self, edge: Edge, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Quantizes constant weights and dequantizes them again.

        Args:
            edge: The edge through which a layer reads them.
            weights: The weights, float32.
        """
        return rounded_weights(self.placement, edge, weights)


@dataclass(eq=False)
class Segment:
    """A layer and the nodes after it up to the next layer; the first segment may have no layer.

    Attributes:
        layer: The layer that the segment begins with, or None.
        inputs: Names of the tensors that it reads from earlier segments or from the model's inputs.
        outputs: Names of its tensors that later segments read, or that are outputs of the model.
        dependents: For each input, and for the layer's output, the outputs that depend on it.
    """

    layer: Layer | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dependents: Mapping[str, frozenset[str]]
    _blocks: Mapping[Form, _Block] = field(repr=False)
    _layer_blocks: Mapping[Form, _Block] = field(repr=False)

    def run(self, form: Form, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
        """Computes the outputs.

        Args:
            form: Which tensors of the layer are quantized.
            tensors: At least the inputs, by name.

        Returns:
            The outputs, by name.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the tensors.
        """
        return self._blocks[form].run(tensors) if self.outputs else {}

    def run_layer(self, form: Form, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Computes the layer alone.

        Args:
            form: Which tensors of the layer are quantized.
            tensors: At least the segment's inputs, by name.

        Returns:
            The layer's output.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the tensors.
        """
        assert self.layer is not None
        return self._layer_blocks[form].run(tensors)[self.layer.output]


@dataclass(frozen=True)
class Network:
    """A prepared model, cut at its layers.

    Attributes:
        segments: The segments, in the order in which they run.
        outputs: Names of the model's outputs.
        parts: The parts of the outputs that are measured by themselves.
        last_use: Tensor name to the number of the last segment that reads it.
    """

    segments: tuple[Segment, ...]
    outputs: tuple[str, ...]
    parts: tuple[OutputPart, ...]
    last_use: Mapping[str, int]

    def last_read_by(self, number: int) -> set[str]:
        """The tensors that nothing reads after a segment, except the model's outputs.

        Args:
            number: Index of the segment.
        """
        read = {name for name in self.segments[number].inputs if self.last_use[name] == number}
        return read - set(self.outputs)

    def split(self, outputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """The model's outputs by the names of their parts."""
        return split_outputs(self.parts, outputs)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in the order in which they run."""
        return tuple(segment.layer for segment in self.segments if segment.layer is not None)


def cut(model: ir.Model, quantizer: Quantizer, *, threads: int | None = None) -> Network:
    """Cuts a model at its layers.

    Args:
        model: From :func:`trtint8.models.model.prepare`; it must stay as it is while the segments are used.
        quantizer: How the model's tensors are quantized.
        threads: Threads per operator; ONNX Runtime's choice where None.

    Returns:
        The model, cut into segments. Their ONNX Runtime sessions are opened when they are first used.

    Raises:
        ModelError: The type of a tensor could not be inferred.
    """
    graph = model.graph
    layers = {layer.name: layer for layer in find_layers(graph, quantizer.placement)}
    groups: list[list[ir.Node]] = []
    for node in graph:
        if node.name in layers or not groups:
            groups.append([])
        groups[-1].append(node)
    number = {node: index for index, nodes in enumerate(groups) for node in nodes}
    last_use = {value.name or "": index for node, index in number.items() for value in _reads(node, graph)}
    segments = []
    for index, nodes in enumerate(groups):
        made = [value for node in nodes for value in node.outputs if value.name]
        outputs = tuple(
            value.name or ""
            for value in made
            if value.is_graph_output() or last_use.get(value.name or "", -1) > index
        )
        layer = layers.get(nodes[0].name or "")
        common = (model, quantizer, layer, threads)
        alone = (layer.output,) if layer else ()
        segments.append(
            Segment(
                layer,
                _inputs(nodes, graph),
                outputs,
                _dependents(nodes, graph, outputs, layer),
                {form: _Block(*common, form, tuple(nodes), outputs) for form in Form},
                {form: _Block(*common, form, tuple(nodes[:1]), alone) for form in Form} if layer else {},
            )
        )
    names = tuple(value.name or "" for value in graph.outputs)
    return Network(tuple(segments), names, output_parts(model), last_use)


@dataclass(eq=False)
class _Block:
    """Consecutive nodes as an ONNX Runtime session, which is opened by the first run.

    Attributes:
        model: The model that the nodes belong to.
        quantizer: How the model's tensors are quantized.
        layer: The layer, if it is the first of the nodes.
        threads: Threads per operator; ONNX Runtime's choice where None.
        form: Which tensors of the layer are quantized.
        nodes: The nodes, in graph order.
        outputs: Names of the tensors to compute.
        session: The ONNX Runtime session, once it is open.
    """

    model: ir.Model
    quantizer: Quantizer
    layer: Layer | None
    threads: int | None
    form: Form
    nodes: tuple[ir.Node, ...]
    outputs: tuple[str, ...]
    session: Any = None

    def run(self, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
        if self.session is None:
            self.session = open_session(
                self._serialized(), optimize=True, threads=self.threads, one_of_many=True, keep_layout=True
            )
        feed = {value.name: tensors[value.name] for value in self.session.get_inputs()}
        try:
            return dict(zip(self.outputs, self.session.run(list(self.outputs), feed), strict=True))
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a batch: {first_line(error)}") from error

    def _serialized(self) -> bytes:
        protos = [ir.serde.serialize_node(node) for node in self.nodes]
        values = {value.name or "": value for node in self.nodes for value in _reads(node, self.model.graph)}
        constants = {name: _array(value) for name, value in values.items() if value.const_value is not None}
        if self.layer is not None:
            protos[:1] = self._layer_nodes(self.layer, protos[0], constants)
        made = {name for proto in protos for name in proto.output}
        inputs = [name for name in values if name not in constants and name not in made]
        graph = helper.make_graph(
            protos,
            "segment",
            [helper.make_tensor_value_info(name, _dtype(values[name]), None) for name in inputs],
            [helper.make_empty_tensor_value_info(name) for name in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        serialized: bytes = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(*opset) for opset in self.model.opset_imports.items()],
            functions=[ir.to_proto(function) for function in self.model.functions.values()],
            ir_version=self.model.ir_version,
        ).SerializeToString()
        return serialized

    def _layer_nodes(
        self, layer: Layer, node: onnx.NodeProto, constants: dict[str, NDArray[Any]]
    ) -> list[onnx.NodeProto]:
        """The layer's nodes in the block's form: with rounded weights, and Q/DQ pairs before activations.

        Args:
            layer: The layer.
            node: The layer's node; changed in place.
            constants: Constants of the block by name; rounded weights and parameters of pairs are added.
        """
        pairs = []
        if self.form in (Form.INT8, Form.WEIGHTS):
            for edge in layer.weights:
                # Another name, because a later node of the segment may read the original constant.
                name = f"{edge.tensor}_rounded"
                constants[name] = self.quantizer.weights(edge, constants[edge.tensor])
                node.input[edge.index] = name
        if self.form in (Form.INT8, Form.ACTIVATIONS):
            for edge in layer.activations:
                stem = f"{edge.tensor}_read_{edge.index}"
                parameters = [f"{stem}_scale", f"{stem}_zero_point"]
                constants |= zip(
                    parameters, (np.asarray(self.quantizer.scales[edge.tensor]), _ZERO), strict=True
                )
                integers, values = f"{stem}_integers", f"{stem}_values"
                pairs.append(helper.make_node("QuantizeLinear", [edge.tensor, *parameters], [integers]))
                pairs.append(helper.make_node("DequantizeLinear", [integers, *parameters], [values]))
                node.input[edge.index] = values
        return [*pairs, node]


_ZERO = np.zeros((), np.int8)


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


def _reads(node: ir.Node, graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that a node reads from the graph, also those that only its subgraphs read."""
    return (value for value in values_read(node) if value in node.inputs or value.graph is graph)


def _inputs(nodes: Sequence[ir.Node], graph: ir.Graph) -> tuple[str, ...]:
    """Names of the values that nodes read and do not produce themselves, except constants."""
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in _reads(node, graph))
    return tuple(value.name or "" for value in read if value not in made and value.const_value is None)


def _dependents(
    nodes: Sequence[ir.Node], graph: ir.Graph, outputs: Sequence[str], layer: Layer | None
) -> dict[str, frozenset[str]]:
    """For each input of a segment, and for its layer's output, the outputs that depend on it."""
    sources = [*_inputs(nodes, graph), *([layer.output] if layer else [])]
    dependents = {}
    for source in sources:
        reached = {source}
        for node in nodes:
            if any(value.name in reached for value in _reads(node, graph)):
                reached.update(value.name for value in node.outputs if value.name)
        dependents[source] = frozenset(reached.intersection(outputs))
    return dependents


def _array(value: ir.Value) -> NDArray[Any]:
    assert value.const_value is not None
    return value.const_value.numpy()


def _dtype(value: ir.Value) -> int:
    if value.dtype is None:
        raise ModelError(
            f"the type of tensor '{value.name}' cannot be inferred; export the model with shapes"
        )
    return int(value.dtype)
