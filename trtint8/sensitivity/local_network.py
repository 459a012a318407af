"""The float and the quantized network in one session, with the errors at every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph_writer import static_shape
from trtint8.models.kinds import may_be_float
from trtint8.models.session import open_graph_model
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.simulation.layers import Form, Layer, Quantizer
from trtint8.simulation.networks import BesideFloat, InnerReadError
from trtint8.simulation.segments import Network, Tensors


@dataclass(frozen=True)
class LayerErrors:
    """Sums of squares at a layer, over one batch.

    Attributes:
        signal: Of the layer's output in float.
        weights: Of its error with the layer's weights quantized; None without weights.
        activations: Of its error with the layer's activations quantized; None where none is.
        passing: Of what leaves the layer and the operators up to the next layer, in the float network.
        noise: Of its error in the network with every layer in INT8.
        channels: The largest magnitude of each channel of the layer's first activation, float64 of shape
            (channels,); None where it has no channels.
    """

    signal: float
    weights: float | None
    activations: float | None
    passing: float
    noise: float
    channels: NDArray[np.float64] | None


class LocalNetwork:
    """Measures the errors at every layer.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        quantizer: How the model's tensors are quantized.
        network: The same model cut at its layers: says which tensors leave each of them.
        threads: Threads per operator; ONNX Runtime's choice where None.

    Raises:
        NoGradientError: A layer's output is read by a graph inside a node.
        ModelError: ONNX Runtime refuses the network.
    """

    @pause_garbage_collection()
    def __init__(
        self, graph_model: ir.Model, quantizer: Quantizer, network: Network, *, threads: int | None = None
    ) -> None:
        beside = self._beside = BesideFloat(graph_model, quantizer)
        self._layers, self._writer = beside.layers, beside.writer
        values = {output.name: output for node in beside.nodes for output in node.outputs}
        self._names = [output.name or "" for output in beside.model.graph.outputs]
        try:
            in_int8 = beside.append_int8()
        except InnerReadError as error:
            raise NoGradientError(str(error)) from error
        self._parts: list[tuple[str, str]] = []
        leaving = {
            segment.layer.name: segment.dependents[segment.layer.output]
            for segment in network.segments
            if segment.layer is not None
        }
        for layer in self._layers:
            self._give(layer, "signal", self._power(layer.node.outputs[0]))
            if layer.weights:
                self._give(layer, "weights", self._power(beside.error(layer, Form.WEIGHTS)))
            if layer.activations:
                self._give(layer, "activations", self._power(beside.error(layer, Form.ACTIVATIONS)))
                self._append_channels(layer)
            reached = (name for name in leaving[layer.name] if values[name] in in_int8)
            for name in sorted(name for name in reached if may_be_float(values[name])):
                exact, rounded = map(self._as_float, (values[name], in_int8[values[name]]))
                self._give(layer, "passing", self._power(exact))
                self._give(layer, "noise", self._power(self._writer.op("Sub", exact, rounded)))
        # It is run with a few samples: to optimize it takes longer than it would save.
        self._session = open_graph_model(beside.model, threads=threads, optimize=False, used_up=True)

    def measure(self, feed: FeedDict) -> tuple[Tensors, Mapping[str, LayerErrors]]:
        """Runs the network on a batch.

        Args:
            feed: The batch.

        Returns:
            The float network's outputs by name, and name of the layer to its errors.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch.
        """
        outputs = self._session.run(feed)
        reference = dict(zip(self._names, outputs, strict=False))
        found = outputs[len(reference) :]
        sums: dict[str, dict[str, float]] = {layer.name: {} for layer in self._layers}
        channels: dict[str, NDArray[np.float64]] = {}
        for (name, part), array in zip(self._parts, found, strict=True):
            if part == "channels":
                channels[name] = array.astype(np.float64)
            else:
                sums[name][part] = sums[name].get(part, 0.0) + float(array)
        return reference, {
            name: LayerErrors(
                parts["signal"],
                parts.get("weights"),
                parts.get("activations"),
                parts.get("passing", 0.0),
                parts.get("noise", 0.0),
                channels.get(name),
            )
            for name, parts in sums.items()
        }

    def _append_channels(self, layer: Layer) -> None:
        value = layer.node.inputs[layer.activations[0].index]
        shape = static_shape(value)
        if value is None or shape is None or len(shape) < 2:
            return
        axis = layer.channel_axis(len(shape))
        others = [index for index in range(len(shape)) if index != axis]
        magnitude = self._writer.op("Abs", value)
        self._give(layer, "channels", self._writer.reduced("ReduceMax", magnitude, others, keep=False))

    def _as_float(self, value: ir.Value) -> ir.Value:
        if value.dtype in (None, ir.DataType.FLOAT):
            return value
        return self._writer.op("Cast", value, to=ir.DataType.FLOAT.value)

    def _power(self, value: ir.Value) -> ir.Value:
        return self._writer.op("ReduceSumSquare", value, keepdims=0)

    def _give(self, layer: Layer, part: str, value: ir.Value) -> None:
        self._beside.give(value)
        self._parts.append((layer.name, part))
