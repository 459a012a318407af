"""Cross-layer equalization: the ranges of channels become similar, and weights make up for the factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import ModelError
from calibrators.host.onnx_session import open_session
from trtint8.models.graph_constants import constant_input, set_constant_input
from trtint8.models.model import runnable
from trtint8.quantization.operators import WEIGHTED

#: Operators with f(s x) = s f(x) for s > 0, for each element on its own.
_ELEMENTWISE = frozenset({"Dropout", "Identity", "LeakyRelu", "PRelu", "Relu"})

#: Operators with f(s x) = s f(x) for s > 0, for each channel of (N, C, spatial...) on its own.
_POOLING = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})

#: Limits of the factors: channels that are nearly always zero would give weights of extreme magnitudes.
_SMALLEST_FACTOR, _LARGEST_FACTOR = 1e-3, 1e3


@dataclass(frozen=True)
class Equalized:
    """A model with equalized activations.

    Attributes:
        model: The new model.
        factors: Tensor name to the factors that its channels were divided by, float64 of shape (channels,).
    """

    model: ir.Model
    factors: Mapping[str, NDArray[np.float64]]


def equalizable(model: ir.Model) -> tuple[str, ...]:
    """The activations that :func:`equalize` can change, in graph order.

    Args:
        model: From :func:`trtint8.models.model.prepare`.

    Returns:
        One tensor name for every weighted node whose output reaches exactly one other weighted node, through
        operators that preserve a positive factor per channel. It is the last tensor between the two nodes,
        the one that is quantized; where a Flatten lies between them, the tensor before the Flatten.
    """
    return tuple(pair.tensor for pair in _pairs(model))


def measure_channel_ranges(
    model: ir.Model, tensors: Sequence[str], feeds: Iterable[FeedDict]
) -> dict[str, NDArray[np.float32]]:
    """The largest magnitude of each channel of activations.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        tensors: Names of activations, from :func:`equalizable`.
        feeds: Calibration data, batch by batch; the whole network is run on it in ONNX Runtime.

    Returns:
        Tensor name to the largest magnitudes, float32 of shape (channels,); 0 without data.

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
    outputs = {value.name for value in copy.graph.outputs}
    measured = [value for node in copy.graph for value in node.outputs if value.name in ranges]
    copy.graph.outputs.extend(value for value in measured if value.name not in outputs)
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

    This is cross-layer equalization (Nagel et al., "Data-Free Quantization Through Weight Equalization and
    Bias Correction", ICCV 2019, section 4.1), applied to activations. The paper equalizes weights that have
    one scale per tensor. In TensorRT weights have one scale per output channel, but activations have one
    scale per tensor: a channel that is a hundred times smaller than another is left with about one step. So
    the range r1 of an activation's channel takes the place of the range of the weights that produce it. With
    r2, the range of the weights that read the channel, the factor is s = sqrt(r1 r2) / r2. Afterwards both
    ranges are sqrt(r1 r2).

    The float network computes the same as before, up to rounding. Pairs are equalized from the last to the
    first, because r2 depends on the factors that the reading weights are divided by for their own output.
    Measured ranges depend on no other pair, so one pass reaches the equilibrium that the paper iterates for.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        channel_ranges: From :func:`measure_channel_ranges`; other tensors are not changed.

    Returns:
        The new model and the factors, which lie in [1/1000, 1000] and are 1 for channels that are zero in
        the activation or in the weights. The ranges of the tensors between the two nodes have changed, so
        the new model must be calibrated again.

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
    """Two weighted nodes with a tensor between them that can be equalized.

    Attributes:
        first: The node that produces the channels.
        second: The node that reads the channels.
        tensor: The last tensor between the nodes that has one index per channel along an axis.
        axis: The axis of the tensor's channels.
        channels: Number of channels.
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
    """The node that reads a value as its first input; None where its producer has other readers."""
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
    """Whether a weighted node's input channels are the output channels of the first node.

    Args:
        node: The weighted node that reads.
        convolution: Whether the first node is a convolution.
        flat: Whether a Flatten lies between them.
    """
    if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) != 0:
        return False
    return (node.op_type in _CONVOLUTIONS) == (convolution and not flat)


def _is_scalable(node: ir.Node) -> bool:
    """Whether a node has constant weights, and a constant bias if any, that factors can be applied to."""
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
    """The numbers of the output channel and of the input channel of every weight.

    Args:
        node: A weighted node.
        shape: The shape of the node's weights.

    Returns:
        Two arrays that broadcast to ``shape``.
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
    # After a Flatten, neighbouring inputs are the positions of one channel.
    return np.asarray(ranges.reshape(pair.channels, -1).max(axis=1), np.float64)


def _factors(made: NDArray[np.float32], read: NDArray[np.float64]) -> NDArray[np.float64]:
    """The factors of channels, from the ranges of an activation and of the weights that read it."""
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
