"""A network cut into segments, each of which runs in float or in INT8 on its own.

A segment begins with a layer, which is a node that a placement quantizes, and ends before the next layer. So
a variant of the network that differs in one layer shares everything before that layer with the other
variants, and only what depends on the layer has to be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from calibrators.data.feeds import Array, FeedDict, Float32s, NamedArrays
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.host.session import first_line, give_back_freed_memory, open_session
from calibrators.tables.choice import scale_of
from trtint8.interop.pairs import replace_value
from trtint8.models.graph import graph_values, values_read
from trtint8.models.graph_writer import GraphWriter
from trtint8.models.outputs.joined import OutputPart, output_parts, split_outputs
from trtint8.quantization.config import State, fake_quantize
from trtint8.quantization.placement import Placement
from trtint8.simulation.networks import Form, Layer, QuantizedLayers, Quantizer, find_layers

#: Tensor name to array.
Tensors = dict[str, Array]


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
    _whole: _Block = field(repr=False)
    _alone: _Block | None = field(repr=False)

    def run(self, form: Form, tensors: NamedArrays) -> Tensors:
        """Computes the outputs.

        Args:
            form: Which tensors of the layer are quantized.
            tensors: At least the inputs, by name.

        Returns:
            The outputs, by name.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the tensors.
        """
        return self._whole.run(form, tensors) if self.outputs else {}

    def run_layer(self, form: Form, tensors: NamedArrays) -> Array:
        """Computes the layer alone.

        Args:
            form: Which tensors of the layer are quantized.
            tensors: At least the segment's inputs, by name.

        Returns:
            The layer's output.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the tensors.
        """
        assert self.layer is not None and self._alone is not None
        return self._alone.run(form, tensors)[self.layer.output]


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

    def run_float(self, feed: FeedDict) -> Tensors:
        """Runs the float network; returns its outputs.

        Args:
            feed: One batch.

        Raises:
            CalibrationDataError: The model fails on the batch.
        """
        tensors: Tensors = dict(feed)
        for _ in self._float_segments(tensors):
            pass
        return _select(self.outputs, tensors)

    def float_layers(self, feed: FeedDict) -> Iterator[tuple[Segment, Layer, Tensors]]:
        """Runs one batch through the float network and stops before every layer.

        Args:
            feed: One batch.

        Yields:
            The segment that begins with the layer, the layer, and the tensors so far by name: at least those
            that the segment reads. Tensors that nothing reads any more are dropped.

        Raises:
            CalibrationDataError: The model fails on the batch.
        """
        tensors: Tensors = dict(feed)
        for segment in self._float_segments(tensors):
            if segment.layer is not None:
                yield segment, segment.layer, tensors

    def _float_segments(self, tensors: Tensors) -> Iterator[Segment]:
        """Runs the float network, and stops before every segment; ``tensors`` is kept up to date."""
        for number, segment in enumerate(self.segments):
            yield segment
            tensors |= segment.run(Form.FLOAT, tensors)
            for name in self.last_read_by(number):
                tensors.pop(name, None)

    def split(self, outputs: NamedArrays) -> Tensors:
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
        segments.append(
            Segment(
                layer,
                _inputs(nodes, graph),
                outputs,
                _dependents(nodes, graph, outputs, layer),
                _Block(*common, nodes, outputs),
                _Block(*common, nodes[:1], (layer.output,)) if layer else None,
            )
        )
    names = tuple(value.name or "" for value in graph.outputs)
    return Network(tuple(segments), names, output_parts(model), last_use)


@dataclass(eq=False)
class _Block:
    """Consecutive nodes, with a session of ONNX Runtime for each form, which is opened by its first run.

    Attributes:
        model: The model that the nodes belong to.
        quantizer: How the model's tensors are quantized.
        layer: The layer, if it is the first of the nodes.
        threads: Threads per operator; ONNX Runtime's choice where None.
        nodes: The nodes, in graph order.
        outputs: Names of the tensors to compute.
    """

    model: ir.Model
    quantizer: Quantizer
    layer: Layer | None
    threads: int | None
    nodes: Sequence[ir.Node]
    outputs: tuple[str, ...]
    sessions: dict[Form, Any] = field(default_factory=dict)

    def run(self, form: Form, tensors: NamedArrays) -> Tensors:
        if form not in self.sessions:
            serialized = self._serialized(form)
            self.sessions[form] = open_session(
                serialized, optimize=True, threads=self.threads, one_of_many=True, keep_layout=True
            )
        session = self.sessions[form]
        feed = {value.name: tensors[value.name] for value in session.get_inputs()}
        try:
            return dict(zip(self.outputs, session.run(list(self.outputs), feed), strict=True))
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a batch: {first_line(error)}") from error

    def _serialized(self, form: Form) -> bytes:
        made = {value.name: value for node in self.nodes for value in node.outputs}
        values = dict.fromkeys(value for node in self.nodes for value in _reads(node, self.model.graph))
        read = [value for value in values if value.name not in made]
        inputs = [value for value in read if value.const_value is None]
        for value in inputs:
            if value.dtype is None:
                raise ModelError(
                    f"the type of tensor '{value.name}' cannot be inferred; export the model with shapes"
                )
        part = ir.GraphView(
            inputs,
            [made[name] for name in self.outputs],
            nodes=self.nodes,
            initializers=[value for value in read if value.const_value is not None],
            opset_imports=self.model.opset_imports,
            name="segment",
        ).clone()
        if self.layer is not None and form is not Form.FLOAT:
            _quantize(part, self.layer, self.quantizer, form)
        for value in graph_values(part):
            value.shape = None  # exporters declare shapes that do not hold for other batches
        model = ir.Model(part, ir_version=self.model.ir_version)
        serialized: bytes = ir.to_proto(model).SerializeToString()
        return serialized


def _quantize(part: ir.Graph, layer: Layer, quantizer: Quantizer, form: Form) -> None:
    """Puts a layer in a form in the place of the first node of a graph."""
    node = part[0]
    outputs = QuantizedLayers(GraphWriter(part), quantizer).append(replace(layer, node=node), {}, form)
    for output, quantized in zip(node.outputs, outputs, strict=True):
        replace_value(output, quantized)
    part.remove(node, safe=True)
    part.sort()


class LayerAlone:
    """A layer run by itself, without its bias, on values and weights that are given with each run.

    Args:
        model: The model that the layer belongs to.
        layer: A layer of one activation and constant weights.
        placement: Tells how both are quantized.
    """

    def __init__(self, model: ir.Model, layer: Layer, placement: Placement) -> None:
        (activation,), (self._weights,) = layer.activations, layer.weights
        self._quantizer = Quantizer(placement, {})
        # Tensors that share the scale of another one have a config that takes none of its own.
        self._activation = replace(placement.configs[activation.tensor], state=State.INITIAL)
        float32 = ir.TensorType(ir.DataType.FLOAT)
        inputs = [ir.Value(name=name, type=float32) for name in ("values", "weights")]
        node = ir.Node(layer.node.domain, layer.node.op_type, inputs, layer.node.attributes.values())
        node.outputs[0].name = "output"
        self._block = _Block(model, self._quantizer, None, None, (node,), ("output",))

    def run(self, values: Float32s, weights: Float32s) -> Float32s:
        """The layer's output in float, for its input and weights."""
        return self._block.run(Form.FLOAT, {"values": values, "weights": weights})["output"]

    def run_int8(self, values: Float32s, weights: Float32s, amax: float) -> Float32s:
        """The layer's output in INT8, for its input, its weights and the range of its input."""
        quantized = fake_quantize(values, self._activation.with_scale(scale_of(amax)))
        return self.run(quantized, self._quantizer.weights(self._weights, weights))


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


