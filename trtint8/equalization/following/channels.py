"""What is known of a network's channels: which constants produce them, and which nodes read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtint8.equalization.following.channel_classes import Channels


@dataclass(frozen=True)
class Change:
    """A constant whose elements are multiplied by powers of the channels' factors.

    Attributes:
        node: Name of the node that reads the constant; the node may be a copy that is yet to be made.
        index: Index of the node's input.
        channels: The channel of each element; broadcasts with the constant.
        power: 1 where the constant is multiplied by the factors, -1 where it is divided by them.
    """

    node: str
    index: int
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
        changes: The constants to change.
        copies: The nodes to copy, where the factors of their channels differ from 1.
        tensors: Tensor name to the channels of its elements, as a compact label array.
        skipped: Name of each node whose output channels keep their values, to the reason in words.
    """

    representatives: Channels
    powers: NDArray[np.int64]
    producers: tuple[Producer, ...]
    readings: tuple[Reading, ...]
    products: tuple[Product, ...]
    changes: tuple[Change, ...]
    copies: tuple[Copy, ...]
    tensors: Mapping[str, Channels]
    skipped: Mapping[str, str]
