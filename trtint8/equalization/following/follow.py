"""Follows channels through a network, from the constants that produce them to the weights that read them.

Every producer's output channels get numbers. A label array says for each element of a tensor which channel
it belongs to. Operators that move elements are executed on the labels. The other operators pass labels on,
tie the factors of channels, or fix them at 1. So only factors remain that leave the network's function as it
is.

One rule per kind of operator says how it treats channels: sums, products and quotients of single elements,
what moves, pools or reduces, normalizations (which produce channels), and products of matrices. An operator f
passes factors on where it is homogeneous: f(s x) = s f(x) for every factor s > 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Array, Flags
from calibrators.operators import Axes, Values, operator_of
from trtint8.equalization.following.constants import (
    channel_numbers,
    has_constant_bias,
    is_convolution,
    is_linear,
    read_axis,
)
from trtint8.equalization.following.labelling import (
    FIXED,
    Affine,
    Change,
    Channels,
    Clipping,
    Copy,
    Labelling,
    NetworkChannels,
    Producer,
    Product,
    Reading,
    along,
    compact,
    moved,
    placed,
    with_rank,
)
from trtint8.models.graph import constant_input, read_constant, take_name
from trtint8.models.shapes import StaticShapes
from trtint8.quantization.operators import commutes_with_quantization, ends_of


def _is_moving(node: ir.Node) -> bool:
    """True if a node moves elements of its first input, or of all, and computes nothing."""
    operator = operator_of(node)
    moves = operator.moves and operator.values is not Values.SAME
    return moves and operator.data in ((0,), None)


def _is_elementwise(node: ir.Node) -> bool:
    """True if an operator is homogeneous for each element; the output has the shape of the first input."""
    operator = operator_of(node)
    return operator.homogeneous and operator.axes is Axes.ELEMENTWISE


def _is_reducing(node: ir.Node) -> bool:
    """True if an operator is homogeneous along the axes that it reduces."""
    operator = operator_of(node)
    return operator.homogeneous and operator.axes is Axes.SEVERAL


def is_spatial(node: ir.Node) -> bool:
    """Whether an operator is homogeneous for each channel of (N, C, spatial...) and mixes no channels."""
    if node.op_type == "Resize":
        transformation = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
        return transformation != "tf_crop_and_resize"
    if node.op_type == "Pad":
        return _pads_spatially(node)
    operator = operator_of(node)
    return operator.homogeneous and operator.axes is Axes.IMAGES


def _pads_spatially(node: ir.Node) -> bool:
    pads = constant_input(node, 1)
    if pads is None or len(node.inputs) > 3 or not commutes_with_quantization(node):
        return False
    begins, ends = pads.reshape(2, -1)
    return not begins[:2].any() and not ends[:2].any()


def reduced_axes(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """The axes that a reducing operator reduces, from 0 on; None where they are computed."""
    axes: Any = node.attributes.get_ints("axes", ())
    if not axes and len(node.inputs) > 1 and node.inputs[1] is not None:
        constant: Array | None = constant_input(node, 1)
        if constant is None:
            return None
        axes = constant.tolist()
    if not axes:
        return () if node.attributes.get_int("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(int(axis) % rank for axis in axes))


def _add(labelling: Labelling, node: ir.Node) -> None:
    """Divides a constant that is added to channels; ties channels of one producer that are added."""
    first, second = labelling.read(node, 0), labelling.read(node, 1)
    output = node.outputs[0]
    if first is not None and second is not None:
        rank = labelling.rank(output)
        first, second = with_rank(first, rank), with_rank(second, rank)
        reason = f"'{node.name}' adds channels of different factors"
        if labelling.owners_of(first) == labelling.owners_of(second):
            labelling.classes.tie(first, second, 1, reason)
            labelling.write(output, compact(np.broadcast_arrays(first, second)[0]))
        else:
            labelling.classes.fix(first, reason)
            labelling.classes.fix(second, reason)
        return
    index, labels = (0, first) if first is not None else (1, second)
    source = node.inputs[index]
    if labels is None or source is None:
        return
    if not _divides_constant(labelling, node, 1 - index, source, labels):
        labelling.classes.fix(labels, f"'{node.name}' adds values to them that keep theirs")
        return
    labelling.write(output, labels)
    producer = labelling.producers.get(source)
    if producer is not None and producer.tensor == source.name and len(source.uses()) == 1:
        # The channels are what they are with the bias.
        labelling.producers[source] = Producer(producer.node, output.name or "", labelling.labels[output])


def _divides_constant(
    labelling: Labelling, node: ir.Node, index: int, other: ir.Value, labels: Channels
) -> bool:
    """Whether a constant that is added to channels can be divided with them; if so, notes the change."""
    constant = constant_input(node, index)
    if constant is None or constant.dtype != np.float32:
        return False
    rank = max(constant.ndim, labels.ndim)
    sizes = (1,) * (rank - constant.ndim) + constant.shape
    for axis in range(-labels.ndim, 0):
        if labels.shape[axis] == 1 or sizes[axis] == labels.shape[axis]:
            continue
        # The constant becomes larger, which is right only where the channels' axis has one size.
        if other.shape is None or not isinstance(other.shape[axis], int):
            return False
    while labels.ndim > constant.ndim and labels.shape[0] == 1:
        labels = labels[0]
    labelling.found.changes[node.name or "", index].append(Change(labels, -1))
    return True


def _multiply(labelling: Labelling, node: ir.Node) -> None:
    """Passes channels on that are multiplied or divided by values without factors, such as a gate."""
    divides = node.op_type == "Div"
    if divides or labelling.read(node, 0) is not None:
        reason = (
            "divides by them" if divides else "multiplies channels by them that have factors of their own"
        )
        labelling.fix(node, 1, f"'{node.name}' {reason}")
    first, second = labelling.read(node, 0), labelling.read(node, 1)
    labels = first if first is not None else second
    if labels is not None:
        labelling.write(node.outputs[0], labels)
        return
    for index in () if divides else (0, 1):
        constant = constant_input(node, index)
        if constant is not None and constant.size > 1 and constant.dtype == np.float32:
            _scale_by_constant(labelling, node, index, constant.shape)
            return


_logger = logging.getLogger(__name__)


def _pass_on(labelling: Labelling, node: ir.Node) -> None:
    """Passes channels on through a homogeneous operator that mixes none of them."""
    labels = labelling.read(node, 0)
    for index in range(1, len(node.inputs)):
        labelling.fix(node, index, f"'{node.name}' multiplies other values by them")
    if labels is None:
        return
    axes: Sequence[int] | None = ()
    if reduces := _is_reducing(node):
        axes = reduced_axes(node, labels.ndim)
    elif not _is_elementwise(node):
        shapes = [labelling.shape(value) or () for value in (node.inputs[0], node.outputs[0])]
        is_read = any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        axes = None if shapes[0][:2] != shapes[1][:2] or is_read else range(2, labels.ndim)
    if axes is None or any(labels.shape[axis] != 1 for axis in axes):
        labelling.classes.fix(labels, f"'{node.name}' ({node.op_type}) mixes their channels")
    else:
        squeezed = reduces and not node.attributes.get_int("keepdims", 1)
        labelling.write(node.outputs[0], np.squeeze(labels, tuple(axes)) if squeezed else labels)


def _clip(labelling: Labelling, node: ir.Node) -> None:
    """Passes channels on through constant bounds around 0, and notes the bounds, where that is asked for."""
    low, high = ends_of(node) or (0.0, 0.0)
    if not labelling.through_clips or not low <= 0 <= high or low == high:
        labelling.stop(node)
        return
    labels, output = labelling.read(node, 0), node.outputs[0]
    if labels is not None:
        labelling.write(output, labels)
        nearest = min(abs(bound) for bound in (low, high) if bound)
        labelling.found.clips.append(Clipping(output.name or "", labels, nearest))


def _move(labelling: Labelling, node: ir.Node) -> None:
    """Moves labels as the operator moves values."""
    count = len(operator_of(node).data_among(len(node.inputs)))
    read = {index: labelling.read(node, index) for index in range(count)}
    if all(labels is None for labels in read.values()):
        return
    spread = _axes_to_spread(node, [labels for labels in read.values() if labels is not None])
    arrays: dict[int, Array] = {}
    for index, value in enumerate(node.inputs):
        if index in read:
            labels, shape = read[index], labelling.shape(value) or ()
            sizes = [size if axis in spread else 1 for axis, size in enumerate(shape)]
            arrays[index] = np.broadcast_to(np.int64(FIXED) if labels is None else labels, sizes)
        else:
            constant = read_constant(value)
            known = labelling.shapes.integers_of(value) if constant is None else constant
            arrays |= {} if known is None else {index: known}
    try:
        # An index or a shape that depends on the values of the feed is missing.
        outputs = moved(node, labelling.graph.opset_imports.get("", 0), arrays)
    except Exception:
        _logger.debug("cannot follow channels through '%s'", node.name, exc_info=True)
        for index in range(count):
            labelling.fix(node, index, f"where '{node.name}' ({node.op_type}) moves them is not constant")
        return
    for value, labels in zip(node.outputs, outputs, strict=True):
        labelling.write(value, labels)


def _axes_to_spread(node: ir.Node, read: Sequence[Channels]) -> set[int]:
    """The axes of a tensor's full size; labels may stay compact along the others, which saves much memory.

    Args:
        node: The node.
        read: The labels of its inputs, of one rank.
    """
    rank = read[0].ndim
    if operator_of(node).axes is not Axes.ONE:  # which takes elements along it, whatever is on the others
        return set(range(rank))
    touched = node.attributes.get_int("axis", 0) % rank
    return {touched, *(axis for axis in range(rank) if any(labels.shape[axis] != 1 for labels in read))}


def _normalize(labelling: Labelling, node: ir.Node) -> None:
    """Gives the output of an operator that ends with factors new channels, where these are constant."""
    labelling.stop(node)
    indices = [index for index in operator_of(node).affine if index < len(node.inputs)]
    constants = [constant_input(node, index) for index in indices]
    is_read = any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
    trains = bool(node.attributes.get_int("training_mode", 0))
    parameters = [one for one in constants if one is not None and one.dtype == np.float32]
    on_axis_1 = operator_of(node).axes is Axes.IMAGES  # else the channels are on the last axes
    if len(parameters) < len(indices) or trains or (is_read and on_axis_1):
        return
    rank, shape = labelling.rank(node.outputs[0]), parameters[0].shape
    numbers = np.arange(parameters[0].size).reshape(shape)
    labels = placed(numbers, rank, 1) if on_axis_1 else with_rank(numbers, rank)
    constants_of = tuple((node, index) for index in indices)
    labelling.affines[node.outputs[0]] = Affine((node,), constants_of, shape, labels)


def _scale_by_constant(labelling: Labelling, node: ir.Node, index: int, shape: tuple[int, ...]) -> None:
    """Gives new channels to a product with constants, or to the sum with a constant offset after it.

    Args:
        labelling: The labels so far.
        node: The product.
        index: Index of the constant among the node's inputs.
        shape: The constant's shape.
    """
    nodes, constants = [node], [(node, index)]
    uses = tuple(node.outputs[0].uses())
    if len(uses) == 1 and not node.outputs[0].is_graph_output():
        reader, other = uses[0]
        offset = constant_input(reader, 1 - other) if len(reader.inputs) == 2 else None
        is_sum = reader.op_type == "Add" and reader.domain == "" and reader.graph is labelling.graph
        # An offset with more elements than factors would need a channel for each of its elements.
        if is_sum and offset is not None and offset.dtype == np.float32 and offset.ndim <= len(shape):
            nodes.append(reader)
            constants.append((reader, 1 - other))
            labelling.absorbed.add(reader)
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    labels = with_rank(numbers, max(len(shape), labelling.rank(nodes[-1].outputs[0])))
    labelling.affines[nodes[-1].outputs[0]] = Affine(tuple(nodes), tuple(constants), shape, labels)


def _separate_readers(labelling: Labelling, affine: Affine, read: Flags, taken: set[str]) -> list[Copy]:
    """Ties the channels of all readers that factors can be applied to, once all nodes were followed.

    Args:
        labelling: The labels of the whole network.
        affine: The last nodes of a normalization.
        read: For every channel, whether weights or products read it.
        taken: The names of all nodes, to which those of copies are added.

    Returns:
        A copy of these nodes, where other readers need the output unchanged; else nothing.
    """
    output, name = affine.output, affine.nodes[-1].name or ""
    readers = list(dict.fromkeys(user for user, _ in output.uses() if not operator_of(user).reads_shape))
    uses = {reader: affine.uses[reader] for reader in readers if reader in affine.uses}
    good = {
        reader: labels
        for reader, labels in uses.items()
        if not labelling.classes.are_fixed(labels).any() and read[labels].all()
    }
    # Nothing divides the channels of the other readers, so nothing may multiply them either.
    for reader in (reader for reader in uses if reader not in good):
        reason = f"'{reader.name}' passes only a part of '{output.name}' on to weights"
        labelling.classes.fix(uses[reader], reason)
    if not good:
        for labels in uses.values():
            labelling.note_skipped(name, labels)
        return []
    first, *others = good.values()
    for labels in others:
        labelling.classes.tie(first, labels, 1, f"readers of '{output.name}' need different factors")
    labelling.producers[output] = Producer(name, output.name or "", first)
    shared = len(good) < len(readers) or output.is_graph_output()
    names = [node.name or "" for node in affine.nodes]
    copies = [take_name(f"{one}_equalized", taken) if shared else one for one in names]
    renamed = dict(zip(names, copies, strict=True))
    channels = first.reshape(affine.shape)
    for node, index in affine.constants:
        labelling.found.changes[renamed[node.name or ""], index].append(Change(channels, -1))
    if not shared:
        return []
    return [Copy(tuple(names), tuple(copies), tuple(one.name or "" for one in good), np.unique(first))]


def _multiply_by_weights(labelling: Labelling, node: ir.Node) -> None:
    """Notes that weights read the channels of a linear node's input, and gives its output new channels."""
    weights = labelling.shape(node.inputs[1])
    assert weights is not None
    outputs, inputs = channel_numbers(node, weights)
    labels = labelling.read(node, 0)
    if labels is not None:
        axis = read_axis(node)
        channels = along(labels, axis, int(inputs.max()) + 1)
        if channels is None:
            labelling.classes.fix(labels, f"'{node.name}' sums over another axis than that of the channels")
        else:
            value = node.inputs[0]
            assert value is not None
            read = placed(channels, labels.ndim, axis)
            labelling.found.readings.append(Reading(node.name or "", value.name or "", read))
            labelling.found.changes[node.name or "", 1].append(Change(channels[inputs], 1))
    if not has_constant_bias(node):
        labelling.fix(node, 2, f"it is the bias of '{node.name}'")
        return
    output = node.outputs[0]
    channels = labelling.new_channels(node, int(outputs.max()) + 1)
    labelling.found.changes[node.name or "", 1].append(Change(channels[outputs], -1))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        labelling.found.changes[node.name or "", 2].append(Change(channels, -1))
    labels = placed(channels, labelling.rank(output), 1 if is_convolution(node) else -1)
    labelling.producers[output] = Producer(node.name or "", output.name or "", labels)
    labelling.write(output, labels)


