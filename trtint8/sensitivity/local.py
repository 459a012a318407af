"""The error at each layer: of its weights and its activations alone, and what has accumulated up to it.

The float and the quantized network in one session, with the errors at every layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.histograms.rules import decibels
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import may_be_float
from trtint8.models.graph_writer import Term, static_shape
from trtint8.models.session import open_graph_model
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.simulation.networks import BesideFloat, Form, InnerReadError, Layer, Quantizer
from trtint8.simulation.segments import Network, Segment, Tensors, Watch
from trtint8.validation.fidelity import inner_product

#: Sums of squares that are kept for each layer. Of the layer's own output: the signal, the noise of its
#: weights, the noise of its activations. Of its segment's outputs: the signal, the network's noise.
_COLUMNS = 5


class LocalMeter:
    """Adds up errors at every layer. A meter measures one batch, and meters of several batches are merged.

    Args:
        names: Names of the layers.

    Attributes:
        samples: Number of samples that layers were run by themselves with.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.samples = 0
        self._sums = {name: np.zeros(_COLUMNS) for name in names}
        self._channels: dict[str, NDArray[np.float64]] = {}
        self._forms: dict[str, list[bool]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(self._sums)

    def add(self, samples: int, errors: Mapping[str, LayerErrors]) -> None:
        """Adds what was measured in one run.

        Args:
            samples: Number of samples in the run.
            errors: Name of the layer to its errors.
        """
        self.samples += samples
        for name, found in errors.items():
            self._sums[name] += (
                found.signal,
                found.weights or 0.0,
                found.activations or 0.0,
                found.passing,
                found.noise,
            )
            self._forms[name] = [found.weights is not None, found.activations is not None]
            if found.channels is not None:
                self._widen_channels(name, found.channels)

    def watch(self, samples: int, *, alone: bool) -> Watch:
        """Makes the ``watch`` of :func:`trtint8.simulation.segments.propagate` that measures one batch.

        Args:
            samples: Number of samples in the batch.
            alone: Whether to run the layers by themselves as well.
        """
        self.samples += samples if alone else 0

        def measure(segment: Segment, floats: Tensors, quantized: Tensors) -> None:
            assert segment.layer is not None
            sums = self._sums[segment.layer.name]
            for name in segment.dependents[segment.layer.output]:
                sums[3:] += _powers(floats[name], quantized[name])
            if alone:
                self._measure_alone(segment, floats)

        return measure

    def _measure_alone(self, segment: Segment, floats: Tensors) -> None:
        layer = segment.layer
        assert layer is not None
        sums = self._sums[layer.name]
        exact = segment.run_layer(Form.FLOAT, floats)
        sums[0] += _powers(exact, exact)[0]
        if layer.weights:
            sums[1] += _powers(exact, segment.run_layer(Form.WEIGHTS, floats))[1]
        if layer.activations:
            sums[2] += _powers(exact, segment.run_layer(Form.ACTIVATIONS, floats))[1]
        self._forms[layer.name] = [bool(layer.weights), bool(layer.activations)]
        if layer.activations:
            values = floats[layer.activations[0].tensor]
            self._measure_channels(layer, values)

    def _measure_channels(self, layer: Layer, values: NDArray[Any]) -> None:
        if values.ndim < 2:
            return
        axis = layer.channel_axis(values.ndim)
        others = tuple(i for i in range(values.ndim) if i != axis)
        self._channels[layer.name] = np.abs(values).max(axis=others).astype(np.float64)

    def merge(self, other: LocalMeter) -> None:
        """Adds the sums of another meter of the same layers, for later batches.

        If each batch has a meter of its own and these are merged in the order of the data, the sums are the
        same to the last bit wherever the batches were run.
        """
        self.samples += other.samples
        for name, sums in other._sums.items():
            self._sums[name] += sums
        for name, largest in other._channels.items():
            self._widen_channels(name, largest)
        self._forms |= other._forms

    def _widen_channels(self, name: str, largest: NDArray[np.float64]) -> None:
        before = self._channels.get(name)
        # Where a product sums over tokens, there may be another number of them in every batch.
        if before is not None and len(before) == len(largest):
            largest = np.maximum(before, largest)
        self._channels[name] = largest

    def levels(self, name: str) -> tuple[float | None, float | None, float | None]:
        """Three levels at a layer, in decibels; None where there is nothing to measure.

        Args:
            name: The name of the layer.

        Returns:
            The SQNR of the layer's own output with only its weights quantized, the same with only its
            activations quantized, and the SQNR of its segment's outputs in the quantized network.
        """
        signal, weights, activations, passing, noise = self._sums[name]
        has_weights, has_activations = self._forms.get(name, (False, False))
        return (
            decibels(signal, weights) if has_weights else None,
            decibels(signal, activations) if has_activations else None,
            decibels(passing, noise) if passing else None,
        )

    def channels(self, name: str) -> NDArray[np.float64] | None:
        """The largest magnitude of each channel of a layer's first activation.

        Args:
            name: The name of the layer.

        Returns:
            float64, shape (channels,); None where it was not measured.
        """
        return self._channels.get(name)

    def state(self) -> dict[str, Any]:
        """A form that JSON can hold; see :meth:`from_state`."""
        return {
            "samples": self.samples,
            "sums": {name: sums.tolist() for name, sums in self._sums.items()},
            "channels": {name: largest.tolist() for name, largest in self._channels.items()},
            "forms": self._forms,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> LocalMeter:
        """The inverse of :meth:`state`."""
        meter = cls(())
        meter.samples = state["samples"]
        meter._sums = {name: np.array(sums) for name, sums in state["sums"].items()}
        meter._channels = {name: np.array(largest) for name, largest in state["channels"].items()}
        meter._forms = state["forms"]
        return meter


def _powers(exact: NDArray[Any], rounded: NDArray[Any]) -> tuple[float, float]:
    """The sum of squares of a tensor, and that of its error; zeros where its shape depends on the values."""
    if exact.shape != rounded.shape:
        return 0.0, 0.0
    wanted = exact.astype(np.float64)
    error = wanted - rounded.astype(np.float64)
    return inner_product(wanted, wanted), inner_product(error, error)


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
            self._give(layer, "signal", _power(Term(self._writer, layer.node.outputs[0])))
            if layer.weights:
                self._give(layer, "weights", _power(beside.error(layer, Form.WEIGHTS)))
            if layer.activations:
                self._give(layer, "activations", _power(beside.error(layer, Form.ACTIVATIONS)))
                self._append_channels(layer)
            reached = (name for name in leaving[layer.name] if values[name] in in_int8)
            for name in sorted(name for name in reached if may_be_float(values[name])):
                exact, rounded = map(self._as_float, (values[name], in_int8[values[name]]))
                if beside.keeps_size(values[name]):
                    self._give(layer, "passing", _power(exact))
                    self._give(layer, "noise", _power(exact - rounded))
                else:  # INT8 may find another number of values
                    self._give(layer, "exact", exact.op("Identity"))
                    self._give(layer, "rounded", rounded.op("Identity"))
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

        def add(name: str, part: str, power: float) -> None:
            sums[name][part] = sums[name].get(part, 0.0) + power

        exact: NDArray[Any] = np.empty(0)
        for (name, part), array in zip(self._parts, found, strict=True):
            if part == "channels":
                channels[name] = array.astype(np.float64)
            elif part == "exact":
                exact = array
            elif part == "rounded":
                signal, noise = _powers(exact, array)
                add(name, "passing", signal)
                add(name, "noise", noise)
            else:
                add(name, part, float(array))
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
        magnitude = Term(self._writer, value).op("Abs")
        self._give(layer, "channels", magnitude.reduced("ReduceMax", others, keep=False))

    def _as_float(self, value: ir.Value) -> Term:
        term = Term(self._writer, value)
        return term if value.dtype in (None, ir.DataType.FLOAT) else term.cast(ir.DataType.FLOAT)

    def _give(self, layer: Layer, part: str, term: Term) -> None:
        self._beside.give(term)
        self._parts.append((layer.name, part))


def _power(term: Term) -> Term:
    return term.op("ReduceSumSquare", keepdims=0)
