"""Channels of activations made alike, by weights that take over the difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import ModelError
from calibrators.host.onnx_session import open_session
from trtint8.models.model import runnable
from trtint8.quantization.operators import WEIGHTED
from trtint8.tuning.weights import constant_input, set_constant_input

#: f(s x) = s f(x) for s > 0, value by value.
_ELEMENTWISE = frozenset({"Dropout", "Identity", "LeakyRelu", "PRelu", "Relu"})

#: The same, channel by channel, of (N, C, spatial...).
_POOLING = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})

#: Channels that are hardly ever used must not drive weights out of float32's comfortable range.
_SMALLEST_FACTOR, _LARGEST_FACTOR = 1e-3, 1e3


@dataclass(frozen=True)
class Equalized:
    """A model with equalized activations.

    Attributes:
        model: The new model.
        factors: Tensor name to what each of its channels was divided by, float64 of shape (channels,).
    """

    model: ir.Model
    factors: Mapping[str, NDArray[np.float64]]


def equalizable(model: ir.Model) -> tuple[str, ...]:
    """The activations that :func:`equalize` can work on, in graph order.

    Args:
        model: From :func:`trtint8.models.model.prepare`.

    Returns:
        For every weighted node whose output reaches exactly one other weighted node, through operators that
        let a positive factor a channel pass, the last tensor between them: the one that is quantized. Before
        a Flatten, the tensor before it.
    """
    return tuple(pair.tensor for pair in _pairs(model))


def measure_channel_ranges(
    model: ir.Model, tensors: Sequence[str], feeds: Iterable[FeedDict]
) -> dict[str, NDArray[np.float32]]:
    """The largest magnitude of each channel of activations.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        tensors: Of those that :func:`equalizable` names.
        feeds: Calibration data, batch by batch. It is run as a whole network in ONNX Runtime.

    Returns:
        Tensor name to float32 of shape (channels,); 0 without data.

    Raises:
        ModelError: A tensor is not among :func:`equalizable`.
    """
    pairs = _pairs_named(model, tensors)
    if not tensors:
        return {}
    ranges: dict[str, NDArray[np.float32]] = {
        name: np.zeros(pairs[name].channels, np.float32) for name in tensors
    }
    copy = model.clone()
    given = {value.name for value in copy.graph.outputs}
    made = [value for node in copy.graph for value in node.outputs if value.name in ranges]
    copy.graph.outputs.extend(value for value in made if value.name not in given)
    with runnable(copy) as source:
        session = open_session(source, optimize=True)
    for feed in feeds:
        for name, values in zip(tensors, session.run(list(tensors), feed), strict=True):
            axis = pairs[name].axis % values.ndim
            others = tuple(other for other in range(values.ndim) if other != axis)
            np.maximum(ranges[name], np.abs(values).max(axis=others), out=ranges[name])
    return ranges


def equalize(model: ir.Model, channel_ranges: Mapping[str, NDArray[np.float32]]) -> Equalized:
    """Divides channels of activations by factors, and multiplies the weights that read them.

    Cross-layer equalization (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
    Correction", ICCV 2019, section 4.1), turned to activations. There it makes weights with one scale a
    tensor bearable. TensorRT's weights have a scale for each output channel already, but its activations have
    one for the whole tensor: a channel that is a hundred times smaller than another keeps one step of it. So
    the range of an activation's channel, r1, takes the place of that of the weights that make it. With r2,
    the range of the weights that read the channel, the factor is s = sqrt(r1 r2) / r2, after which both are
    sqrt(r1 r2): wide channels are made smaller as far as the weights that read them can bear it.

    What the float network computes stays the same, up to rounding. Pairs are taken from the last to the
    first, because r2 depends on what the reading weights are divided by for their own output; measured ranges
    depend on no other pair, so the equilibrium that the paper iterates for is reached at once.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        channel_ranges: From :func:`measure_channel_ranges`; tensors that are not in it are left alone.

    Returns:
        The new model and the factors, within 1/1000 to 1000, and 1 for channels that are zero on either side.
        Ranges of the tensors between the two nodes are other ones now: calibrate again.

    Raises:
        ModelError: A tensor is not among :func:`equalizable`, or has another number of channels.
    """
    copy = model.clone()
    pairs = _pairs_named(copy, channel_ranges)
    for name, ranges in channel_ranges.items():
        if ranges.shape != (pairs[name].channels,):
            raise ModelError(
                f"the ranges of '{name}' have shape {ranges.shape}, but it has {pairs[name].channels} "
                "channels; measure them on this model"
            )
    factors: dict[str, NDArray[np.float64]] = {}
    dividing: dict[ir.Node, NDArray[np.float64]] = {}
    multiplying: dict[ir.Node, NDArray[np.float64]] = {}
    for name, pair in reversed(pairs.items()):
        if name in channel_ranges:
            weights = _scaled(pair.second, _weights(pair.second), None, dividing.get(pair.second))
            factor = _factors(channel_ranges[name], _input_ranges(pair, weights))
            factors[name] = dividing[pair.first] = multiplying[pair.second] = factor
    for node in copy.graph:
        if node in dividing or node in multiplying:
            _rescale(node, multiplying.get(node), dividing.get(node))
    return Equalized(copy, {name: factors[name] for name in channel_ranges})


@dataclass(frozen=True)
class _Pair:
    """Two weighted nodes, and what lies between them.

    Attributes:
        first: Makes the channels.
        second: Reads them.
        tensor: The last tensor between them with a channel an index.
        axis: Where its channels lie.
        channels: How many.
    """

    first: ir.Node
    second: ir.Node
    tensor: str
    axis: int
    channels: int


def _pairs(model: ir.Model) -> list[_Pair]:
    found = (_pair(node) for node in model.graph if _is_scalable(node))
    return [pair for pair in found if pair is not None]


def _pairs_named(model: ir.Model, tensors: Iterable[str]) -> dict[str, _Pair]:
    pairs = {pair.tensor: pair for pair in _pairs(model)}
    for name in tensors:
        if name not in pairs:
            raise ModelError(
                f"the channels of '{name}' cannot be equalized: it does not lie alone between two layers "
                f"with weights; of this model, {', '.join(map(repr, pairs)) or 'no tensor'} does"
            )
    return pairs


def _pair(first: ir.Node) -> _Pair | None:
    convolution = first.op_type in _CONVOLUTIONS
    value, tensor, flat = first.outputs[0], first.outputs[0], False
    while (reader := _only_reader(value)) is not None:
        if _is_scalable(reader):
            if _reads_channels(reader, convolution, flat):
                return _Pair(first, reader, tensor.name or "", 1 if convolution else -1, _channels(first))
            return None
        pools = convolution and not flat
        if reader.op_type == "Flatten" and pools and reader.attributes.get_int("axis", 1) == 1:
            flat = True
        elif reader.op_type not in _ELEMENTWISE and not (reader.op_type in _POOLING and pools):
            return None
        value = reader.outputs[0]
        if not flat:
            tensor = value
    return None


def _only_reader(value: ir.Value) -> ir.Node | None:
    """The one node that reads a value as its first input, where nothing else needs what its node makes."""
    node = value.producer()
    assert node is not None
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return None
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    reader, index = uses[0]
    return reader if index == 0 and reader.domain == "" and reader.graph is node.graph else None


def _reads_channels(node: ir.Node, convolution: bool, flat: bool) -> bool:
    """Whether a weighted node's input channels are those that the first node made."""
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) != 0:
        return False
    return (node.op_type in _CONVOLUTIONS) == (convolution and not flat)