def _multiply_matrices(labelling: Labelling, node: ir.Node) -> None:
    """Passes on channels that the product does not sum over; pairs channels of both operands."""
    first, second = labelling.read(node, 0), labelling.read(node, 1)
    if any(labelling.rank(value) < 2 for value in node.inputs if value is not None):
        labelling.stop(node)
    elif first is not None and second is not None:
        _pair(labelling, node, first, second)
    elif first is not None or second is not None:
        labels, contracted = (first, -1) if first is not None else (second, -2)
        assert labels is not None
        if labels.shape[contracted] != 1:
            labelling.classes.fix(labels, f"'{node.name}' sums over them without weights")
        else:
            labelling.write(node.outputs[0], labels)


def _pair(labelling: Labelling, node: ir.Node, first: Channels, second: Channels) -> None:
    """Ties the channels of both sides, whose factors cancel in the product."""
    reason = f"factors do not cancel in '{node.name}'"
    if first.shape[-2] != 1 or second.shape[-1] != 1:
        labelling.classes.fix(first, reason)
        labelling.classes.fix(second, reason)
        return
    labelling.classes.tie(first.swapaxes(-1, -2), second, -1, reason)
    labelling.found.products.append(Product(node.name or "", np.unique(first), np.unique(second)))


_Rule: TypeAlias = Callable[[Labelling, ir.Node], None]

