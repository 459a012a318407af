"""The forms in which factors appear: classes of channels with the same producers and the same readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from trtint8.equalization.following.channel_classes import FIXED, Channels
from trtint8.equalization.following.channels import NetworkChannels, Product, Reading


@dataclass(frozen=True)
class Form:
    """Channels whose factors are chosen together.

    Attributes:
        producers: Names of the nodes whose constants divide the channels.
        readings: The readers whose weights are multiplied; empty where factors cancel in products alone.
        products: The products in which factors cancel.
        representatives: The representatives of the channels' classes, in ascending order.
    """

    producers: tuple[str, ...]
    readings: tuple[Reading, ...]
    products: tuple[Product, ...]
    representatives: Channels

    @property
    def readers(self) -> tuple[str, ...]:
        """Names of the nodes that read the channels, in products or with weights."""
        return tuple(reading.node for reading in self.readings) + tuple(one.node for one in self.products)

    @property
    def description(self) -> str:
        """The form in words: from which nodes to which."""
        producers = ", ".join(f"'{name}'" for name in self.producers)
        readers = ", ".join(f"'{reading.node}'" for reading in self.readings)
        products = ", ".join(f"'{product.node}'" for product in self.products)
        return f"{producers} to {readers}" if readers else f"{producers} within {products}"


def find_forms(channels: NetworkChannels) -> list[Form]:
    """Groups the classes of channels by their producers and readers.

    Args:
        channels: The channels of a network.

    Returns:
        One form per combination. Classes that nothing produces or nothing reads are left out, and so are
        those where weights read a channel with the reciprocal of its class's factor, as where keys serve as
        values too.
    """
    producers, readings, products = (defaultdict[int, list[int]](list) for _ in range(3))
    for number, producer in enumerate(channels.producers):
        for representative in _representatives(channels, producer.labels):
            producers[representative].append(number)
    for number, reading in enumerate(channels.readings):
        for representative in _representatives(channels, reading.channels):
            readings[representative].append(number)
    for number, product in enumerate(channels.products):
        for representative in _representatives(channels, np.concatenate([product.first, product.second])):
            products[representative].append(number)
    reciprocal = {one for one in _reciprocal(channels) if one in readings}
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
    for one in sorted(({*readings, *products} & {*producers}) - {FIXED} - reciprocal):
        groups[tuple(producers[one]), tuple(readings[one]), tuple(products[one])].append(one)
    return [
        Form(
            tuple(channels.producers[number].node for number in produced),
            tuple(channels.readings[number] for number in read),
            tuple(channels.products[number] for number in multiplied),
            np.array(representatives, np.int64),
        )
        for (produced, read, multiplied), representatives in groups.items()
    ]


def _representatives(channels: NetworkChannels, labels: Channels) -> list[int]:
    found: list[int] = np.unique(channels.representatives[labels]).tolist()
    return found


def _reciprocal(channels: NetworkChannels) -> Iterator[int]:
    """Representatives of the channels that weights read with the power -1."""
    for reading in channels.readings:
        turned = reading.channels[channels.powers[reading.channels] < 0]
        yield from _representatives(channels, turned)


def from_last_to_first(forms: Iterable[Form], positions: dict[str, int]) -> list[Form]:
    """Sorts forms so that the factors of a reader's output are chosen before those of its input.

    Args:
        forms: The forms.
        positions: Name of each node to its position in the graph.
    """
    return sorted(
        forms,
        key=lambda form: max(positions[name] for name in form.readers),
        reverse=True,
    )
