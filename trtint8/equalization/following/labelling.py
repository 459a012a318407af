"""The labels of a network's tensors: the channel of each element, and which channels share a factor.

A label array is compact: along an axis on which all labels are equal it has size 1, so that it broadcasts
with the tensor. Channels that must share one factor are classes of a union-find structure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from calibrators.data.feeds import Array, Flags, Ints
from trtint8.equalization.following.constants import SAMPLES
from trtint8.models.shapes import StaticShapes


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
        uses: A node that reads the output to the labels that it reads.
    """

    nodes: tuple[ir.Node, ...]
    constants: tuple[tuple[ir.Node, int], ...]
    shape: tuple[int, ...]
    labels: Channels
    uses: dict[ir.Node, Channels] = field(default_factory=dict)

    @property
    def output(self) -> ir.Value:
        """The value that the last node computes."""
        return self.nodes[-1].outputs[0]


class Labelling:
    """Labels of tensors, and what was found about their channels so far.

    Args:
        model: The model whose channels are followed.
        shapes: The shapes of the model's tensors.
        through_clips: Whether channels are followed through bounds, such as those of a Relu6.

    Attributes:
        graph: The model's main graph.
        shapes: The shapes of the model's tensors.
        through_clips: Whether channels are followed through bounds.
        found: The producers, readers, products, changes and bounds that were found.
        classes: The channels, in classes that share one factor.
        labels: Value to its labels.
        affines: Output of each normalization to its last nodes.
        absorbed: Nodes that belong to a normalization and need no rule of their own.
        producers: The producers, by their output.
    """

    def __init__(self, model: ir.Model, shapes: StaticShapes, *, through_clips: bool = False) -> None:
        self.graph, self.shapes, self.through_clips = model.graph, shapes, through_clips
        self.found = NetworkChannels()
        self.classes = ChannelClasses()
        self.labels: dict[ir.Value, Channels] = {}
        self.affines: dict[ir.Value, Affine] = {}
        self.absorbed: set[ir.Node] = set()
        self.producers: dict[ir.Value, Producer] = {}
        self._owners = [-1]

    def shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape of a value for the samples that are followed; None where it is not known."""
        sizes = self.shapes.of(value)
        if sizes is None:
            return None
        # The number of samples is not followed through graphs inside nodes, and plugins.
        known = tuple(SAMPLES if axis == 0 and size is None else size for axis, size in enumerate(sizes))
        return tuple(size for size in known if size is not None) if None not in known else None

    def rank(self, value: ir.Value) -> int:
        """Number of axes of a value."""
        return len(self.shape(value) or ())

    def read(self, node: ir.Node, index: int) -> Channels | None:
        """The labels of an input; None where all its channels have the factor 1."""
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return None
        labels = self.labels.get(value)
        if affine := self.affines.get(value):
            if node not in affine.uses:
                numbers = self.new_channels(affine.nodes[-1], int(np.prod(affine.shape)))
                affine.uses[node] = numbers[affine.labels]
            labels = affine.uses[node]
        return None if labels is None or self.classes.are_fixed(labels).all() else labels

    def write(self, value: ir.Value, labels: Channels) -> None:
        """Gives a value labels, which may lack axes of size 1 in front, as broadcasting allows."""
        labels = self.labels[value] = with_rank(labels, self.rank(value))
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

    def read_channels(self) -> Flags:
        """For every channel, whether weights or products read it, of shape (channels,)."""
        read = np.zeros(len(self.classes), np.bool_)
        for reading in self.found.readings:
            read[reading.channels] = True
        for product in self.found.products:
            read[product.first] = read[product.second] = True
        return read

    def note_skipped(self, node: str, labels: Channels) -> None:
        """Notes why all output channels of a node keep their values, where they do."""
        if self.classes.are_fixed(labels).all():
            reason = self.classes.reason(int(labels.flat[0]))
            self.found.skipped.setdefault(node, reason)


def compact(labels: Channels) -> Channels:
    """Reduces axes along which all labels are equal to size 1."""
    for axis in range(labels.ndim):
        first = labels.take([0], axis) if labels.shape[axis] else labels
        if labels.shape[axis] > 1 and bool((labels == first).all()):
            labels = first
    return labels


def along(labels: Channels, axis: int, size: int) -> Channels | None:
    """The labels along one axis, where they are equal along all others.

    Args:
        labels: A compact label array.
        axis: The axis; negative counts from the end.
        size: The tensor's size along this axis.

    Returns:
        Labels of shape (size,); None where labels differ along another axis.
    """
    axis %= labels.ndim
    if any(length != 1 for other, length in enumerate(labels.shape) if other != axis):
        return None
    return np.broadcast_to(labels.reshape(-1), (size,))


def placed(labels: Channels, rank: int, axis: int) -> Channels:
    """Spreads a vector of labels out along one axis of a tensor.

    Args:
        labels: Labels of shape (channels,).
        rank: The tensor's rank.
        axis: The axis of the channels; negative counts from the end.

    Returns:
        A compact label array of the given rank.
    """
    shape = [1] * rank
    shape[axis] = -1
    return labels.reshape(shape)


def with_rank(labels: Channels, rank: int) -> Channels:
    """Adds axes of size 1 in front, as broadcasting does."""
    return labels.reshape((1,) * (rank - labels.ndim) + labels.shape)


def moved(node: ir.Node, opset: int, arrays: Mapping[int, Array]) -> list[Channels]:
    """Executes an operator that only moves elements on labels in place of values.

    Args:
        node: The node, such as a Reshape.
        opset: The opset of the model.
        arrays: Index of input to its labels, of the tensor's full shape, or of size 1 along axes that the
            operator does not touch; or to its value, for shapes, indices and the like.

    Returns:
        One compact label array per output of the node.

    Raises:
        KeyError: An input is missing.
    """
    values = ((index, value) for index, value in enumerate(node.inputs) if value is not None)
    inputs = {value.name or "": arrays[index] for index, value in values}
    evaluator = ReferenceEvaluator(ir.to_proto(node), opsets={"": opset})
    return [compact(np.asarray(output, np.int64)) for output in evaluator.run(None, inputs)]


class Change(NamedTuple):
    """What the elements of a constant are multiplied by: powers of the channels' factors.

    Attributes:
        channels: The channel of each element; broadcasts with the constant.
        power: 1 where the constant is multiplied by the factors, -1 where it is divided by them.
    """

    channels: Channels
    power: int


@dataclass(frozen=True)
class Producer:
    """A node whose constants can divide its output channels.

    Attributes:
        node: Name of the node.
        tensor: Name of the tensor that holds the channels, bias included.
        labels: The channel of each element of the tensor, as a compact label array.
    """

    node: str
    tensor: str
    labels: Channels


@dataclass(frozen=True)
class Reading:
    """A node whose weights can be multiplied for each input channel.

    Attributes:
        node: Name of the node.
        tensor: Name of the tensor that it reads.
        labels: The channel of each element of the tensor, which changes only along the axis that the weights
            are multiplied along; of the tensor's size along this axis, and of size 1 along the others.
    """

    node: str
    tensor: str
    labels: Channels

    @property
    def channels(self) -> Channels:
        """The channel of each index along the axis that the weights are multiplied along."""
        return self.labels.reshape(-1)


@dataclass(frozen=True)
class Clipping:
    """A node that cuts channels off, which factors leave as they are only below its bound.

    Attributes:
        tensor: Name of its output.
        labels: The channel of each element of the output, as a compact label array.
        bound: The smallest magnitude other than 0 that values are cut off at.
    """

    tensor: str
    labels: Channels
    bound: float


@dataclass(frozen=True)
class Product:
    """A product of two activations in which factors of one side cancel those of the other.

    Attributes:
        node: Name of the node.
        first: The channels of its first input.
        second: The channels of its second input.
    """

    node: str
    first: Channels
    second: Channels


@dataclass(frozen=True)
class Copy:
    """Nodes that must be copied, because some of their readers need their output unchanged.

    Attributes:
        nodes: Names of the nodes, each of which reads the output of the one before.
        copies: Names of the copies, one per node.
        readers: Names of the nodes that read the output of the last copy instead.
        channels: The channels of the copy's output.
    """

    nodes: tuple[str, ...]
    copies: tuple[str, ...]
    readers: tuple[str, ...]
    channels: Channels


@dataclass(frozen=True)
class NetworkChannels:
    """All channels of a network that factors can be applied to.

    Attributes:
        representatives: Channel number to the representative of its class; the factor of class 0 is 1.
        powers: Channel number to 1 or -1, the power of the representative's factor in the channel's.
        producers: The producers, in graph order.
        readings: The readers, in graph order.
        products: The products, in graph order.
        changes: Name of a node, which may be a copy that is yet to be made, and index of its input, to the
            changes of the constant there.
        copies: The nodes to copy, where the factors of their channels differ from 1.
        clips: The bounds that channels pass, in graph order.
        tensors: Tensor name to the channels of its elements, as a compact label array.
        skipped: Name of each node whose output channels keep their values, to the reason in words.
    """

    representatives: Channels = field(default_factory=lambda: np.zeros(0, np.int64))
    powers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    producers: Sequence[Producer] = ()
    readings: list[Reading] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    changes: dict[tuple[str, int], list[Change]] = field(default_factory=lambda: defaultdict(list))
    copies: Sequence[Copy] = ()
    clips: list[Clipping] = field(default_factory=list)
    tensors: Mapping[str, Channels] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


#: Numbers of channels, of any shape.
Channels = Ints

#: The number of everything that keeps its values: its factor is always 1.
FIXED = 0


class ChannelClasses:
    """Channels by number, in classes that share one factor or its reciprocal.

    Each class has one representative. A channel's factor is that of its representative to the power of 1 or
    -1. The class of :data:`FIXED` has the factor 1, as all that are fixed.
    """

    def __init__(self) -> None:
        self._parents = [FIXED]
        self._powers = [1]
        #: Representatives of classes that have the factor 1, to the reasons.
        self._reasons = {FIXED: ""}

    def __len__(self) -> int:
        """Number of channels, :data:`FIXED` included."""
        return len(self._parents)

    def add(self, count: int) -> Channels:
        """Adds channels, each in a class of its own.

        Args:
            count: How many channels.

        Returns:
            Their numbers, of shape (count,).
        """
        numbers = np.arange(len(self), len(self) + count, dtype=np.int64)
        self._parents += numbers.tolist()
        self._powers += [1] * count
        return numbers

    def find(self, channel: int) -> tuple[int, int]:
        """The representative of a channel's class, and the power of its factor in the channel's factor."""
        passed: list[int] = []
        while (parent := self._parents[channel]) != channel:
            passed.append(channel)
            channel = parent
        # Whoever was passed on the way finds the representative at once from now on.
        power = 1
        for one in reversed(passed):
            power *= self._powers[one]
            self._parents[one], self._powers[one] = channel, power
        return channel, power

    def fix(self, channels: Channels, reason: str) -> None:
        """Gives channels, and all others of their classes, the factor 1.

        Args:
            channels: Numbers of channels, of any shape.
            reason: Why these channels keep their values, in words for the user.
        """
        for channel in np.unique(channels).tolist():
            self._reasons.setdefault(self.find(channel)[0], reason)

    def tie(self, first: Channels, second: Channels, power: int, reason: str) -> None:
        """Ties the factors of channels: each of the first is one of the second to a power.

        Args:
            first: Numbers of channels.
            second: Numbers of channels, of a shape that broadcasts with that of ``first``.
            power: 1 for equal factors, -1 for reciprocal ones.
            reason: Why channels that cannot be tied keep their values, in words for the user.
        """
        pairs = np.stack([array.ravel() for array in np.broadcast_arrays(first, second)])
        for one, another in np.unique(pairs, axis=1).T.tolist():
            (root, root_power), (other, other_power) = self.find(one), self.find(another)
            between = root_power * other_power * power
            if self._reasons.keys() & {root, other} or (root == other and between < 0):
                self.fix(np.array([root, other], np.int64), reason)
            elif root != other:
                self._parents[root], self._powers[root] = other, between

    def are_fixed(self, channels: Channels) -> Flags:
        """Which channels have the factor 1, of the shape of ``channels``."""
        numbers, inverse = np.unique(channels, return_inverse=True)
        fixed = np.array([self.find(number)[0] in self._reasons for number in numbers.tolist()], bool)
        return fixed[inverse].reshape(channels.shape)

    def reason(self, channel: int) -> str:
        """Why a channel has the factor 1; empty where it does not."""
        return self._reasons.get(self.find(channel)[0], "")

    def representatives(self) -> tuple[Channels, Ints]:
        """The representatives and the powers of all channels, each of shape (number of channels,)."""
        numbers = np.array([self.find(channel) for channel in range(len(self))], np.int64)
        fixed = np.isin(numbers[:, 0], list(self._reasons))
        return np.where(fixed, FIXED, numbers[:, 0]), numbers[:, 1]