_ARITHMETIC: Mapping[str, _Rule] = {
    "Add": _add,
    "Clip": _clip,
    "Div": _multiply,
    "MatMul": _multiply_matrices,
    "Mul": _multiply,
    "Sub": _add,
}


def follow_channels(model: ir.Model, shapes: StaticShapes, *, through_clips: bool = False) -> NetworkChannels:
    """Finds all channels of a network that factors can be applied to.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        shapes: The shapes of the model's tensors.
        through_clips: Whether channels are followed through bounds, such as those of a Relu6. Factors leave
            these as they are only for values below them.
    """
    labelling = Labelling(model, shapes, through_clips=through_clips)
    for node in model.graph:
        if node not in labelling.absorbed and not operator_of(node).reads_shape:
            known = labelling.shape(node.outputs[0]) is not None
            (_rule(node) if known else Labelling.stop)(labelling, node)
    read = labelling.read_channels()
    affines = labelling.affines.values()
    taken = {node.name or "" for node in model.graph}
    copies = [copy for affine in affines for copy in _separate_readers(labelling, affine, read, taken)]
    for producer in labelling.producers.values():
        labelling.note_skipped(producer.node, producer.labels)
    representatives, powers = labelling.classes.representatives()
    return replace(
        labelling.found,
        representatives=representatives,
        powers=powers,
        producers=tuple(labelling.producers.values()),
        copies=copies,
        tensors={value.name or "": labels for value, labels in labelling.labels.items()},
    )


def _rule(node: ir.Node) -> _Rule:
    """What happens to the channels that a node reads."""
    if operator_of(node).affine:
        return _normalize
    if node.domain != "":
        return Labelling.stop
    if is_linear(node):
        return _multiply_by_weights
    if _is_moving(node):
        return _move
    if _is_elementwise(node) or is_spatial(node) or _is_reducing(node):
        return _pass_on
    return _ARITHMETIC.get(node.op_type, Labelling.stop)
