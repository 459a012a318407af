"""Inserts Q/DQ pairs into a model where a placement wants them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.checks import warn_user
from calibrators.data.feeds import AnyFloats, Array, Float32s
from calibrators.errors import Argument, ModelError, enumerated
from calibrators.tables.choice import QMAX
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import add_initializer, read_constant, take_name, value_names
from trtint8.quantization.config import SMALLEST_SCALE, fake_quantize
from trtint8.quantization.operators import lacks_kernel_shape
from trtint8.quantization.placement import Edge, Placement

#: Weights that are rounded at once.
_BLOCK = 1 << 18

#: Name of a weight that was quantized before, and the axis of its channels or None for one scale, to its
#: scales of shape (channels,) or ().
WeightScales = Mapping[tuple[str, int | None], Float32s]


@pause_garbage_collection()
def insert_qdq(
    model: ir.Model,
    placement: Placement,
    amax: Mapping[str, float],
    weight_scales: WeightScales | None = None,
) -> None:
    """Rewires every edge of a placement through QuantizeLinear and DequantizeLinear.

    Each tensor gets one pair, whatever the number of its readers; weights that are read along several axes
    get one for each. Weights stay float32 initializers.
    Zero points are 0, biases are not changed, and tensors keep their names. Convolutions tell the shape of
    their kernel.

    Args:
        model: The float model that the placement was made for; changed in place.
        placement: The edges that get pairs.
        amax: Tensor name to amax for every tensor in ``placement.tensors``.
        weight_scales: Scales that weights keep, so that they are quantized to the same integers as before;
            the scales of other weights are computed from their values.

    Raises:
        ModelError: Weights are not finite.

    Warns:
        UserWarning: A range is 0, or a tensor is too small for INT8.
    """
    writer = PairWriter(model)
    scales = activation_scales(placement, amax)
    small = [tensor for tensor, scale in scales.items() if scale <= SMALLEST_SCALE]
    for edge in placement.activations:
        writer.quantize(edge, scales[edge.tensor])
    for edge in placement.weights:
        weights = read_weights(writer.nodes[edge.node], edge)
        kept = (weight_scales or {}).get((edge.tensor, edge.axis))
        scale = weight_scale(weights, edge.axis) if kept is None else kept
        _check_finite(scale, edge)
        if kept is None and (scale <= SMALLEST_SCALE).all():
            small.append(edge.tensor)
        writer.quantize(edge, scale)
        writer.tell_kernel_shape(edge, weights.shape)
    if small:
        largest, step = f"{SMALLEST_SCALE * QMAX:.2g}", f"{SMALLEST_SCALE:.2g}"
        warn_user(
            f"no value of {enumerated(map(repr, small))} reaches {largest}, and INT8 rounds to multiples of "
            f"TensorRT's smallest scale, {step}; keep the layers that read it in float "
            f"({Argument('keep_float')}), or scale the values up"
        )


def activation_scales(placement: Placement, amax: Mapping[str, float]) -> dict[str, np.float32]:
    """The scale of every quantized activation; tensors that share one get the widest range among them.

    A range of 0 is that of a tensor which was zero in all calibration samples. Any scale represents zero, so
    the tensor gets the scale of the range [-1, 1], with a warning if other samples could change it.

    Args:
        placement: Tells which tensors are quantized, and which share a scale.
        amax: Tensor name to amax for every tensor in ``placement.tensors``.

    Returns:
        Tensor name to scale: amax / 127.

    Warns:
        UserWarning: A range is 0.
    """
    ranges = {tensor: amax[tensor] for tensor in placement.tensors}
    alive = {placement.configs.dominator(tensor) for tensor, value in ranges.items() if value > 0}
    zero = [tensor for tensor in ranges if placement.configs.dominator(tensor) not in alive]
    ranges |= dict.fromkeys(zero, 1.0)
    if zero := [tensor for tensor in zero if tensor not in placement.unchanging]:
        tensors = f"tensor '{zero[0]}'" if len(zero) == 1 else f"{len(zero)} tensors, such as '{zero[0]}'"
        warn_user(
            f"the table has a range of 0 for {tensors}, as for what is zero in all calibration samples, so 1 "
            "is taken; unless that is always zero, use samples that activate it, or set a range by hand"
        )
    ranges = {tensor: max(value, SMALLEST_SCALE * QMAX) for tensor, value in ranges.items()}
    return {
        tensor: np.float32(config.scale) for tensor, config in placement.configs.activated(ranges).items()
    }


def weight_scale(weights: AnyFloats, axis: int | None) -> Float32s:
    """The scales of weights: max |w| / 127, per channel or for the whole tensor.

    Args:
        weights: Weights of any shape.
        axis: The axis of the output channels, or None for one scale.

    Returns:
        Scales of shape (channels,), or () without an axis, float32. A channel of zeros gets the scale 1.
    """
    others = None if axis is None else tuple(i for i in range(weights.ndim) if i != axis)
    with np.errstate(invalid="ignore"):  # some kinds of NaN
        largest = np.maximum(weights.max(axis=others), -weights.min(axis=others)).astype(np.float64)
    scale = np.where(largest == 0, 1.0, np.maximum(largest / QMAX, SMALLEST_SCALE))
    return np.asarray(scale, np.float32)


def rounded_weights(placement: Placement, edge: Edge, weights: Float32s) -> Float32s:
    """Quantizes constant weights and dequantizes them again.

    Args:
        placement: Tells how the weights are quantized.
        edge: The edge through which a layer reads them.
        weights: The weights, float32.

    Returns:
        float32, of the same shape.

    Raises:
        ModelError: The weights are not finite.
    """
    # Others may read the same weights along another axis.
    config = placement.configs[edge.tensor].along(edge.axis)
    rounded = np.empty(weights.shape, np.float32)
    whole = None if edge.axis == 0 else weight_scale(weights, edge.axis)
    # Block by block, because what is computed on the way stays in the processor's cache then.
    rows = max(1, _BLOCK * len(weights) // max(1, weights.size))
    for start in range(0, len(weights), rows):
        block = weights[start : start + rows]
        scale = weight_scale(block, edge.axis) if whole is None else whole
        _check_finite(scale, edge)
        rounded[start : start + rows] = fake_quantize(block, config.with_scale(scale))
    return rounded


def read_weights(node: ir.Node, edge: Edge) -> Array:
    """The constant weights that a node reads through an edge of a placement."""
    weights = read_constant(node.inputs[edge.index])
    assert weights is not None, f"the placement calls '{edge.tensor}' a weight"
    return weights


def _check_finite(scale: Float32s, edge: Edge) -> None:
    if not np.isfinite(scale).all():
        raise ModelError(
            f"the weights '{edge.tensor}' of node '{edge.node}' hold NaN or infinity; correct them, or keep "
            "the node in float"
        )


def scale_name(tensor: str) -> str:
    """The name of the initializer that holds a tensor's scale."""
    return f"{tensor}_scale"


