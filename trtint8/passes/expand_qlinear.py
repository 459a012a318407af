"""QLinearConv and QLinearMatMul as Q/DQ pairs around Conv and MatMul, which TensorRT knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.errors import ModelError

#: Operator to the float one within it.
EXPANDED = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}


class ExpandQLinearPass(ir.passes.InPlacePass):
    """Replaces the operators; what they compute stays the same, but for float rounding."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expands every such node."""
        nodes = [node for node in model.graph if node.op_type in EXPANDED]
        for node in nodes:
            _expand(model.graph, node)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _expand(graph: ir.Graph, node: ir.Node) -> None:
    inputs, name = node.inputs, node.name or ""
    values = _dequantized(graph, node, inputs[0:3], "x", None)
    per_channel = _constant(node, 4).size > 1
    axis = (0 if node.op_type == "QLinearConv" else 1) if per_channel else None
    weights = _dequantized(graph, node, inputs[3:6], "w", axis)
    operands = [values, weights]
    if node.op_type == "QLinearConv" and len(inputs) > 8 and inputs[8] is not None:
        operands.append(_bias(graph, node))
    attributes = list(node.attributes.values())
    inner = ir.Node("", EXPANDED[node.op_type], operands, attributes, name=f"{name}_float")
    inner.outputs[0].name = f"{name}_float_output"
    inner.outputs[0].dtype, inner.outputs[0].shape = ir.DataType.FLOAT, node.outputs[0].shape
    quantize = ir.Node(
        "", "QuantizeLinear", [inner.outputs[0], inputs[6], inputs[7]], name=f"{name}_quantize"
    )
    output = quantize.outputs[0]
    output.type, output.shape = node.outputs[0].type, node.outputs[0].shape
    graph.insert_after(node, [inner, quantize])
    old = node.outputs[0]
    for user, index in tuple(old.uses()):
        user.replace_input_with(index, output)
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = output
    kept, old.name = old.name, f"{name}_replaced"
    graph.remove(node, safe=True)
    output.name = kept


def _dequantized(graph: ir.Graph, node: ir.Node, parameters: Any, what: str, axis: int | None) -> ir.Value:
    attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
    dequantize = ir.Node(
        "", "DequantizeLinear", list(parameters), attributes, name=f"{node.name}_{what}_dequantize"
    )
    value = dequantize.outputs[0]
    value.name, value.dtype = f"{node.name}_{what}_float", ir.DataType.FLOAT
    value.shape = parameters[0].shape
    graph.insert_before(node, dequantize)
    return value


def _bias(graph: ir.Graph, node: ir.Node) -> ir.Value:
    """The int32 bias in float: its scale is the product of the others."""
    data_scale, weight_scale = (_constant(node, index).astype(np.float32) for index in (1, 4))
    scale = data_scale.reshape(-1) * weight_scale.reshape(-1)
    bias = (_constant(node, 8).astype(np.float32) * scale).astype(np.float32)
    name = f"{node.name}_bias_float"
    value = ir.Value(
        name=name,
        shape=ir.Shape(bias.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.tensor(bias, name=name),
    )
    graph.register_initializer(value)
    return value


def _constant(node: ir.Node, index: int) -> NDArray[Any]:
    value = node.inputs[index]
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None:
        raise ModelError(f"input {index} of node '{node.name}' ({node.op_type}) is computed at run time")
    return tensor.numpy()
