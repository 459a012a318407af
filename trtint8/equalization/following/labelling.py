"""The labels of a network's tensors while its channels are followed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.equalization.following.channel_classes import ChannelClasses, Channels
from trtint8.equalization.following.channels import Change, Producer, Product, Reading
from trtint8.equalization.following.shapes import Shapes
from trtint8.models.graph_constants import is_constant


@dataclass(frozen=True, eq=False)
class Affine:
    """The last nodes of a normalization, which multiply each channel by a factor and add an offset.

    Each reader of the output has channels of its own, because readers that need the output unchanged can be
    separated from the others by a copy of the nodes.

    Attributes:
        nodes: The nodes; each reads the output of the one before.
        constants: The factors and the offsets, as node and index of its input.
        shape: The shape of the factors.
        labels: The index of the factor of each element of the output, as a compact label array.
    """

    nodes: tuple[ir.Node, ...]
    constants: tuple[tuple[ir.Node, int], ...]
    shape: tuple[int, ...]
    labels: Channels

    @property
    def output(self) -> ir.Value:
        """The value that the last node computes."""
        return self.nodes[-1].outputs[0]


class Labelling:
    """Labels of tensors, and what was found about their channels so far.

    Args:
        model: The model whose channels are followed.
        shapes: The shapes of the model's tensors.

    Attributes:
        graph: The model's main graph.
        opset: The opset of the model.
        integers: Tensor name to value, for integers that are computed from shapes and constants.
        classes: The channels, in classes that share one factor.
        labels: Value to its labels.
        affines: Output of each normalization to its last nodes.
        affine_uses: Output of a normalization and a node that reads it, to the labels that this node reads.
        absorbed: Nodes that belong to a normalization and need no rule of their own.
        producers: The producers, by their output.
        readings: The nodes whose weights read channels.
        products: The products in which factors cancel.
        changes: The constants to change.
        skipped: Name of each node whose output channels keep their values, to the reason in words.
    """

    def __init__(self, model: ir.Model, shapes: Shapes) -> None:
        self.graph = model.graph
        self.opset = model.opset_imports.get("", 0)
        self.integers = shapes.integers
        self.classes = ChannelClasses()
        self.labels: dict[ir.Value, Channels] = {}
        self.affines: dict[ir.Value, Affine] = {}
        self.affine_uses: dict[tuple[ir.Value, ir.Node], Channels] = {}
        self.absorbed: set[ir.Node] = set()
        self.producers: dict[ir.Value, Producer] = {}
        self.readings: list[Reading] = []
        self.products: list[Product] = []
        self.changes: list[Change] = []
        self.skipped: dict[str, str] = {}
        self._shapes = shapes.shapes
        self._owners = [-1]

    def shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape of a value for the feed that shapes were measured with; None where it is not known."""
        if value is None:
            return None
        if is_constant(value):
            return tuple(value.shape.numpy()) if value.shape is not None else None
        return self._shapes.get(value.name or "")

    def rank(self, value: ir.Value) -> int:
        """Number of axes of a value."""
        return len(self.shape(value) or ())

    def read(self, node: ir.Node, index: int) -> Channels | None:
        """The labels of an input; None where all its channels have the factor 1."""
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return None
        if value in self.affines:
            labels = self.affine_uses.get((value, node))
            if labels is None:
                affine = self.affines[value]
                count = int(np.prod(affine.shape))
                labels = self.new_channels(affine.nodes[-1], count)[affine.labels]
                self.affine_uses[value, node] = labels
        else:
            labels = self.labels.get(value)
        return None if labels is None or self.classes.are_fixed(labels).all() else labels

    def write(self, value: ir.Value, labels: Channels) -> None:
        """Gives a value its labels."""
        self.labels[value] = labels
        if value.is_graph_output():
            self.classes.fix(labels, f"'{value.name}' is an output of the model")
        elif any(user.graph is not self.graph for user, _ in value.uses()):
            self.classes.fix(labels, f"a subgraph reads '{value.name}'")

    def new_channels(self, owner: ir.Node, count: int) -> Channels:
        """Adds channels that a node produces."""
        self._owners += [id(owner)] * count
        return self.classes.add(count)

    def owners_of(self, labels: Channels) -> set[int]:
        """Which nodes produce channels, as numbers; -1 for elements without a channel."""
        return {self._owners[channel] for channel in np.unique(labels).tolist()}

    def add_affine(self, affine: Affine) -> None:
        """Makes the output of a normalization one whose readers have channels of their own."""
        self.affines[affine.output] = affine

    def fix(self, node: ir.Node, index: int, reason: str) -> None:
        """Gives the channels of a node's input the factor 1."""
        labels = self.read(node, index)
        if labels is not None:
            self.classes.fix(labels, reason)

    def stop(self, node: ir.Node) -> None:
        """Fixes the factors of everything that a node reads."""
        operator = node.op_type
        for index in range(len(node.inputs)):
            self.fix(node, index, f"{operator}(s x) is not s {operator}(x) ('{node.name}')")

    def read_channels(self) -> NDArray[np.bool_]:
        """For every channel, whether weights or products read it, of shape (channels,)."""
        found = np.zeros(len(self.classes), np.bool_)
        for reading in self.readings:
            found[reading.channels] = True
        for product in self.products:
            found[product.first] = found[product.second] = True
        return found

    def note_skipped(self, node: str, labels: Channels) -> None:
        """Notes why all output channels of a node keep their values, where they do."""
        if self.classes.are_fixed(labels).all():
            reason = self.classes.reason(int(labels.flat[0]))
            self.skipped.setdefault(node, reason)