def _is_scalable(node: ir.Node) -> bool:
    """Whether a node has weights, and a bias if any, that can be multiplied."""
    if node.op_type not in WEIGHTED or node.domain != "":
        return False
    weights = constant_input(node, 1)
    if weights is None or weights.dtype != np.float32 or (node.op_type == "MatMul" and weights.ndim != 2):
        return False
    computed_bias = len(node.inputs) > 2 and node.inputs[2] is not None and constant_input(node, 2) is None
    return not computed_bias


def _weights(node: ir.Node) -> NDArray[np.float64]:
    weights = constant_input(node, 1)
    assert weights is not None
    return weights.astype(np.float64)


def _channels(node: ir.Node) -> int:
    outputs, _ = _channel_numbers(node, _weights(node).shape)
    return int(outputs.max()) + 1


def _channel_numbers(node: ir.Node, shape: tuple[int, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For every weight the number of its output channel and of its input channel, to be broadcast.

    Args:
        node: A weighted node.
        shape: Of its weights.
    """
    first, second = np.ix_(*(np.arange(size) for size in shape[:2]))
    if node.op_type not in _CONVOLUTIONS:
        transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        return (first, second) if transposed else (second, first)
    # Axis 0 counts the channels of all groups, axis 1 those of the other side within the group.
    group = first // (shape[0] // node.attributes.get_int("group", 1))
    within = group * shape[1] + second
    kernel = (1,) * (len(shape) - 2)
    first, within = first.reshape(*first.shape, *kernel), within.reshape(*within.shape, *kernel)
    return (first, within) if node.op_type == "Conv" else (within, first)


def _input_ranges(pair: _Pair, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest magnitude among the weights that read each channel."""
    peaks = np.abs(weights).max(axis=tuple(range(2, weights.ndim)), keepdims=True)
    _, inputs = _channel_numbers(pair.second, weights.shape)
    ranges = np.zeros(int(inputs.max()) + 1)
    np.maximum.at(ranges, np.broadcast_to(inputs, peaks.shape), peaks)
    # After a Flatten, neighbouring inputs are the places of one channel.
    return np.asarray(ranges.reshape(pair.channels, -1).max(axis=1), np.float64)


def _factors(made: NDArray[np.float32], read: NDArray[np.float64]) -> NDArray[np.float64]:
    made = made.astype(np.float64)
    alive = (made > 0) & (read > 0) & np.isfinite(made)
    read = np.where(alive, read, 1.0)
    factors = np.sqrt(np.where(alive, made, 1.0) * read) / read
    return np.where(alive, np.clip(factors, _SMALLEST_FACTOR, _LARGEST_FACTOR), 1.0)


def _rescale(
    node: ir.Node, multiplier: NDArray[np.float64] | None, divisor: NDArray[np.float64] | None
) -> None:
    weights = _scaled(node, _weights(node), multiplier, divisor)
    set_constant_input(node, 1, weights.astype(np.float32))
    bias = constant_input(node, 2)
    if bias is not None and divisor is not None:
        set_constant_input(node, 2, (bias / divisor).astype(np.float32))


def _scaled(
    node: ir.Node,
    weights: NDArray[np.float64],
    multiplier: NDArray[np.float64] | None,
    divisor: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Weights times a factor for each input channel, divided by one for each output channel."""
    outputs, inputs = _channel_numbers(node, weights.shape)
    if multiplier is not None:
        places = (int(inputs.max()) + 1) // len(multiplier)
        weights = weights * multiplier[inputs // places]
    return weights if divisor is None else weights / divisor[outputs]