def make_pair(
    value: ir.Value, scale: ir.Value, zero_point: ir.Value, *, axis: int | None = None
) -> tuple[ir.Node, ir.Node]:
    """Makes the QuantizeLinear and the DequantizeLinear of a value, without names and in no graph yet."""
    attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
    quantize = ir.Node("", "QuantizeLinear", [value, scale, zero_point], attributes)
    (integers,) = quantize.outputs
    integers.shape, integers.type = value.shape, ir.TensorType(ir.DataType.INT8)
    dequantize = ir.Node("", "DequantizeLinear", [integers, scale, zero_point], attributes)
    (values,) = dequantize.outputs
    values.shape, values.type = value.shape, ir.TensorType(ir.DataType.FLOAT)
    return quantize, dequantize


class PairWriter:
    """Inserts one pair per tensor and axis."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self.nodes = {node.name: node for node in model.graph}
        self._names = value_names(model.graph)
        self._node_names = {name for name in self.nodes if name}
        self._pairs: dict[tuple[str, int | None], ir.Value] = {}

    def quantize(self, edge: Edge, scale: Float32s | np.float32) -> None:
        """Lets a node read a pair with this scale."""
        node = self.nodes[edge.node]
        key = (edge.tensor, edge.axis)
        if key not in self._pairs:
            value = node.inputs[edge.index]
            assert value is not None
            self._pairs[key] = self._insert_pair(value, np.asarray(scale, np.float32), edge.axis, node)
        node.replace_input_with(edge.index, self._pairs[key])

    def tell_kernel_shape(self, edge: Edge, weights: tuple[int, ...]) -> None:
        """Writes the shape of a convolution's kernel, which ONNX lets exporters leave out.

        The parser of TensorRT 8.6 looks for it there alone where weights have a pair.
        """
        node = self.nodes[edge.node]
        if lacks_kernel_shape(node):
            node.attributes.add(ir.AttrInt64s("kernel_shape", weights[2:]))

    def _insert_pair(self, value: ir.Value, scale: Float32s, axis: int | None, reader: ir.Node) -> ir.Value:
        name = value.name or ""
        parameters = [
            self._initializer(scale_name(name), scale),
            self._initializer(f"{name}_zero_point", np.zeros(scale.shape, np.int8)),
        ]
        quantize, dequantize = make_pair(value, *parameters, axis=axis)
        for node, suffix in ((quantize, "quantized"), (dequantize, "dequantized")):
            node.name = take_name(f"{name}_{node.op_type}", self._node_names)
            node.outputs[0].name = take_name(f"{name}_{suffix}", self._names)
        producer = value.producer()
        if producer is not None:
            self._graph.insert_after(producer, [quantize, dequantize])
        elif value.is_graph_input():
            self._graph.insert_before(self._graph[0], [quantize, dequantize])
        else:
            self._graph.insert_before(reader, [quantize, dequantize])
        return dequantize.outputs[0]

    def _initializer(self, name: str, array: NDArray[np.generic]) -> ir.Value:
        return add_initializer(self._graph, take_name(name, self._names), array)
