"""Replaces operators that read and write integers with scales by Q/DQ pairs around float operators.

ONNX defines QLinearConv and QLinearMatMul, ONNX Runtime's own domain defines the others ("Contrib Operators",
ONNX Runtime documentation). TensorRT has none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtint8.interop.pairs import (
    INTEGER_TYPES,
    Parameters,
    input_at,
    insert_dequantize,
    replace_by_float,
    with_type_of,
)
from trtint8.models.graph_constants import add_initializer, read_constant

#: The domains of the operators: ONNX's and ONNX Runtime's.
_DOMAINS = ("", "com.microsoft")

#: From this opset on, Softmax works along one axis; before, along an axis and all axes after it.
_SOFTMAX_ALONG_ONE = 13


@dataclass(frozen=True)
class _Form:
    """How an operator's inputs are laid out. A scale and a zero point follow each quantized operand.

    Attributes:
        operator: The float operator that the operator computes.
        operands: Indices of the quantized operands.
        result: Index of the result's scale, which is followed by its zero point.
        bias: Index of the int32 bias, whose scale is the product of the operands' scales; None for no bias.
        plain: Indices of inputs that are not quantized; the float operator reads them first.
        repeated: Whether further operands follow in the same layout.
        weights: Whether the second operand may have one scale per channel.
    """

    operator: str
    operands: tuple[int, ...]
    result: int
    bias: int | None = None
    plain: tuple[int, ...] = ()
    repeated: bool = False
    weights: bool = False


#: Operator to the layout of its inputs.
QLINEAR = {
    "QLinearConv": _Form("Conv", (0, 3), 6, bias=8, weights=True),
    "QLinearMatMul": _Form("MatMul", (0, 3), 6, weights=True),
    "QGemm": _Form("Gemm", (0, 3), 7, bias=6, weights=True),
    "QLinearAdd": _Form("Add", (0, 3), 6),
    "QLinearMul": _Form("Mul", (0, 3), 6),
    "QLinearWhere": _Form("Where", (1, 4), 7, plain=(0,)),
    "QLinearConcat": _Form("Concat", (2,), 0, repeated=True),
    "QLinearAveragePool": _Form("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": _Form("LeakyRelu", (0,), 3),
    "QLinearSigmoid": _Form("Sigmoid", (0,), 3),
    "QLinearSoftmax": _Form("Softmax", (0,), 3),
}

#: Attributes of the operators that the float operators lack.
_DROPPED = ("channels_last", "opset")


class ExpandQLinearPass(ir.passes.InPlacePass):
    """Replaces the operators; the model computes the same as before, except for float rounding.

    Operators that cannot be replaced stay; :func:`qlinear_obstacle` says why.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expands in graph order, so that the types of an operator's inputs are known."""
        modified = False
        for node in list(model.graph):
            if is_qlinear(node) and qlinear_obstacle(model, node) is None:
                _expand(model.graph, node, QLINEAR[node.op_type])
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def is_qlinear(node: ir.Node) -> bool:
    """Whether a node's operator takes and gives integers with scales, and has a float operator."""
    return node.domain in _DOMAINS and node.op_type in QLINEAR


def qlinear_obstacle(model: ir.Model, node: ir.Node) -> str | None:
    """Why a node that takes and gives integers cannot be expanded.

    Args:
        model: The node's model.
        node: A node for which :func:`is_qlinear` is true.

    Returns:
        The reason, in words for the user; None where the node can be expanded.
    """
    form = QLINEAR[node.op_type]
    if node.attributes.get_int("channels_last", 0):
        return "its data is channels_last, and TensorRT takes channels first"
    indices = _operands(node, form)
    for index in (*indices, form.result - 1):
        scale, zero_point = input_at(node, index + 1), input_at(node, index + 2)
        for value in (scale, zero_point):
            if value is not None and read_constant(value) is None:
                return f"its scale or zero point '{value.name}' is computed at run time"
        if zero_point is not None and zero_point.dtype not in INTEGER_TYPES:
            return f"'{zero_point.name}' is neither int8 nor uint8"
        scales = read_constant(scale)
        if scales is not None and scales.size > 1 and not (form.weights and index == indices[1]):
            return f"'{scale.name if scale else ''}' has one scale per channel of an activation"
    if form.weights and _is_per_channel(node, indices[1]):
        weights, scales = (read_constant(node.inputs[indices[1] + offset]) for offset in (0, 1))
        if weights is None or weights.ndim < 2 or scales is None or scales.ndim != 1:
            return "it has one scale per channel for an operand that is not constant weights"
    bias = input_at(node, form.bias) if form.bias is not None else None
    if bias is not None and read_constant(bias) is None:
        return f"its bias '{bias.name}' is computed at run time"
    return _softmax_obstacle(model, node)


