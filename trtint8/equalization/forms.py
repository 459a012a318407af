"""What is known of a class of channels that have one factor: its producers and readers, and its ranges.

Ranges are measured on samples. Factors are applied to the constants of a model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import AnyFloats, Array, FeedDict, Float32s, Floats, pieces
from calibrators.errors import CalibrationDataError
from calibrators.host.session import first_line, run_in_place
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
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.session import open_graph_model
from trtint8.models.shapes import FittingBatchSize


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
    labels = (
        [producer.labels for producer in channels.producers],
        [reading.channels for reading in channels.readings],
        [np.concatenate([product.first, product.second]) for product in channels.products],
    )
    members = tuple(defaultdict[int, list[int]](list) for _ in labels)
    for found, arrays in zip(members, labels, strict=True):
        for number, array in enumerate(arrays):
            for representative in np.unique(channels.representatives[array]).tolist():
                found[representative].append(number)
    producers, readings, products = members
    # Representatives of the channels that weights read with the power -1.
    turned = (one.channels[channels.powers[one.channels] < 0] for one in channels.readings)
    reciprocal = {one for array in turned for one in channels.representatives[array].tolist()}
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = defaultdict(list)
    for one in sorted(({*readings, *products} & {*producers}) - {FIXED} - (reciprocal & {*readings})):
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


def factors_of(channels: NetworkChannels, factors: Floats, labels: Channels) -> Floats:
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
    result: Floats = own if (powers == 1).all() else own**powers
    return result


def changed_constant(
    array: AnyFloats,
    channels: NetworkChannels,
    factors: Floats,
    changes: list[Change],
) -> Float32s:
    """A constant with all its changes applied, computed in float64.

    Args:
        array: The constant.
        channels: The channels of the network.
        factors: The factors of the representatives, of shape (number of channels,).
        changes: The changes of this constant.
    """
    changed = array.astype(np.float64)
    for labels, power in changes:
        by = factors_of(channels, factors, labels)
        changed = changed * (by if power == 1 else by**power)
    return np.asarray(changed, np.float32)


def apply_factors(model: ir.Model, channels: NetworkChannels, factors: Floats) -> None:
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
    for (name, index), changes in channels.changes.items():
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


#: The most values of one tensor that are kept; of its first sample there may be more.
_MOST_VALUES = 1 << 18

#: The most values of a first sample. An image of 64 channels has so many at 256 x 256.
_MOST_OF_A_SAMPLE = 1 << 22


@dataclass(frozen=True)
class Part:
    """What was measured of tensors on a part of the samples.

    Attributes:
        peaks: Tensor name to the largest magnitudes, float64 of the shape of the tensor's labels. Tensors
            whose shape did not fit their labels are left out.
        values: Tensor name to some of its values: of shape (rows, channels) where the channels are the last
            axis, else of shape (samples, ...) with the tensor's axes.
    """

    peaks: Mapping[str, Floats]
    values: Mapping[str, Float32s]


@dataclass(frozen=True)
class Fold:
    """One way to divide the samples.

    Attributes:
        found_with: What factors are found with that are to be tried.
        tried_on: What they are tried on: the other samples; for tensors that cannot be divided by samples,
            where there is one batch, the same.
    """

    found_with: Part
    tried_on: Part


@dataclass(frozen=True)
class Observations:
    """What was measured of tensors.

    Factors that make channels even on the samples that they were found with leave them uneven on others, so
    they are tried on others. The more channels there are and the fewer samples, the more that matters.

    Attributes:
        peaks: Tensor name to the largest magnitudes on all samples, as in :class:`Part`.
        powers: Tensor name to the mean squares on all samples, of the same shape.
        folds: The samples in two halves, each of which is tried on once.
    """

    peaks: Mapping[str, Floats]
    powers: Mapping[str, Floats]
    folds: tuple[Fold, Fold]


def observe(
    model: ir.Model, labels: Mapping[str, Channels], kept: Iterable[str], feeds: Iterable[FeedDict]
) -> Observations:
    """Runs the float network and measures tensors.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        labels: Tensor name to its channels, as a compact label array; along its axes of size 1 the largest
            magnitude is taken.
        kept: Names of the tensors of which values are kept; among those of ``labels``.
        feeds: The samples, batch by batch.

    Raises:
        CalibrationDataError: The model fails on a batch.
    """
    copy = model.clone()
    present = {value.name for value in copy.graph.outputs}
    computed = [value for node in copy.graph for value in node.outputs]
    copy.graph.outputs.extend(
        value for value in computed if value.name in labels and value.name not in present
    )
    session = open_graph_model(copy).session
    given = {value.name for value in copy.graph.outputs}
    outputs = [name for name in labels if name in given]
    names = frozenset(kept)
    parts = [{name: _Measured(array, kept=name in names) for name, array in labels.items()} for _ in range(2)]
    unfit: set[str] = set()
    for number, feed in enumerate(_in_pieces(model, outputs, feeds)):
        try:
            found = dict(zip(outputs, run_in_place(session, outputs, feed), strict=True))
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a batch: {first_line(error)}") from error
        arrays = {**feed, **found}
        unfit.update(name for name in labels if not _fits(arrays[name], labels[name]))
        for index, part in enumerate(parts):
            for name in labels.keys() - unfit:
                part[name].add(_half(arrays[name], labels[name], index, number))
    first, second = ({name: part[name] for name in labels if name not in unfit} for part in parts)
    one, other = _part(first), _part({name: half for name, half in second.items() if half.count})
    other = Part({**one.peaks, **other.peaks}, {**one.values, **other.values})
    both = [(name, half, second[name]) for name, half in first.items()]
    return Observations(
        {name: np.maximum(half.peaks, rest.peaks) for name, half, rest in both},
        {name: (half.squares + rest.squares) / max(half.count + rest.count, 1) for name, half, rest in both},
        (Fold(one, other), Fold(other, one)),
    )


class _Measured:
    """What was measured so far of a tensor, on a part of the samples."""

    def __init__(self, labels: Channels, *, kept: bool) -> None:
        self.labels, self.kept = labels, kept
        self.peaks, self.squares = np.zeros(labels.shape), np.zeros(labels.shape)
        self.count = 0
        self.values: list[Float32s] = []

    def add(self, array: Array) -> None:
        if not array.size:
            return
        axes = tuple(axis for axis, size in enumerate(self.labels.shape) if size == 1)
        for bound in (array.max(axis=axes, keepdims=True), -array.min(axis=axes, keepdims=True)):
            np.maximum(self.peaks, bound, out=self.peaks)
        # Squares of float32 numbers may be beyond float32.
        self.squares += np.square(array, dtype=np.float64).sum(axis=axes, keepdims=True)
        self.count += array.size // max(self.labels.size, 1)
        if self.kept:
            some = _rows(array) if self.labels.shape[-1] > 1 else _middle(array, self.labels)
            _keep(self.values, _samples_first(some, self.labels))


def _part(measured: Mapping[str, _Measured]) -> Part:
    return Part(
        {name: one.peaks for name, one in measured.items()},
        {
            name: _samples_first(np.concatenate(one.values), one.labels)
            for name, one in measured.items()
            if one.values
        },
    )


def _fits(array: Array, labels: Channels) -> bool:
    """Whether a tensor has the shape that its channels are known for."""
    return array.ndim == labels.ndim and all(
        one in (1, size) for one, size in zip(labels.shape, array.shape, strict=True)
    )


def _half(array: Array, labels: Channels, index: int, number: int) -> Array:
    """The half of a tensor's samples that one of the parts is measured on.

    Args:
        array: The tensor in a batch.
        labels: Its channels.
        index: The number of the part, 0 or 1.
        number: The number of the batch.

    Returns:
        Every other sample; of a batch of one sample all or none of it.
    """
    if labels.shape[:1] == (1,) and len(array) > 1:
        return array[index::2]
    return array if number % 2 == index else array[:0]


def _in_pieces(model: ir.Model, tensors: list[str], feeds: Iterable[FeedDict]) -> Iterator[FeedDict]:
    """The feeds; those of networks that compute each sample by itself in pieces of little memory."""
    if not joined_by_graph(model).separate:
        return iter(feeds)
    size = FittingBatchSize(model, tensors)
    return chain.from_iterable(pieces(feed, size(feed)) for feed in feeds)


def _rows(values: Float32s) -> Float32s:
    """Some rows of a tensor whose channels are its last axis, evenly spaced, of shape (rows, channels)."""
    rows = values.reshape(-1, values.shape[-1])
    return rows[:: -(-rows.size // _MOST_VALUES) or 1]


def _middle(values: Float32s, labels: Channels) -> Float32s:
    """The middle of large samples, along axes that are no channels: convolutions read what is together."""
    shape = list(values.shape)
    while len(shape) > 2 and np.prod(shape[1:]) > _MOST_OF_A_SAMPLE:
        axis = max(range(2, len(shape)), key=lambda axis: shape[axis] if labels.shape[axis] == 1 else 0)
        if labels.shape[axis] != 1 or shape[axis] == 1:
            break
        shape[axis] = -(-shape[axis] // 2)
    starts = [(whole - size) // 2 for whole, size in zip(values.shape, shape, strict=True)]
    return values[tuple(slice(start, start + size) for start, size in zip(starts, shape, strict=True))]


def _samples_first(values: Float32s, labels: Channels) -> Float32s:
    """Exchanges the first and the last axis where the channels are the first one; does so back, too."""
    return values.swapaxes(0, -1) if labels.shape[0] > 1 and labels.shape[-1] == 1 else values


def _keep(kept: list[Float32s], values: Float32s) -> None:
    """Keeps as many samples of a batch as there is room for; the first one always."""
    if kept and kept[0].shape[1:] != values.shape[1:]:
        return
    size = int(np.prod(values.shape[1:]))
    room = _MOST_VALUES // max(size, 1) - sum(len(array) for array in kept)
    if room > 0 or not kept:
        kept.append(values[: max(room, 1)].copy())
