"""Takes Q/DQ pairs out of a model, made by any tool, and keeps what they say."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.errors import ModelError
from trtint8.interop.float_movement import moved_data
from trtint8.models.graph_constants import add_initializer
from trtint8.quantization.placement import WEIGHTED

#: Activations that give nothing below zero.
_POSITIVE = ("Relu", "Sigmoid", "Softmax")


@dataclass
class Unquantized:
    """What the pairs of a model said.

    Attributes:
        ranges: Tensor name to the largest magnitude that its pair lets through.
        weight_scales: Name of a constant to the symmetric scales that it had, and the axis along which they
            lie; None for one.
        kept_float: Names of weighted nodes of which an input had no pair.
        restored: Names of the Relu nodes that stood only in a quantizer's lower end, and stand in the graph
            again.
    """

    ranges: dict[str, float] = field(default_factory=dict)
    weight_scales: dict[str, tuple[NDArray[np.float32], int | None]] = field(default_factory=dict)
    kept_float: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)


def unquantize(model: ir.Model) -> Unquantized:
    """Turns a Q/DQ model into a float model, in place.

    Quantized constants become float32 ones of the same values. A pair on an activation goes; where it cut
    everything below zero, as tools do that fuse a Relu into the quantizer, a Relu takes its place.

    Args:
        model: With QuantizeLinear and DequantizeLinear nodes.

    Returns:
        What the pairs said.

    Raises:
        ModelError: A scale or zero point is not constant, or not positive and finite.
    """
    return _Unquantizer(model).run()


class _Unquantizer:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._graph = model.graph
        self._found = Unquantized()
        self._relus: dict[str, ir.Value] = {}

    def run(self) -> Unquantized:
        weighted = [node.name or "" for node in self._graph if node.op_type in WEIGHTED]
        quantized = quantized_nodes(self._model)
        self._found.kept_float = [name for name in weighted if name not in quantized]
        for node in list(self._graph):
            if node.op_type == "DequantizeLinear":
                self._replace(node.outputs[0], self._float_value(node))
        common.RemoveUnusedNodesPass()(self._model)
        return self._found

    def _float_value(self, dequantize: ir.Node) -> ir.Value:
        source = dequantize.inputs[0]
        assert source is not None
        constant = ir.convenience.get_const_tensor(source)
        if constant is not None:
            return self._constant(dequantize, constant.numpy())
        quantize = source.producer()
        if quantize is None or quantize.op_type != "QuantizeLinear" or quantize.inputs[0] is None:
            raise ModelError(
                f"node '{dequantize.name}' dequantizes '{source.name}', which no QuantizeLinear makes; "
                "export the model with Q/DQ pairs"
            )
        if ir.convenience.get_const_tensor(quantize.inputs[0]) is not None:
            return quantize.inputs[0]  # weights that are float still
        return self._activation(quantize, quantize.inputs[0])

    def _constant(self, node: ir.Node, whole: NDArray[np.integer]) -> ir.Value:
        scale, zero_point = parameters(node)
        axis = node.attributes.get_int("axis", 1) if scale.size > 1 else None
        if not zero_point.any():
            self._found.weight_scales[f"{node.outputs[0].name}_float"] = (scale, axis)
        if axis is not None:
            shape = [1] * whole.ndim
            shape[axis] = -1
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        values = (whole.astype(np.float32) - zero_point.astype(np.float32)) * scale
        name = f"{node.outputs[0].name}_float"
        return add_initializer(self._graph, name, values.astype(np.float32).reshape(whole.shape))

    def _activation(self, node: ir.Node, value: ir.Value) -> ir.Value:
        low, high = reach(node)
        if low == 0 and not _is_never_negative(value):
            value = self._relu(value)
        name = value.name or ""
        self._found.ranges[name] = max(self._found.ranges.get(name, 0.0), abs(low), abs(high))
        return value

    def _relu(self, value: ir.Value) -> ir.Value:
        name = value.name or ""
        if name not in self._relus:
            relu = ir.Node("", "Relu", [value], name=f"{name}_Relu")
            relu.outputs[0].name = f"{name}_relu"
            relu.outputs[0].shape, relu.outputs[0].type = value.shape, value.type
            producer = value.producer()
            if producer is not None:
                self._graph.insert_after(producer, relu)
            else:
                self._graph.insert_before(self._graph[0], relu)
            self._relus[name] = relu.outputs[0]
            self._found.restored.append(relu.name or "")
        return self._relus[name]

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        for node, index in tuple(old.uses()):
            node.replace_input_with(index, new)
        for index, output in enumerate(self._graph.outputs):
            if output is old:
                # The output keeps its name, by which callers know it.
                name, old.name = old.name, f"{old.name}_dequantized"
                if (new.name or "") in self._found.ranges:
                    self._found.ranges[name or ""] = self._found.ranges.pop(new.name or "")
                new.name = name
                self._graph.outputs[index] = new


def quantized_nodes(model: ir.Model) -> tuple[str, ...]:
    """Names of the weighted nodes whose operands both come out of Q/DQ pairs."""
    return tuple(
        node.name or ""
        for node in model.graph
        if node.op_type in WEIGHTED and all(map(_is_dequantized, node.inputs[:2]))
    )


def parameters(node: ir.Node) -> tuple[NDArray[np.float32], NDArray[np.integer]]:
    """Scale and zero point of a QuantizeLinear or DequantizeLinear, flat.

    Raises:
        ModelError: They are not constant, or a scale is not positive and finite.
    """
    constants = [
        ir.convenience.get_const_tensor(value) if value is not None else None for value in node.inputs[1:3]
    ]
    if constants[0] is None or (len(node.inputs) > 2 and node.inputs[2] is not None and constants[1] is None):
        raise ModelError(f"the scale or zero point of node '{node.name}' is computed at run time")
    scale = np.asarray(constants[0].numpy(), np.float32).reshape(-1)
    if not ((scale > 0) & np.isfinite(scale)).all():
        bad = scale[~((scale > 0) & np.isfinite(scale))][0]
        raise ModelError(f"a scale of node '{node.name}' is {bad}; scales must be positive and finite")
    zero = constants[1] if len(constants) > 1 else None
    point = np.zeros(scale.shape, np.int64) if zero is None else zero.numpy().reshape(-1).astype(np.int64)
    return scale, point


def reach(node: ir.Node) -> tuple[float, float]:
    """The least and the largest value that a QuantizeLinear lets through."""
    scale, point = parameters(node)
    dtype = node.inputs[2].dtype if len(node.inputs) > 2 and node.inputs[2] is not None else None
    info = np.iinfo(dtype.numpy() if dtype is not None else np.uint8)
    if dtype == ir.DataType.INT8 and not point.any():
        return float(-127 * scale.max()), float(127 * scale.max())  # symmetric
    low, high = (info.min - point) * scale, (info.max - point) * scale
    return float(low.min()), float(high.max())


def _is_dequantized(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type == "DequantizeLinear"


def _is_never_negative(value: ir.Value) -> bool:
    """Whether a Relu or the like stands before a value, so that its quantizer need not stand for one."""
    stored = ir.convenience.get_const_tensor(value)
    if stored is not None:
        return bool((stored.numpy() >= 0).all())
    node = value.producer()
    if node is None or node.op_type in _POSITIVE:
        return node is not None
    if node.op_type in ("AveragePool", "GlobalAveragePool"):
        sources = node.inputs[:1]
    elif node.op_type in ("Add", "Mul"):
        sources = node.inputs
    elif node.op_type == "Resize":
        return False  # cubic interpolation overshoots
    else:
        sources = tuple(moved_data(node).values())
    return bool(sources) and all(source is not None and _is_never_negative(source) for source in sources)
