"""The error at each layer: of its weights and its activations alone, and what has accumulated up to it.

The float and the quantized network in one session, with the errors at every layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Array, FeedDict, Floats, batch_rows
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
#: weights, the noise of its activations. Of what leaves it and the operators up to the next layer: the signal
#: in the float network, and the noise in the network with every layer in INT8.
_SUMS = ("signal", "weights", "activations", "passing", "noise")


class LocalMeter:
    """Adds up errors at every layer. A meter measures one batch, and meters of several batches are merged.

    Args:
        names: Names of the layers.
        samples: Number of samples that layers were run by themselves with.
        sums: Name of the layer to its sums so far.
        channels: Name of the layer to the largest magnitude of each channel of its first activation.

    Attributes:
        samples: Number of samples that layers were run by themselves with.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        samples: int = 0,
        sums: Mapping[str, Sequence[float]] | None = None,
        channels: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.samples = samples
        self._sums = {name: np.zeros(len(_SUMS)) for name in names}
        self._sums |= {name: np.array(powers) for name, powers in (sums or {}).items()}
        self._channels = {name: np.array(largest) for name, largest in (channels or {}).items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(self._sums)

    def add(self, name: str, **powers: float) -> None:
        """Adds sums of squares of a layer, by their names."""
        for kind, power in powers.items():
            self._sums[name][_SUMS.index(kind)] += power

    def add_output(self, name: str, exact: Array, rounded: Array) -> None:
        """Adds something that leaves a layer, in the float network and in INT8."""
        passing, noise = _powers(exact, rounded)
        self.add(name, passing=passing, noise=noise)

    def watch(self, samples: int, *, alone: bool) -> Watch:
        """Makes the ``watch`` of :func:`trtint8.simulation.segments.propagate` that measures one batch.

        Args:
            samples: Number of samples in the batch.
            alone: Whether to run the layers by themselves as well.
        """
        self.samples += samples if alone else 0

        def measure(segment: Segment, floats: Tensors, quantized: Tensors) -> None:
            assert segment.layer is not None
            for name in segment.dependents[segment.layer.output]:
                self.add_output(segment.layer.name, floats[name], quantized[name])
            if alone:
                self._measure_alone(segment, segment.layer, floats)

        return measure

    def _measure_alone(self, segment: Segment, layer: Layer, floats: Tensors) -> None:
        exact = segment.run_layer(Form.FLOAT, floats)
        self.add(layer.name, signal=_powers(exact, exact)[0])
        if layer.weights:
            self.add(layer.name, weights=_powers(exact, segment.run_layer(Form.WEIGHTS, floats))[1])
        if layer.activations:
            rounded = segment.run_layer(Form.ACTIVATIONS, floats)
            self.add(layer.name, activations=_powers(exact, rounded)[1])
            values = floats[layer.activations[0].tensor]
            if values.ndim > 1:
                self.widen(layer.name, np.abs(values).max(axis=_other_axes(layer, values.ndim)))

    def merge(self, other: LocalMeter) -> None:
        """Adds the sums of another meter of the same layers, for later batches.

        If each batch has a meter of its own and these are merged in the order of the data, the sums are the
        same to the last bit wherever the batches were run.
        """
        self.samples += other.samples
        for name, sums in other._sums.items():
            self._sums[name] += sums
        for name, largest in other._channels.items():
            self.widen(name, largest)

    def widen(self, name: str, largest: Array) -> None:
        """Adds the largest magnitude of each channel of a layer's first activation, shape (channels,)."""
        before, largest = self._channels.get(name), largest.astype(np.float64)
        # Where a product sums over tokens, there may be another number of them in every batch.
        if before is not None and len(before) == len(largest):
            largest = np.maximum(before, largest)
        self._channels[name] = largest

    def levels(self, name: str) -> tuple[float | None, float | None, float | None]:
        """Three levels at a layer, in decibels; None where nothing was measured.

        Args:
            name: The name of the layer.

        Returns:
            The SQNR of the layer's own output with only its weights quantized, the same with only its
            activations quantized, and the SQNR of its segment's outputs in the quantized network.
        """
        signal, weights, activations, passing, noise = self._sums[name]
        return (
            decibels(signal, weights) if self.samples else None,
            decibels(signal, activations) if self.samples else None,
            decibels(passing, noise) if passing else None,
        )

    def channels(self, name: str) -> Floats | None:
        """The largest magnitude of each channel of a layer's first activation.

        Args:
            name: The name of the layer.

        Returns:
            float64, shape (channels,); None where it was not measured.
        """
        return self._channels.get(name)

    def state(self) -> dict[str, Any]:
        """The arguments of another meter with the same sums, in a form that JSON can hold."""
        return {
            "samples": self.samples,
            "sums": {name: sums.tolist() for name, sums in self._sums.items()},
            "channels": {name: largest.tolist() for name, largest in self._channels.items()},
        }


def _other_axes(layer: Layer, rank: int) -> tuple[int, ...]:
    """The axes of a layer's first activation, without that of its channels."""
    return tuple(axis for axis in range(rank) if axis != layer.channel_axis(rank))


def _powers(exact: Array, rounded: Array) -> tuple[float, float]:
    """The sum of squares of a tensor, and that of its error; zeros where its shape depends on the values."""
    if exact.shape != rounded.shape:
        return 0.0, 0.0
    wanted = exact.astype(np.float64)
    error = wanted - rounded.astype(np.float64)
    return inner_product(wanted, wanted), inner_product(error, error)


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
        self._kinds: list[tuple[str, str]] = []
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

    def measure(self, feed: FeedDict) -> tuple[Tensors, LocalMeter]:
        """Runs the network on a batch.

        Args:
            feed: The batch.

        Returns:
            The float network's outputs by name, and the errors at every layer.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch.
        """
        outputs = self._session.run(feed)
        reference = dict(zip(self._names, outputs, strict=False))
        meter = LocalMeter((layer.name for layer in self._layers), batch_rows(feed) or 1)
        exact: Array = np.empty(0)
        for (name, kind), array in zip(self._kinds, outputs[len(reference) :], strict=True):
            if kind == "channels":
                meter.widen(name, array)
            elif kind == "exact":
                exact = array
            elif kind == "rounded":
                meter.add_output(name, exact, array)
            else:
                meter.add(name, **{kind: float(array)})
        return reference, meter

    def _append_channels(self, layer: Layer) -> None:
        value = layer.node.inputs[layer.activations[0].index]
        shape = static_shape(value)
        if value is None or shape is None or len(shape) < 2:
            return
        magnitude = Term(self._writer, value).op("Abs")
        largest = magnitude.reduced("ReduceMax", _other_axes(layer, len(shape)), keep=False)
        self._give(layer, "channels", largest)

    def _as_float(self, value: ir.Value) -> Term:
        term = Term(self._writer, value)
        return term if value.dtype in (None, ir.DataType.FLOAT) else term.cast(ir.DataType.FLOAT)

    def _give(self, layer: Layer, kind: str, term: Term) -> None:
        self._beside.give(term)
        self._kinds.append((layer.name, kind))


def _power(term: Term) -> Term:
    return term.op("ReduceSumSquare", keepdims=0)
