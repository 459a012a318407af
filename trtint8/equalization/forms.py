"""The forms in which factors appear: classes of channels with the same producers and the same readers.

Applies factors to the constants of a model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtint8.equalization.following.labelling import (
    FIXED,
    Change,
    Channels,
    Copy,
    NetworkChannels,
    Product,
    Reading,
)
from trtint8.models.graph import constant_input, set_constant_input, take_name, value_names


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


def factors_of(
    channels: NetworkChannels, factors: NDArray[np.float64], labels: Channels
) -> NDArray[np.float64]:
    """The factors of channels, by which their values are divided.

    Args:
        channels: The channels of the network.
        factors: The factors of the representatives, of shape (number of channels,).
        labels: Numbers of channels, of any shape.

    Returns:
        One factor per label, of the shape of ``labels``.
    """
    own, powers = factors[channels.representatives[labels]], channels.powers[labels]
    # Raising to a power takes longer than all else here, and most powers are 1.
    result: NDArray[np.float64] = own if (powers == 1).all() else own**powers
    return result


def changed_constant(
    array: NDArray[np.floating],
    channels: NetworkChannels,
    factors: NDArray[np.float64],
    changes: list[Change],
) -> NDArray[np.float32]:
    """A constant with all its changes applied, computed in float64.

    Args:
        array: The constant.
        channels: The channels of the network.
        factors: The factors of the representatives, of shape (number of channels,).
        changes: The changes of this constant.
    """
    changed = array.astype(np.float64)
    for change in changes:
        by = factors_of(channels, factors, change.channels)
        changed = changed * (by if change.power == 1 else by**change.power)
    return np.asarray(changed, np.float32)


def changes_by_constant(channels: NetworkChannels) -> dict[tuple[str, int], list[Change]]:
    """Name of a node and index of its input to the changes of the constant there."""
    changes: dict[tuple[str, int], list[Change]] = defaultdict(list)
    for change in channels.changes:
        changes[change.node, change.index].append(change)
    return changes


def apply_factors(model: ir.Model, channels: NetworkChannels, factors: NDArray[np.float64]) -> None:
    """Divides channels by factors, and changes the weights that read them to make up for it.

    Args:
        model: The model that the channels were found in; changed in place.
        channels: The channels of the model.
        factors: The factors of the representatives, of shape (number of channels,); 1 for channels that stay.
    """
    nodes = {node.name or "": node for node in model.graph}
    taken = value_names(model.graph)
    for copy in channels.copies:
        if (factors_of(channels, factors, copy.channels) != 1).any():
            nodes.update(_copy(model.graph, nodes, copy, taken))
    for (name, index), changes in changes_by_constant(channels).items():
        if all((factors_of(channels, factors, change.channels) == 1).all() for change in changes):
            continue
        array = constant_input(nodes[name], index)
        assert array is not None, f"input {index} of '{name}' is constant"
        changed = changed_constant(array, channels, factors, changes)
        set_constant_input(nodes[name], index, changed, taken)


def _copy(graph: ir.Graph, nodes: dict[str, ir.Node], copy: Copy, taken: set[str]) -> dict[str, ir.Node]:
    """Copies nodes that follow one another; the copy's readers read the last copy."""
    made: dict[str, ir.Node] = {}
    replaced: dict[ir.Value, ir.Value] = {}
    originals = [nodes[name] for name in copy.nodes]
    for original, name in zip(originals, copy.copies, strict=True):
        inputs = [value if value is None else replaced.get(value, value) for value in original.inputs]
        node = ir.Node(
            original.domain, original.op_type, inputs, list(original.attributes.values()), name=name
        )
        source, result = original.outputs[0], node.outputs[0]
        result.name = take_name(f"{source.name}_equalized", taken)
        result.shape, result.type = source.shape, source.type
        replaced[source] = result
        made[name] = node
    graph.insert_after(originals[-1], list(made.values()))
    output = originals[-1].outputs[0]
    for name in copy.readers:
        for index, value in enumerate(nodes[name].inputs):
            if value is output:
                nodes[name].replace_input_with(index, replaced[output])
    return made