def _softmax_obstacle(model: ir.Model, node: ir.Node) -> str | None:
    """Why a QLinearSoftmax cannot be expanded: Softmax changed its meaning, and the node names its opset."""
    if node.op_type != "QLinearSoftmax" or node.attributes.get_int("axis", -1) == -1:
        return None
    meant = node.attributes.get_int("opset", _SOFTMAX_ALONG_ONE)
    if (meant < _SOFTMAX_ALONG_ONE) == (model.opset_imports.get("", 0) < _SOFTMAX_ALONG_ONE):
        return None
    return f"it is the Softmax of opset {meant}, and the model's opset has another"


def _expand(graph: ir.Graph, node: ir.Node, form: _Form) -> None:
    operands = [node.inputs[index] for index in form.plain]
    indices = _operands(node, form)
    for position, index in enumerate(indices):
        data, scale = node.inputs[index], node.inputs[index + 1]
        assert data is not None and scale is not None
        per_channel = form.weights and position == 1 and _is_per_channel(node, index)
        axis = _channels_axis(node, data) if per_channel else None
        parameters = Parameters(scale, input_at(node, index + 2))
        operands.append(insert_dequantize(node, data, parameters, f"{node.name}_input{position}", axis))
    if form.bias is not None and input_at(node, form.bias) is not None:
        operands.append(_bias(graph, node, form))
    attributes = [attribute for name, attribute in node.attributes.items() if name not in _DROPPED]
    if form.operator == "Softmax" and "axis" not in node.attributes:
        attributes.append(ir.AttrInt64("axis", -1))  # Softmax's own default is another before opset 13
    inner = ir.Node("", form.operator, operands, attributes, name=node.name)
    inner.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    replace_by_float(node, inner, [_result(graph, node, form)])


def _operands(node: ir.Node, form: _Form) -> tuple[int, ...]:
    return tuple(range(form.operands[0], len(node.inputs), 3)) if form.repeated else form.operands


def _is_per_channel(node: ir.Node, index: int) -> bool:
    scale = read_constant(node.inputs[index + 1])
    return scale is not None and scale.size > 1


def _channels_axis(node: ir.Node, weights: ir.Value) -> int:
    if node.op_type == "QLinearConv" or bool(node.attributes.get_int("transB", 0)):
        return 0
    array = read_constant(weights)
    assert array is not None
    return int(array.ndim - 1)


def _result(graph: ir.Graph, node: ir.Node, form: _Form) -> Parameters | None:
    """The parameters of the result; None where it is float, as QGemm allows."""
    scale, zero_point = input_at(node, form.result), input_at(node, form.result + 1)
    if scale is None:
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        return None
    data = node.inputs[_operands(node, form)[0]]
    return with_type_of(data, Parameters(scale, zero_point), graph, f"{node.name}_output")


def _bias(graph: ir.Graph, node: ir.Node, form: _Form) -> ir.Value:
    """The int32 bias in float: its scale is the product of the operands' scales."""
    assert form.bias is not None
    first, second = (read_constant(node.inputs[index + 1]) for index in form.operands)
    bias = read_constant(node.inputs[form.bias])
    assert first is not None and second is not None and bias is not None
    scale = first.astype(np.float64).reshape(-1) * second.astype(np.float64).reshape(-1)
    scale *= node.attributes.get_float("alpha", 1.0)
    return add_initializer(graph, f"{node.name}_bias_float", (bias * scale).astype(np.float32))
