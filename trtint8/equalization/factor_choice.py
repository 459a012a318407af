"""The factors of a network's channels while they are being chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from trtint8.equalization.following.channel_classes import FIXED, Channels
from trtint8.equalization.following.channels import Change, NetworkChannels, Producer
from trtint8.equalization.following.shapes import Shapes
from trtint8.equalization.forms import Form
from trtint8.equalization.ranges import Observations, observe
from trtint8.equalization.rewriting import changed_constant, changes_by_constant, factors_of
from trtint8.models.graph_constants import constant_input
from trtint8.quantization.placement import Placement
from trtint8.simulation.layers import Layer, find_layers


@dataclass(frozen=True)
class FactorChoice:
    """The factors of a network's channels, and what their choice rests on.

    Attributes:
        model: The float model; not changed.
        placement: The placement for this model.
        method: The calibration method that the model will be calibrated with.
        channels: The channels of the model.
        producers: The producers by the name of their node.
        labels: Tensor name to the channels of its elements, for every tensor that was observed.
        observed: What was measured of these tensors, before any factor is applied.
        nodes: The model's nodes by name.
        changes: The changes of constants, by name of the node and index of its input.
        layers: The weighted nodes that run in INT8, by name.
        copied: For each representative, whether factors other than 1 need a copy of a node.
        factors: The factors of the representatives, float64 of shape (number of channels,). They begin as 1,
            and those that choose write into this array.
    """

    model: ir.Model
    placement: Placement
    method: str
    channels: NetworkChannels
    producers: Mapping[str, Producer]
    labels: Mapping[str, Channels]
    observed: Observations
    nodes: Mapping[str, ir.Node]
    changes: Mapping[tuple[str, int], list[Change]]
    layers: Mapping[str, Layer]
    copied: NDArray[np.bool_]
    factors: NDArray[np.float64]

    @classmethod
    def begin(
        cls,
        model: ir.Model,
        placement: Placement,
        channels: NetworkChannels,
        shapes: Shapes,
        forms: Sequence[Form],
        feeds: Iterable[FeedDict],
        method: str,
    ) -> FactorChoice:
        """Runs the float network, and begins with factors of 1.

        Args:
            model: The float model; not changed.
            placement: The placement for this model.
            channels: The channels of the model.
            shapes: The shapes of the model's tensors.
            forms: The forms of these channels.
            feeds: The samples that factors are chosen with.
            method: The calibration method that the model will be calibrated with.

        Raises:
            CalibrationDataError: The model fails on a batch.
        """
        producers = {producer.node: producer for producer in channels.producers}
        read = {reading.tensor: reading.labels for form in forms for reading in form.readings}
        multiplied = [producers[name] for form in forms if form.products for name in form.producers]
        shared = [name for group in placement.shared for name in group]
        labels = {
            **{name: _labels(name, channels, shapes) for name in shared},
            **{producer.tensor: producer.labels for producer in multiplied},
            **read,
        }
        nodes = {node.name or "": node for node in model.graph}
        quantized = frozenset(placement.quantized_nodes)
        observed = observe(model, labels, read, feeds)
        copied = np.zeros(len(channels.representatives), np.bool_)
        for copy in channels.copies:
            copied[channels.representatives[copy.channels]] = True
        return cls(
            model,
            placement,
            method,
            channels,
            producers,
            labels,
            observed,
            nodes,
            changes_by_constant(channels),
            {layer.name: layer for layer in find_layers(model.graph, placement) if layer.name in quantized},
            copied,
            np.ones(len(channels.representatives)),
        )

    def factors_of(self, labels: Channels) -> NDArray[np.float64]:
        """The factors of channels as they are now, of the shape of ``labels``."""
        return factors_of(self.channels, self.factors, labels)

    def weights_of(self, node: str) -> NDArray[np.float32]:
        """The weights of a layer with the factors as they are now.

        Args:
            node: Name of the layer.
        """
        weights = constant_input(self.nodes[node], 1)
        assert weights is not None, f"'{node}' has constant weights"
        return changed_constant(weights, self.channels, self.factors, self.changes[node, 1])


def _labels(tensor: str, channels: NetworkChannels, shapes: Shapes) -> Channels:
    if tensor in channels.tensors:
        return channels.tensors[tensor]
    return np.full((1,) * len(shapes.shapes.get(tensor, ())), FIXED, np.int64)
