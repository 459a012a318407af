"""Operators that take whole numbers with scales and give such, as Q/DQ pairs around the float operator.

ONNX has QLinearConv and QLinearMatMul, ONNX Runtime's own domain has the others ("Contrib Operators",
ONNX Runtime documentation). TensorRT knows none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtint8.interop.pairs import (
    WHOLE,
    Parameters,
    dequantized,
    input_at,
    supplant,
)
from trtint8.models.graph_constants import add_initializer, constant

#: Where the operators are: ONNX's domain and ONNX Runtime's.
_DOMAINS = ("", "com.microsoft")

#: Since this opset Softmax works along one axis; before, along all axes from one on.
_SOFTMAX_ALONG_ONE = 13


@dataclass(frozen=True)
class _Form:
    """How an operator's inputs are laid out. A scale and a zero point follow each quantized operand.

    Attributes:
        operator: The float operator within.
        operands: Indices of the quantized operands.
        result: Index of the result's scale, which its zero point follows.
        bias: Index of the int32 bias, whose scale is the product of the operands' scales.
        plain: Indices of inputs that are not quantized; they come first.
        repeated: Whether further operands follow in the same layout.
        weights: Whether the second operand may have a scale a channel.
    """

    operator: str
    operands: tuple[int, ...]
    result: int
    bias: int | None = None
    plain: tuple[int, ...] = ()
    repeated: bool = False
    weights: bool = False


#: Operator to its layout.
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

#: Attributes of theirs that the float operator lacks.
_DROPPED = ("channels_last", "opset")


class ExpandQLinearPass(ir.passes.InPlacePass):
    """Replaces the operators; what they compute stays the same, but for float rounding.

    Those that cannot be replaced stay; :func:`qlinear_obstacle` says why.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expands in graph order, so that the types of what is quantized are known further down."""
        modified = False
        for node in list(model.graph):
            if is_qlinear(node) and qlinear_obstacle(model, node) is None:
                _expand(model.graph, node, QLINEAR[node.op_type])
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def is_qlinear(node: ir.Node) -> bool:
    """Whether a node is of such an operator."""
    return node.domain in _DOMAINS and node.op_type in QLINEAR


def qlinear_obstacle(model: ir.Model, node: ir.Node) -> str | None:
    """Why a node of such an operator cannot be expanded.

    Args:
        model: The node's model.
        node: For which :func:`is_qlinear` holds.

    Returns:
        The reason, or None.
    """
    form = QLINEAR[node.op_type]
    if node.attributes.get_int("channels_last", 0):
        return "its data is channels_last, and TensorRT takes channels first"
    indices = _operands(node, form)
    for index in (*indices, form.result - 1):
        scale, zero = input_at(node, index + 1), input_at(node, index + 2)
        for value in (scale, zero):
            if value is not None and constant(value) is None:
                return f"its scale or zero point '{value.name}' is computed at run time"
        if zero is not None and zero.dtype not in WHOLE:
            return f"'{zero.name}' is neither int8 nor uint8"
        scales = constant(scale)
        if scales is not None and scales.size > 1 and not (form.weights and index == indices[1]):
            return f"'{scale.name if scale else ''}' is a scale a channel of an activation"
    if form.weights and _is_per_channel(node, indices[1]):
        weights, scales = (constant(node.inputs[indices[1] + offset]) for offset in (0, 1))
        if weights is None or weights.ndim < 2 or scales is None or scales.ndim != 1:
            return "it has a scale a channel for an operand that is not constant weights"
    bias = input_at(node, form.bias) if form.bias is not None else None
    if bias is not None and constant(bias) is None:
        return f"its bias '{bias.name}' is computed at run time"
    return _softmax_obstacle(model, node)


def _softmax_obstacle(model: ir.Model, node: ir.Node) -> str | None:
    """Softmax changed its meaning, and the node has that of the opset that it names."""
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
        operands.append(dequantized(node, data, parameters, f"{node.name}_input{position}", axis))
    if form.bias is not None and input_at(node, form.bias) is not None:
        operands.append(_bias(graph, node, form))
    attributes = [attribute for name, attribute in node.attributes.items() if name not in _DROPPED]
    if form.operator == "Softmax" and "axis" not in node.attributes:
        attributes.append(ir.AttrInt64("axis", -1))  # Softmax's own default is another before opset 13
    inner = ir.Node("", form.operator, operands, attributes, name=node.name)
    inner.outputs[0].dtype = ir.DataType.FLOAT
    supplant(node, inner, [_result(graph, node, form)])


def _operands(node: ir.Node, form: _Form) -> tuple[int, ...]:
    return tuple(range(form.operands[0], len(node.inputs), 3)) if form.repeated else form.operands


def _is_per_channel(node: ir.Node, index: int) -> bool:
    scale = constant(node.inputs[index + 1])
    return scale is not None and scale.size > 1


def _channels_axis(node: ir.Node, weights: ir.Value) -> int:
    if node.op_type == "QLinearConv" or bool(node.attributes.get_int("transB", 0)):
        return 0
    array = constant(weights)
    assert array is not None
    return int(array.ndim - 1)


def _result(graph: ir.Graph, node: ir.Node, form: _Form) -> Parameters | None:
    """What quantizes the result; None where it is float, as QGemm may leave it."""
    scale, zero = input_at(node, form.result), input_at(node, form.result + 1)
    if scale is None:
        node.outputs[0].dtype = ir.DataType.FLOAT
        return None
    data = node.inputs[_operands(node, form)[0]]
    if zero is None and data is not None and data.dtype == ir.DataType.INT8:
        # A QuantizeLinear without a zero point makes uint8.
        zero = add_initializer(graph, f"{node.name}_output_zero_point", np.zeros((), np.int8))
    return Parameters(scale, zero)


def _bias(graph: ir.Graph, node: ir.Node, form: _Form) -> ir.Value:
    """The int32 bias in float: its scale is the product of the others."""
    assert form.bias is not None
    first, second = (constant(node.inputs[index + 1]) for index in form.operands)
    whole = constant(node.inputs[form.bias])
    assert first is not None and second is not None and whole is not None
    scale = first.astype(np.float64).reshape(-1) * second.astype(np.float64).reshape(-1)
    scale *= node.attributes.get_float("alpha", 1.0)
    return add_initializer(graph, f"{node.name}_bias_float", (whole * scale).astype(np.float32))