#: Called with a segment, and with its inputs and outputs in the float network and in the quantized network.
Watch = Callable[[Segment, Tensors, Tensors], None]


@dataclass(frozen=True)
class Propagated:
    """The outputs of all variants for one batch.

    Attributes:
        reference: The outputs of the float network.
        quantized: The outputs of the network with every layer in INT8.
        only: Layer name to the outputs of the network with only that layer in INT8.
        without: Layer name to the outputs of the network with every layer except that one in INT8.
    """

    reference: Tensors
    quantized: Tensors
    only: Mapping[str, Tensors]
    without: Mapping[str, Tensors]


def propagate(network: Network, feed: FeedDict, watch: Watch) -> Propagated:
    """Runs the float and the quantized network, and their variants that differ in one layer.

    Segments before the layer that differs are computed once for all variants, and of each variant only the
    tensors that depend on its layer are kept. On average half the network is computed per variant. Where the
    tensors of all variants take too much memory, some variants wait, and the network is run again for them.

    Args:
        network: The model, cut into segments.
        feed: One batch.
        watch: Called after each segment that begins with a layer.

    Returns:
        The outputs of all variants.

    Raises:
        CalibrationDataError: The model fails on the batch.
    """
    states = _State(network, Form.FLOAT, feed), _State(network, Form.INT8, feed)
    floats, quantized = states
    for number, segment in enumerate(network.segments):
        for state in states:
            state.advance(segment)
        if segment.layer is not None:
            watch(segment, floats.tensors, quantized.tensors)
        for state in states:
            state.drop(number)
    only, without = (_all_variants(state, feed) for state in states)
    return Propagated(floats.outputs, quantized.outputs, only, without)


