"""Follows channels through a network, from the constants that produce them to the weights that read them.

Every producer's output channels get numbers. A label array says for each element of a tensor which channel
it belongs to. Operators that move elements are executed on the labels; the other operators pass labels on,
tie the factors of channels, or fix them at 1. So only factors remain that leave the network's function as it
is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.equalization.channel_classes import FIXED, ChannelClasses, Channels
from trtint8.equalization.channels import Change, Copy, NetworkChannels, Producer, Product, Reading
from trtint8.equalization.labels import along, compact, moved, placed, with_rank
from trtint8.equalization.operators import (
    AFFINE,
    AFFINE_ON_AXIS_1,
    ELEMENTWISE,
    MOVING,
    REDUCING,
    is_spatial,
    reduced_axes,
)
from trtint8.equalization.shapes import Shapes
from trtint8.equalization.weights import (
    channel_numbers,
    has_constant_bias,
    is_convolution,
    is_linear,
    read_axis,
)
from trtint8.models.graph_constants import constant_input, is_constant, read_constant, unused_name

logger = logging.getLogger(__name__)

#: Operators that read the shape of a tensor and none of its values.
_BLIND = frozenset({"Shape", "Size"})


def follow_channels(model: ir.Model, shapes: Shapes) -> NetworkChannels:
    """Finds all channels of a network that factors can be applied to.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        shapes: The shapes of the model's tensors.
    """
    follower = _Follower(model, shapes)
    for node in model.graph:
        follower.follow(node)
    return follower.result()


@dataclass(frozen=True, eq=False)
class _Affine:
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
        return self.nodes[-1].outputs[0]


class _Follower:
    def __init__(self, model: ir.Model, shapes: Shapes) -> None:
        self._graph, self._shapes = model.graph, shapes
        self._opset = model.opset_imports.get("", 0)
        self._classes = ChannelClasses()
        self._owners = [-1]
        self._labels: dict[ir.Value, Channels] = {}
        self._affines: dict[ir.Value, _Affine] = {}
        self._affine_uses: dict[tuple[ir.Value, ir.Node], Channels] = {}
        self._affine_ends: set[ir.Node] = set()
        self._producers: dict[ir.Value, Producer] = {}
        self._readings: list[Reading] = []
        self._products: list[Product] = []
        self._changes: list[Change] = []
        self._skipped: dict[str, str] = {}

    def follow(self, node: ir.Node) -> None:
        """Passes the labels of a node's inputs on to its outputs; nodes come in graph order."""
        if node in self._affine_ends:
            return
        rule = self._rule(node)
        if any(self._shape(value) is None for value in (*node.inputs, node.outputs[0]) if value is not None):
            rule = self._stop
        rule(node)

    def _rule(self, node: ir.Node) -> Callable[[ir.Node], None]:
        operator = node.op_type
        if operator in _BLIND:
            return lambda _node: None
        if operator in AFFINE:
            return self._normalize
        if node.domain != "":
            return self._stop
        if is_linear(node):
            return self._multiply_by_weights
        if operator in MOVING:
            return self._move
        if operator in ELEMENTWISE or is_spatial(node):
            return self._pass_on
        if operator in REDUCING:
            return self._reduce
        rules = {"MatMul": self._multiply_matrices, "Mul": self._multiply, "Div": self._divide}
        return rules.get(operator, self._add if operator in ("Add", "Sub") else self._stop)

    def result(self) -> NetworkChannels:
        """What was found, after all nodes were followed."""
        copies = [copy for affine in self._affines.values() for copy in self._finish(affine)]
        for producer in self._producers.values():
            self._note_skipped(producer.node, producer.labels)
        representatives, powers = self._classes.representatives()
        return NetworkChannels(
            representatives,
            powers,
            tuple(self._producers.values()),
            tuple(self._readings),
            tuple(self._products),
            tuple(self._changes),
            tuple(copies),
            {value.name: labels for value, labels in self._labels.items() if value.name},
            self._skipped,
        )

    # What every rule uses.

    def _shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        if is_constant(value):
            return tuple(value.shape.numpy()) if value.shape is not None else None
        return self._shapes.shapes.get(value.name or "")

    def _rank(self, value: ir.Value) -> int:
        return len(self._shape(value) or ())

    def _read(self, node: ir.Node, index: int) -> Channels | None:
        """The labels of an input; None where all its channels have the factor 1."""
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return None
        if value in self._affines:
            labels = self._affine_uses.get((value, node))
            if labels is None:
                affine = self._affines[value]
                count = int(np.prod(affine.shape))
                labels = self._new_channels(affine.nodes[-1], count)[affine.labels]
                self._affine_uses[value, node] = labels
        else:
            labels = self._labels.get(value)
        return None if labels is None or self._classes.are_fixed(labels).all() else labels

    def _write(self, value: ir.Value, labels: Channels | None) -> None:
        if labels is None:
            return
        self._labels[value] = labels
        if value.is_graph_output():
            self._classes.fix(labels, f"'{value.name}' is an output of the model")
        elif any(user.graph is not self._graph for user, _ in value.uses()):
            self._classes.fix(labels, f"a subgraph reads '{value.name}'")

    def _new_channels(self, owner: ir.Node, count: int) -> Channels:
        self._owners += [id(owner)] * count
        return self._classes.add(count)

    def _owners_of(self, labels: Channels) -> set[int]:
        return {self._owners[channel] for channel in np.unique(labels).tolist()}

    def _fix(self, node: ir.Node, index: int, reason: str) -> None:
        labels = self._read(node, index)
        if labels is not None:
            self._classes.fix(labels, reason)

    def _stop(self, node: ir.Node) -> None:
        """Fixes the factors of everything that a node reads."""
        operator = node.op_type
        for index in range(len(node.inputs)):
            self._fix(node, index, f"{operator}(s x) is not s {operator}(x) ('{node.name}')")

    # One rule per kind of operator.

    def _multiply_by_weights(self, node: ir.Node) -> None:
        weights = self._shape(node.inputs[1])
        assert weights is not None
        outputs, inputs = channel_numbers(node, weights)
        labels = self._read(node, 0)
        if labels is not None:
            axis = read_axis(node)
            channels = along(labels, axis, int(inputs.max()) + 1)
            if channels is None:
                self._classes.fix(labels, f"'{node.name}' sums over another axis than that of the channels")
            else:
                value = node.inputs[0]
                assert value is not None
                read = placed(channels, labels.ndim, axis)
                self._readings.append(Reading(node.name or "", value.name or "", read))
                self._changes.append(Change(node.name or "", 1, channels[inputs], 1))
        if not has_constant_bias(node):
            self._fix(node, 2, f"it is the bias of '{node.name}'")
            return
        output = node.outputs[0]
        channels = self._new_channels(node, int(outputs.max()) + 1)
        self._changes.append(Change(node.name or "", 1, channels[outputs], -1))
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            self._changes.append(Change(node.name or "", 2, channels, -1))
        labels = placed(channels, self._rank(output), 1 if is_convolution(node) else -1)
        self._producers[output] = Producer(node.name or "", output.name or "", labels)
        self._write(output, labels)

    def _normalize(self, node: ir.Node) -> None:
        self._stop(node)
        indices = [index for index in AFFINE[node.op_type] if index < len(node.inputs)]
        constants = [constant_input(node, index) for index in indices]
        is_read = any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        trains = bool(node.attributes.get_int("training_mode", 0))
        if constants[0] is None or any(one is None for one in constants) or trains:
            return
        if any(one is not None and one.dtype != np.float32 for one in constants):
            return
        if is_read and node.op_type in AFFINE_ON_AXIS_1:
            return
        rank, shape = self._rank(node.outputs[0]), constants[0].shape
        numbers = np.arange(constants[0].size).reshape(shape)
        on_axis_1 = node.op_type in AFFINE_ON_AXIS_1
        labels = placed(numbers, rank, 1) if on_axis_1 else with_rank(numbers, rank)
        self._add_affine(_Affine((node,), tuple((node, index) for index in indices), shape, labels))

    def _add_affine(self, affine: _Affine) -> None:
        self._affines[affine.output] = affine

    def _pass_on(self, node: ir.Node) -> None:
        labels = self._read(node, 0)
        for index in range(1, len(node.inputs)):
            self._fix(node, index, f"'{node.name}' multiplies other values by them")
        if labels is None:
            return
        if node.op_type not in ELEMENTWISE:
            in_shape, out_shape = self._shape(node.inputs[0]), self._shape(node.outputs[0])
            assert in_shape is not None and out_shape is not None
            is_read = any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
            if any(size != 1 for size in labels.shape[2:]) or in_shape[:2] != out_shape[:2] or is_read:
                self._classes.fix(labels, f"'{node.name}' ({node.op_type}) mixes their channels")
                return
        self._write(node.outputs[0], labels)

    def _reduce(self, node: ir.Node) -> None:
        labels = self._read(node, 0)
        if labels is None:
            return
        axes = reduced_axes(node, labels.ndim)
        if axes is None or any(labels.shape[axis] != 1 for axis in axes):
            self._classes.fix(labels, f"'{node.name}' ({node.op_type}) mixes their channels")
            return
        keeps = bool(node.attributes.get_int("keepdims", 1))
        self._write(node.outputs[0], labels if keeps else np.squeeze(labels, axes))

    def _move(self, node: ir.Node) -> None:
        count = len(node.inputs) if node.op_type == "Concat" else 1
        read = {index: self._read(node, index) for index in range(count)}
        if all(labels is None for labels in read.values()):
            return
        full: dict[int, Channels] = {}
        others: dict[int, NDArray[Any]] = {}
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if index < count:
                labels = read[index]
                shape = self._shape(value) or ()
                full[index] = np.broadcast_to(np.int64(FIXED) if labels is None else labels, shape)
            else:
                constant = read_constant(value)
                known = self._shapes.integers.get(value.name or "") if constant is None else constant
                others |= {} if known is None else {index: known}
        try:
            if len(full) + len(others) < sum(value is not None for value in node.inputs):
                raise ValueError("an index or a shape depends on the values of the feed")
            outputs = moved(node, self._opset, full, others)
        except Exception:
            logger.debug("cannot follow channels through '%s'", node.name, exc_info=True)
            for index in range(count):
                self._fix(node, index, f"where '{node.name}' ({node.op_type}) moves them is not constant")
            return
        for value, labels in zip(node.outputs, outputs, strict=True):
            self._write(value, labels)

    def _add(self, node: ir.Node) -> None:
        first, second = self._read(node, 0), self._read(node, 1)
        rank = self._rank(node.outputs[0])
        if first is not None and second is not None:
            first, second = with_rank(first, rank), with_rank(second, rank)
            reason = f"'{node.name}' adds channels of different factors"
            if self._owners_of(first) == self._owners_of(second):
                self._classes.tie(first, second, 1, reason)
                self._write(node.outputs[0], compact(np.broadcast_arrays(first, second)[0]))
            else:
                self._classes.fix(first, reason)
                self._classes.fix(second, reason)
            return
        index = 0 if first is not None else 1
        labels = first if first is not None else second
        if labels is None:
            return
        if not self._divides_constant(node, 1 - index, index, labels):
            self._classes.fix(labels, f"'{node.name}' adds values to them that keep theirs")
            return
        source, output = node.inputs[index], node.outputs[0]
        assert source is not None
        labels = with_rank(labels, rank)
        producer = self._producers.get(source)
        if producer is not None and producer.tensor == source.name and len(source.uses()) == 1:
            # The channels are what they are with the bias.
            self._producers[source] = Producer(producer.node, output.name or "", labels)
        self._write(output, labels)

    def _divides_constant(self, node: ir.Node, index: int, other: int, labels: Channels) -> bool:
        """Whether a constant that is added to channels can be divided with them; if so, notes the change."""
        constant, value = constant_input(node, index), node.inputs[other]
        if constant is None or value is None or constant.dtype != np.float32:
            return False
        rank = max(constant.ndim, labels.ndim)
        sizes = (1,) * (rank - constant.ndim) + constant.shape
        static = value.shape
        for axis in range(-labels.ndim, 0):
            if labels.shape[axis] == 1 or sizes[axis] == labels.shape[axis]:
                continue
            # The constant becomes larger, which is right only where the channels' axis has one size.
            if static is None or not isinstance(static[axis], int):
                return False
        while labels.ndim > constant.ndim and labels.shape[0] == 1:
            labels = labels[0]
        self._changes.append(Change(node.name or "", index, labels, -1))
        return True

    def _multiply(self, node: ir.Node) -> None:
        if self._read(node, 0) is not None and self._read(node, 1) is not None:
            self._fix(node, 1, f"'{node.name}' multiplies channels by them that have factors of their own")
        first, second = self._read(node, 0), self._read(node, 1)
        labels = first if first is not None else second
        if labels is not None:
            self._write(node.outputs[0], with_rank(labels, self._rank(node.outputs[0])))
            return
        for index in (0, 1):
            constant = constant_input(node, index)
            if constant is not None and constant.size > 1 and constant.dtype == np.float32:
                self._scale(node, index, constant.shape)
                return

    def _scale(self, node: ir.Node, index: int, shape: tuple[int, ...]) -> None:
        """A product with a constant factor per channel, and the sum with a constant offset after it."""
        nodes, constants = [node], [(node, index)]
        uses = tuple(node.outputs[0].uses())
        if len(uses) == 1 and not node.outputs[0].is_graph_output():
            reader, other = uses[0]
            offset = constant_input(reader, 1 - other) if len(reader.inputs) == 2 else None
            is_sum = reader.op_type == "Add" and reader.domain == "" and reader.graph is self._graph
            # An offset with more elements than factors would need a channel for each of its elements.
            if is_sum and offset is not None and offset.dtype == np.float32 and offset.ndim <= len(shape):
                nodes.append(reader)
                constants.append((reader, 1 - other))
                self._affine_ends.add(reader)
        numbers = np.arange(int(np.prod(shape))).reshape(shape)
        labels = with_rank(numbers, max(len(shape), self._rank(nodes[-1].outputs[0])))
        self._add_affine(_Affine(tuple(nodes), tuple(constants), shape, labels))

    def _divide(self, node: ir.Node) -> None:
        self._fix(node, 1, f"'{node.name}' divides by them")
        labels = self._read(node, 0)
        if labels is not None:
            self._write(node.outputs[0], with_rank(labels, self._rank(node.outputs[0])))

    def _multiply_matrices(self, node: ir.Node) -> None:
        first, second = self._read(node, 0), self._read(node, 1)
        output, rank = node.outputs[0], self._rank(node.outputs[0])
        if any(self._rank(value) < 2 for value in node.inputs if value is not None):
            self._stop(node)
        elif first is not None and second is not None:
            self._pair(node, first, second)
        elif first is not None or second is not None:
            labels, contracted = (first, -1) if first is not None else (second, -2)
            assert labels is not None
            if labels.shape[contracted] != 1:
                self._classes.fix(labels, f"'{node.name}' sums over them without weights")
            else:
                self._write(output, with_rank(labels, rank))

    def _pair(self, node: ir.Node, first: Channels, second: Channels) -> None:
        """Ties the channels of both sides, whose factors cancel in the product."""
        reason = f"factors do not cancel in '{node.name}'"
        if first.shape[-2] != 1 or second.shape[-1] != 1:
            self._classes.fix(first, reason)
            self._classes.fix(second, reason)
            return
        self._classes.tie(first.swapaxes(-1, -2), second, -1, reason)
        self._products.append(Product(node.name or "", np.unique(first), np.unique(second)))

    # What becomes of normalizations, once it is known where their channels end.

    def _finish(self, affine: _Affine) -> list[Copy]:
        """Ties the channels of all readers that factors can be applied to; a copy if there are others."""
        output = affine.output
        readers = list(dict.fromkeys(user for user, _ in output.uses() if user.op_type not in _BLIND))
        uses = {reader: self._affine_uses.get((output, reader)) for reader in readers}
        good = {
            reader: labels
            for reader, labels in uses.items()
            if labels is not None and not self._classes.are_fixed(labels).any() and self._ends_well(labels)
        }
        name = affine.nodes[-1].name or ""
        if not good:
            for labels in uses.values():
                if labels is not None:
                    self._note_skipped(name, labels)
            return []
        first, *others = good.values()
        for labels in others:
            self._classes.tie(first, labels, 1, f"readers of '{output.name}' need different factors")
        self._producers[output] = Producer(name, output.name or "", first)
        shared = len(good) < len(readers) or output.is_graph_output()
        names = [node.name or "" for node in affine.nodes]
        copies = [unused_name(f"{one}_equalized", self._node_names()) if shared else one for one in names]
        renamed = dict(zip(names, copies, strict=True))
        channels = first.reshape(affine.shape)
        for node, index in affine.constants:
            self._changes.append(Change(renamed[node.name or ""], index, channels, -1))
        if not shared:
            return []
        return [Copy(tuple(names), tuple(copies), tuple(one.name or "" for one in good), np.unique(first))]

    def _ends_well(self, labels: Channels) -> bool:
        """Whether weights or products read channels."""
        read = [reading.channels for reading in self._readings]
        read += [side for product in self._products for side in (product.first, product.second)]
        return bool(np.isin(labels, np.concatenate([*read, np.zeros(1, np.int64)])).all())

    def _node_names(self) -> set[str]:
        return {node.name or "" for node in self._graph}

    def _note_skipped(self, node: str, labels: Channels) -> None:
        if self._classes.are_fixed(labels).all():
            reason = self._classes.reason(int(labels.flat[0]))
            self._skipped.setdefault(node, reason)
