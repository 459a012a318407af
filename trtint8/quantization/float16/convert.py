"""A model whose layers outside INT8 compute in FP16, for TensorRT that takes types from the graph.

TensorRT 11 and TensorRT for RTX have no FP16 switch: every tensor has the type that stands in the model. So
values become FP16 here, with casts where a node stays in FP32. A quantizer has the type of what it reads, a
dequantizer that of what reads it; their scales are rounded to what FP16 holds, so that both agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from trtint8.models.graph_constants import add_initializer, constant
from trtint8.models.opset import with_opset
from trtint8.models.passes.name_nodes import NameNodesPass
from trtint8.quantization.float16.rules import float32_nodes, signature

#: Q/DQ with FP16 scales came with opset 19.
_OPSET = 19

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
_SHORT = {_HALF: "float16", _FLOAT: "float32"}


def to_float16(
    model: ir.Model, *, float32_io: bool, peaks: Mapping[str, float], name: str
) -> tuple[ir.Model, dict[str, str]]:
    """Converts everything that is float32 and outside INT8 to FP16, but for what would suffer.

    Args:
        model: With or without Q/DQ pairs; not changed.
        float32_io: Whether the model's own inputs and outputs stay float32.
        peaks: Tensor name to the largest magnitude seen in it; may lack tensors. Nodes around tensors that
            come near FP16's end stay in FP32.
        name: What to call the model in a message.

    Returns:
        The new model, of opset 19 or later, and the nodes that stay in FP32 with the reasons.

    Raises:
        ModelError: ONNX cannot convert it to opset 19.
    """
    converted = with_opset(model, _OPSET, name).clone()
    ir.passes.Sequential(
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        NameNodesPass(),
        common.ShapeInferencePass(check_type=False, strict_mode=False),
    )(converted)
    kept = float32_nodes(converted, peaks)
    _Converter(converted, kept, _FLOAT if float32_io else _HALF).run()
    return converted, kept


@dataclass
class _Converter:
    """Rewrites a graph in place; ``ours`` are the values that were float32, whatever they are by now."""

    model: ir.Model
    kept: Mapping[str, str]
    io: ir.DataType
    ours: set[ir.Value] = field(default_factory=set)
    made: dict[tuple[ir.Value, ir.DataType], ir.Value] = field(default_factory=dict)

    def run(self) -> None:
        graph = self.model.graph
        nodes = list(graph)
        values = [*graph.inputs, *graph.initializers.values(), *(v for node in nodes for v in node.outputs)]
        self.ours = {value for value in values if value.dtype == _FLOAT}
        for value in self.ours.intersection(graph.inputs):
            value.dtype = self.io
        for node in nodes:
            self._retype(node)
        for node in list(ir.traversal.RecursiveGraphIterator(graph)):
            self._connect(node)
        for index, value in enumerate(graph.outputs):
            if value in self.ours and value.dtype != self.io:
                graph.outputs[index] = self._renamed_output(value)
        common.RemoveUnusedNodesPass()(self.model)

    def _retype(self, node: ir.Node) -> None:
        """Gives the outputs of a node their types."""
        if node.op_type == "QuantizeLinear" or node.name in self.kept:
            return
        for value, may in zip(node.outputs, signature(node, self.model).outputs, strict=True):
            if value not in self.ours or not may:
                continue
            value.dtype = self._wanted_by_readers(value) if node.op_type == "DequantizeLinear" else _HALF
            if node.op_type == "Cast":
                node.attributes["to"] = ir.AttrInt64("to", _HALF)

    def _wanted_by_readers(self, value: ir.Value) -> ir.DataType:
        """FP16 where any reader takes it: readers in FP32 get a dequantizer of their own."""
        reads = {self._wanted(node, index) for node, index in value.uses()}
        return _HALF if _HALF in reads or (value.is_graph_output() and self.io == _HALF) else _FLOAT

    def _wanted(self, node: ir.Node, index: int) -> ir.DataType:
        """The type that a node wants a float input to have."""
        inner = node.graph is not self.model.graph
        if inner or node.name in self.kept or not signature(node, self.model).inputs[index]:
            return _FLOAT
        return _HALF

    def _connect(self, node: ir.Node) -> None:
        """Gives every float input of a node the type that it wants."""
        if node.op_type == "QuantizeLinear" and node.inputs[0] in self.ours:
            self._rescale(node, node.inputs[0].dtype)
        elif node.op_type == "DequantizeLinear" and node.outputs[0] in self.ours:
            self._rescale(node, node.outputs[0].dtype)
        elif node.op_type != "Cast":  # which takes any type
            for index, value in enumerate(node.inputs):
                if value in self.ours:
                    node.replace_input_with(index, self._typed(value, self._wanted(node, index)))

    def _rescale(self, node: ir.Node, dtype: ir.DataType | None) -> None:
        scale = node.inputs[1]
        assert scale is not None and dtype is not None, "the schema demands both"
        exact = constant(scale)
        if exact is None:
            node.replace_input_with(1, self._typed(scale, dtype))
            return
        key = (scale, dtype)
        if key not in self.made:
            rounded = round_scale(exact).astype(dtype.numpy())
            self.made[key] = add_initializer(self.model.graph, f"{scale.name}_{_SHORT[dtype]}", rounded)
        node.replace_input_with(1, self.made[key])

    def _typed(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """A value in a type: a constant converted, a dequantizer doubled, or a cast."""
        if value.dtype == dtype:
            return value
        key = (value, dtype)
        if key not in self.made:
            self.made[key] = self._retyped(value, dtype)
        return self.made[key]

    def _retyped(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = f"{value.name}_{_SHORT[dtype]}"
        if value.const_value is not None:
            return add_initializer(self.model.graph, name, value.const_value.numpy().astype(dtype.numpy()))
        producer = value.producer()
        if producer is not None and producer.op_type == "DequantizeLinear":
            attributes = list(producer.attributes.values())
            node = ir.Node("", producer.op_type, list(producer.inputs), attributes, name=f"{name}_dequantize")
            self._rescale(node, dtype)
        else:
            node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], name=f"{name}_cast")
        output = node.outputs[0]
        output.name, output.dtype, output.shape = name, dtype, value.shape
        graph = self.model.graph
        if producer is None:
            graph.insert_before(graph[0], node)
        else:
            graph.insert_after(producer, node)
        return output

    def _renamed_output(self, value: ir.Value) -> ir.Value:
        """The model's output in its type, under the name that it had."""
        name = value.name or ""
        output = self._typed(value, self.io)
        value.name = f"{name}_{_SHORT[value.dtype or _FLOAT]}"
        output.name = name
        return output


def round_scale(scale: NDArray[np.floating]) -> NDArray[np.float32]:
    """Scales as FP16 holds them, never smaller, so that no range shrinks and none becomes zero.

    Args:
        scale: Positive, any shape.

    Returns:
        The least FP16 numbers that are not below, as float32.
    """
    exact = scale.astype(np.float32)
    near = exact.astype(np.float16)
    up = np.where(near.astype(np.float32) < exact, np.nextafter(near, np.float16(np.inf)), near)
    return np.asarray(up, np.float32)