def _all_variants(state: _State, feed: FeedDict) -> dict[str, Tensors]:
    """The outputs of all variants; those for which there was no room are run again, from the start."""
    found, network = state.outputs_of_variants, state.network
    names = [layer.name for layer in network.layers]
    while waiting := [name for name in names if name not in found]:
        again = _State(network, state.form, feed, waiting)
        for number, segment in enumerate(network.segments):
            again.advance(segment)
            again.drop(number)
        found |= again.outputs_of_variants
    return {name: found[name] for name in names}


#: Bytes for the tensors of all variants of a network in one form; a single variant may take more. With
#: less of it, the network itself is run more often.
_ROOM = 512 << 20

#: Bytes of tensors that are made before freed memory is returned to the system. Without that, a network took
#: four times as much as its tensors.
_MADE = 256 << 20


class _State:
    """The tensors of a network in one form, and of its variants with one layer in the other form.

    Args:
        network: The network.
        form: The network's form, ``FLOAT`` or ``INT8``.
        feed: One batch.
        layers: Names of the layers whose variants are run; all where None.

    Attributes:
        network: The network.
        form: Its form.
        tensors: The network's tensors that are still needed, its inputs included.
        variants: Layer name to the tensors that differ in the variant with that layer in the other form; for
            the layers that have run, and for which there was room.
    """

    def __init__(
        self, network: Network, form: Form, feed: FeedDict, layers: Container[str] | None = None
    ) -> None:
        self.network, self.form, self._layers = network, form, layers
        self._other = Form.INT8 if form is Form.FLOAT else Form.FLOAT
        self.tensors: Tensors = dict(feed)
        self.variants: dict[str, Tensors] = {}
        self._made = 0

    @property
    def outputs(self) -> Tensors:
        """The network's outputs, once all segments have run."""
        return _select(self.network.outputs, self.tensors)

    @property
    def outputs_of_variants(self) -> dict[str, Tensors]:
        """Layer name to the outputs of the variant, once all segments have run."""
        outputs = self.network.outputs
        return {name: _select(outputs, self.tensors | own) for name, own in self.variants.items()}

    def advance(self, segment: Segment) -> None:
        """Runs a segment for the network, and for every variant in which its inputs differ."""
        outputs = self._run(segment, self.form, self.tensors)
        changed = self._make_room(segment, outputs)
        for name, own in self.variants.items():
            if changed[name]:
                own |= _select(changed[name], self._run(segment, self.form, self.tensors | own))
        for name in changed.keys() - self.variants.keys():
            self.variants[name] = _select(changed[name], self._run(segment, self._other, self.tensors))
        self.tensors |= outputs

    def _run(self, segment: Segment, form: Form, tensors: Tensors) -> Tensors:
        outputs = segment.run(form, tensors)
        self._made += _size(outputs)
        if self._made > _MADE:
            self._made = 0
            give_back_freed_memory()
        return outputs

    def _changed(self, segment: Segment) -> dict[str, frozenset[str]]:
        """The outputs of a segment that differ in each variant, the one that begins with it included."""
        changed = {
            name: frozenset[str]().union(
                *(segment.dependents[read] for read in segment.inputs if read in own)
            )
            for name, own in self.variants.items()
        }
        layer = segment.layer
        if layer is not None and (self._layers is None or layer.name in self._layers):
            changed[layer.name] = segment.dependents[layer.output]
        return changed

    def _make_room(self, segment: Segment, outputs: Tensors) -> dict[str, frozenset[str]]:
        """Drops the variants, those of the last layers first, whose tensors would take too much memory.

        Returns:
            Layer name to the outputs of the segment that differ, for the variants for which there is room.
        """
        taken, kept = 0, dict[str, frozenset[str]]()
        for name, names in self._changed(segment).items():
            taken += _size(self.variants.get(name, {})) + _size(_select(names, outputs))
            if kept and taken > _ROOM:
                break
            kept[name] = names
        self.variants = {name: own for name, own in self.variants.items() if name in kept}
        return kept

    def drop(self, number: int) -> None:
        """Drops tensors that nothing reads after a segment."""
        for tensors in (self.tensors, *self.variants.values()):
            for name in self.network.last_read_by(number):
                tensors.pop(name, None)


def _size(tensors: NamedArrays) -> int:
    return sum(array.nbytes for array in tensors.values())


def _select(names: Container[str], tensors: NamedArrays) -> Tensors:
    return {name: array for name, array in tensors.items() if name in names}
