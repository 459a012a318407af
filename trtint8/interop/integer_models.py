"""Brings models whose operators compute on integers into Q/DQ form, and says which nodes stay and why.

Three kinds become Q/DQ pairs around float operators. QLinearConv and QLinearMatMul are ONNX's; ONNX Runtime's
own domain has others like them ("Contrib Operators", ONNX Runtime documentation). TensorRT has none of them.
ConvInteger and MatMulInteger stand in the pattern that ONNX Runtime's dynamic quantization writes: a
DynamicQuantizeLinear, the integer operator, a Cast, and a Mul by the product of both scales ("Quantize ONNX
Models", ONNX Runtime documentation). Operators that only move data get a pair on either side where they move
integers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.errors import ModelError
from calibrators.operators import Picks, Values, operator_of
from trtint8.interop.pairs import (
    INTEGER_TYPES,
    Parameters,
    agree,
    input_at,
    insert_dequantize,
    quantized_type,
    quantized_values,
    read_parameters,
    replace_by_float,
    replace_value,
    with_type_of,
)
from trtint8.models.graph import (
    add_initializer,
    as_model_errors,
    is_constant,
    nodes_inside,
    read_constant,
    run_passes,
)
from trtint8.models.model import OLDEST_OPSET
from trtint8.models.opset import with_opset
from trtint8.models.passes.fold_constants import FoldConstantsPass
from trtint8.models.passes.simplify import InlineFunctionsPass, NameNodesPass

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class Expanded:
    """A model whose integer operators were replaced, as far as possible.

    Attributes:
        original: The model as it was, with the nodes of functions in place of those that call them, a unique
            name for every node, and constants in place of the nodes that compute them, except pairs.
        graph_model: The model with Q/DQ pairs instead. The node that replaces an operator has its name.
        dynamic: Names of the weighted nodes that are float now because the scale of their input was computed
            at run time.
        moved: Names of the nodes that moved integers.
        obstacles: Name of a node that still computes on integers to the reason.
        folded: Name of a node that computed integers, a scale or a zero point of constants to its operator.
    """

    original: ir.Model
    graph_model: ir.Model
    dynamic: tuple[str, ...]
    moved: tuple[str, ...]
    obstacles: dict[str, str]
    folded: dict[str, str]


def expand(model: ir.Model, name: str) -> Expanded:
    """Replaces integer operators by Q/DQ pairs around float operators, or by float operators alone.

    Args:
        model: Any model; not changed.
        name: The model's name in messages.

    Returns:
        The new model, and the reasons why nodes could not be replaced. The nodes of the model's own functions
        take the place of those that call them.

    Raises:
        ModelError: A node is not as its operator demands.
    """
    original = model.clone()
    run_passes(original, name, InlineFunctionsPass(), _lift_constants(), NameNodesPass())
    with as_model_errors(name, "cannot be prepared"):
        folded = _fold(original)
    graph_model, movement = original.clone(), FloatMovementPass()
    run_passes(graph_model, name, ExpandQLinearPass(), movement)
    dynamic = tuple(node.name or "" for node in graph_model.graph if _is_dynamic(node))
    run_passes(
        graph_model,
        name,
        ExpandDynamicPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
    )
    names = {node.name for node in original.graph}
    obstacles = {
        original_name(node, names): obstacle
        for node in graph_model.graph
        if (obstacle := _obstacle(graph_model, node)) is not None
    }
    return Expanded(original, graph_model, dynamic, tuple(movement.moved), obstacles, folded)


def integer_operators(model: ir.Model) -> tuple[str, ...]:
    """Types of the operators that compute on integers, each once, in alphabetical order."""
    return tuple(sorted({node.op_type for node in model.graph if operator_of(node).integers is not None}))


def refuse_float(graph_model: ir.Model, name: str) -> None:
    """Refuses a model whose main graph holds neither pairs nor operators on integers.

    Raises:
        ModelError: It is a float model, or its pairs are in the graphs of nodes.
    """
    if integer_operators(graph_model) or any(operator_of(node).half_of_pair for node in graph_model.graph):
        return
    for node in graph_model.graph:
        if any(operator_of(inner).half_of_pair for inner in nodes_inside(node)):
            raise ModelError(
                f"the Q/DQ pairs of '{name}' are in the graphs of {node.op_type} '{node.name}', and only the "
                "main graph is looked at; export the branch that you need as a model of its own"
            )
    raise ModelError(
        f"'{name}' is a float model, with no Q/DQ pairs to look at; give a quantized model, or quantize it "
        "with 'trtint8 calibrate' and 'trtint8 quantize'"
    )


def expand_static(model: ir.Model, name: str) -> ir.Model:
    """Replaces integer operators whose scales are constants by Q/DQ pairs around float operators.

    Args:
        model: Any model; not changed.
        name: The model's name in messages.

    Returns:
        A model that computes the same, except for float rounding, of opset 13 or later. Operators whose
        scales are computed at run time stay, because no Q/DQ pairs can replace them.

    Raises:
        ModelError: It cannot be converted to opset 13.
    """
    expanded = model.clone()
    # What replaces a node is named after it.
    run_passes(expanded, name, _lift_constants(), NameNodesPass(), ExpandQLinearPass())
    return with_opset(expanded, OLDEST_OPSET, name)


def _lift_constants() -> ir.passes.InPlacePass:
    """Replaces Constant nodes by initializers, whose types are always known."""
    return common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)


def _fold(model: ir.Model) -> dict[str, str]:
    """Computes what nodes make of constants, except the values of pairs, in place.

    Returns:
        Name to operator of the nodes that computed integers, a scale or a zero point.
    """
    before = {node: node.op_type for node in _before_pairs(model.graph)}
    FoldConstantsPass()(model)
    for node in list(model.graph):
        readers = (reader.op_type for reader, _ in node.outputs[0].uses())
        if node.op_type == "QuantizeLinear" and any(reader != "DequantizeLinear" for reader in readers):
            _store_integers(model.graph, node)
    FoldConstantsPass()(model)
    return {node.name or "": operator for node, operator in before.items() if node.graph is None}


def _before_pairs(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes before the scale, the zero point or the integers of a pair, back to the last quantizer."""
    pending = [
        value
        for node in graph
        if operator_of(node).half_of_pair
        for value in node.inputs[node.op_type == "QuantizeLinear" :]
    ]
    seen = set()
    while pending:
        value = pending.pop()
        node = value.producer() if value is not None else None
        if node is not None and node not in seen and node.op_type not in _QUANTIZERS:
            seen.add(node)
            yield node
            pending += node.inputs


def _store_integers(graph: ir.Graph, node: ir.Node) -> None:
    """Replaces a QuantizeLinear of a constant by its integers, so that movements of them fold."""
    weights, dtype = read_constant(node.inputs[0]), quantized_type(node)
    output = node.outputs[0]
    if weights is None or dtype is None or not dtype.is_integer() or output.is_graph_output():
        return
    if any(read_constant(value) is None for value in node.inputs[1:] if value is not None):
        return
    integers = quantized_values(node, weights).astype(dtype.numpy())
    name, output.name = output.name or "", f"{output.name}_computed"
    output.replace_all_uses_with(add_initializer(graph, name, integers))
    graph.remove(node, safe=True)


def original_name(node: ir.Node, names: set[str | None]) -> str:
    """The name of a node, or, where an expansion inserted it, of the node that was expanded."""
    if node.name in names:
        return node.name or ""
    if node.op_type == "DequantizeLinear":
        return next(reader.name or "" for reader, _ in node.outputs[0].uses())
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    return (producer.name if producer is not None else None) or ""


def _is_dynamic(node: ir.Node) -> bool:
    product = integer_product(node) if node.op_type in FLOAT_COUNTERPARTS else None
    return isinstance(product, IntegerProduct) and product.is_dynamic


def _obstacle(model: ir.Model, node: ir.Node) -> str | None:
    """Why a node of an expanded model belongs neither to a Q/DQ pair nor to the float operators."""
    if is_qlinear(node):
        return qlinear_obstacle(model, node)
    if node.op_type in FLOAT_COUNTERPARTS:
        product = integer_product(node)
        return product if isinstance(product, str) else None
    if node.op_type == "DequantizeLinear":
        return _unpaired(node)
    if node.op_type in _QUANTIZERS:
        return None
    for value in itertools.chain(node.inputs, *(inner.inputs for inner in nodes_inside(node))):
        producer = value.producer() if value is not None else None
        stored = node.domain != "" and is_constant(value)
        # Graphs inside a node may have pairs of their own.
        quantized = producer is not None and producer.op_type in _QUANTIZERS and producer.graph is node.graph
        if value is not None and (quantized or (stored and value.dtype in INTEGER_TYPES)):
            return f"it computes on the integers of '{value.name}'"
    return None


def _unpaired(node: ir.Node) -> str | None:
    """Why a DequantizeLinear is not the second node of a pair."""
    source = node.inputs[0]
    if source is None or is_constant(source):
        return None
    quantize = source.producer()
    if source.is_graph_input() and source.dtype in INTEGER_TYPES:
        return None
    if quantize is None or quantize.op_type not in _QUANTIZERS:
        return f"it dequantizes '{source.name}', which no QuantizeLinear makes"
    own, paired = read_parameters(node), read_parameters(quantize)
    if (
        own is not None
        and paired is not None
        and not is_constant(quantize.inputs[0])
        and not agree(own, paired)
    ):
        return f"its scale or zero point is not that of '{quantize.name}', which quantizes its input"
    return None


#: Integer operator to the float operator that computes the same.
FLOAT_COUNTERPARTS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}


@dataclass(frozen=True)
class Activation:
    """An operand that is the output of a quantizer.

    Attributes:
        data: The integers.
        source: The float input of the quantizer.
        parameters: The quantizer's scale and zero point.
    """

    data: ir.Value
    source: ir.Value
    parameters: Parameters

    @property
    def is_dynamic(self) -> bool:
        """Whether the scale is computed at run time."""
        return read_constant(self.parameters.scale) is None


@dataclass(frozen=True)
class Weights:
    """A constant operand.

    Attributes:
        data: The integers.
        zero_point: Zero points, of shape () or (channels,).
        scale: Scales, of shape () or (channels,).
        axis: The axis of the channels; None where there is one scale.
    """

    data: ir.Value
    zero_point: NDArray[np.integer]
    scale: NDArray[np.float32]
    axis: int | None


@dataclass(frozen=True)
class IntegerProduct:
    """An integer operator and the nodes that a float operator can replace together with it.

    Attributes:
        node: The operator.
        operands: The two operands of the product.
        scaled: The Mul after it, whose output is the float result.
    """

    node: ir.Node
    operands: tuple[Activation | Weights, ...]
    scaled: ir.Node

    @property
    def is_dynamic(self) -> bool:
        """Whether the scale of an operand is computed at run time."""
        return any(isinstance(operand, Activation) and operand.is_dynamic for operand in self.operands)


class _MismatchError(Exception):
    """A part of the pattern is missing; the message says which."""


def integer_product(node: ir.Node) -> IntegerProduct | str:
    """Matches the pattern around a ConvInteger or MatMulInteger.

    Args:
        node: The operator.

    Returns:
        The match, or, in words for the user, what does not fit.
    """
    try:
        return _matched(node)
    except _MismatchError as mismatch:
        return str(mismatch)


def _matched(node: ir.Node) -> IntegerProduct:
    cast = _only_reader(node, "Cast")
    if cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        raise _MismatchError(f"'{cast.name}' casts to something else than float32")
    scaled = _only_reader(cast, "Mul")
    product = next(value for value in scaled.inputs if value is not None and value is not cast.outputs[0])
    factors = list(_factors(product))
    activations = [_activation(node, index) for index in (0, 1)]
    if all(operand is None for operand in activations):
        raise _MismatchError("both of its operands are constant")
    # A computed scale is one of the factors; a constant one may have been multiplied into another factor.
    unfound = [operand for operand in activations if operand and not _remove_scale(factors, operand)]
    scale = _constant_product(factors)
    for operand in unfound:
        known = read_constant(operand.parameters.scale)
        if known is None or None not in activations:
            raise _MismatchError(
                f"the scale of '{operand.data.name}' is not in the product '{product.name}', with which its "
                "output is multiplied"
            )
        scale = scale / known.astype(np.float64)
    if None not in activations and (scale != 1).any():
        raise _MismatchError(f"its output is multiplied with more than its scales in '{product.name}'")
    operands = [
        operand or _weights(node, index, scale.astype(np.float32))
        for index, operand in enumerate(activations)
    ]
    return IntegerProduct(node, tuple(operands), scaled)


def _only_reader(node: ir.Node, operator: str) -> ir.Node:
    output = node.outputs[0]
    uses = tuple(output.uses())
    if len(uses) != 1 or output.is_graph_output() or uses[0][0].op_type != operator:
        found = ", ".join(reader.op_type for reader, _ in uses) or "nothing"
        found += " and the caller" if output.is_graph_output() else ""
        raise _MismatchError(f"'{output.name}' is read by {found}, and not by one {operator} alone")
    return uses[0][0]


def _factors(value: ir.Value) -> Iterator[ir.Value]:
    producer = value.producer()
    if producer is None or producer.op_type != "Mul" or read_constant(value) is not None:
        yield value
        return
    for factor in producer.inputs:
        assert factor is not None
        yield from _factors(factor)


def _activation(node: ir.Node, index: int) -> Activation | None:
    """An operand with its quantizer; None where the operand is constant."""
    data, zero_point = node.inputs[index], input_at(node, index + 2)
    assert data is not None
    if read_constant(data) is not None:
        return None
    quantizer = data.producer()
    parameters = read_parameters(quantizer) if quantizer is not None else None
    if quantizer is None or parameters is None or data is not quantizer.outputs[0]:
        origin = "a graph input" if quantizer is None else f"the {quantizer.op_type} '{quantizer.name}'"
        raise _MismatchError(f"'{data.name}' comes from {origin}, and not from a quantizer")
    scale = read_constant(parameters.scale)
    if scale is not None and scale.size > 1:
        raise _MismatchError(f"'{data.name}' has one scale per channel")
    if not agree(parameters, Parameters(parameters.scale, zero_point)):
        raise _MismatchError(f"its zero point for '{data.name}' is not that of '{quantizer.name}'")
    source = quantizer.inputs[0]
    assert source is not None
    return Activation(data, source, parameters)


def _remove_scale(factors: list[ir.Value], operand: Activation) -> bool:
    """Removes an operand's scale from the factors; returns whether it was among them."""
    for position, factor in enumerate(factors):
        if agree(Parameters(factor, None), Parameters(operand.parameters.scale, None)):
            del factors[position]
            return True
    return False


def _constant_product(factors: list[ir.Value]) -> NDArray[np.float64]:
    product: NDArray[np.float64] = np.ones((), np.float64)
    for factor in factors:
        array = read_constant(factor)
        if array is None:
            raise _MismatchError(
                f"its output is multiplied with '{factor.name}', which is no operand's scale"
            )
        product = product * array.astype(np.float64)
    return product


def _weights(node: ir.Node, index: int, scale: NDArray[np.float32]) -> Weights:
    data, given = node.inputs[index], input_at(node, index + 2)
    integers = read_constant(data)
    assert data is not None and integers is not None
    zero = np.zeros(1, integers.dtype) if given is None else read_constant(given)
    if zero is None:
        raise _MismatchError(f"the zero point of '{data.name}' is computed at run time")
    if not ((scale > 0) & np.isfinite(scale)).all():
        raise _MismatchError(f"a scale of '{data.name}' is not positive and finite")
    if zero.size == 1 and scale.size == 1:
        return Weights(data, zero.reshape(()), scale.reshape(()), None)
    conv = node.op_type == "ConvInteger"
    axis = 0 if conv else integers.ndim - 1
    if index == 0 or integers.ndim < 2:
        raise _MismatchError(f"'{data.name}' has several scales or zero points, and is no weight matrix")
    channels, rank = integers.shape[axis], integers.ndim
    scale = _flatten_per_channel(scale, channels, rank, 1 if conv else axis, data)
    # The zero points of a ConvInteger are a vector; those of a MatMulInteger broadcast against the weights.
    zero_rank, zero_axis = (1, 0) if conv else (rank, axis)
    zero = _flatten_per_channel(zero, channels, zero_rank, zero_axis, data)
    return Weights(data, zero, scale, axis)


def _flatten_per_channel(
    array: NDArray[Any], channels: int, rank: int, axis: int, data: ir.Value
) -> NDArray[Any]:
    """Flattens an array that broadcasts along one axis of a tensor to one number per channel.

    Args:
        array: An array that broadcasts against the tensor.
        channels: The size of the tensor along the axis.
        rank: The rank of the tensor.
        axis: The axis of the channels.
        data: The value that the array belongs to, for the message.

    Returns:
        An array of shape (channels,).

    Raises:
        MismatchError: The array does not broadcast along that axis alone.
    """
    if array.size == 1:
        return np.full(channels, array.reshape(()), array.dtype)
    wanted = [1] * rank
    wanted[axis] = channels
    shape = (*[1] * (rank - array.ndim), *array.shape)
    if set(shape[:-rank]) - {1} or shape[-rank:] != tuple(wanted):
        raise _MismatchError(
            f"the scales or zero points of '{data.name}' have shape {array.shape}, and not one number per "
            "output channel"
        )
    return array.reshape(-1)


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


class ExpandDynamicPass(ir.passes.InPlacePass):
    """Replaces integer operators where all nodes of the pattern around them are found; the others stay.

    An operand whose scale is computed at run time is replaced by the input of its quantizer. An operand with
    a constant scale, and weights, are dequantized by a DequantizeLinear.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Expands the operators, and removes the nodes that computed their scales."""
        modified = False
        for node in list(model.graph):
            product = integer_product(node) if node.op_type in FLOAT_COUNTERPARTS else None
            if isinstance(product, IntegerProduct):
                _expand_dynamic(model.graph, product)
                modified = True
        if modified:
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=modified)


def _expand_dynamic(graph: ir.Graph, product: IntegerProduct) -> None:
    node, result = product.node, product.scaled.outputs[0]
    cast = next(reader for reader, _ in node.outputs[0].uses())
    operands = [_operand(graph, node, index, operand) for index, operand in enumerate(product.operands)]
    attributes = list(node.attributes.values())
    new = ir.Node("", FLOAT_COUNTERPARTS[node.op_type], operands, attributes, name=node.name)
    new.outputs[0].dtype, new.outputs[0].shape = ir.DataType.FLOAT, node.outputs[0].shape
    graph.insert_after(node, new)
    replace_value(result, new.outputs[0])
    graph.remove([product.scaled, cast, node], safe=True)
    if new.op_type == "Conv":
        _fold_bias(graph, new)


def _operand(graph: ir.Graph, node: ir.Node, index: int, operand: Activation | Weights) -> ir.Value:
    name = f"{node.name}_input{index}"
    if isinstance(operand, Activation):
        if operand.is_dynamic:
            return operand.source
        return insert_dequantize(node, operand.data, operand.parameters, name)
    scale, zero_point = (
        add_initializer(graph, f"{name}_{what}", array)
        for what, array in (("scale", operand.scale), ("zero_point", operand.zero_point))
    )
    return insert_dequantize(node, operand.data, Parameters(scale, zero_point), name, operand.axis)


def _fold_bias(graph: ir.Graph, conv: ir.Node) -> None:
    """Replaces an Add of one number per output channel by the convolution's bias."""
    output, weights = conv.outputs[0], conv.inputs[1]
    uses = tuple(output.uses())
    if len(uses) != 1 or uses[0][0].op_type != "Add" or output.is_graph_output() or weights is None:
        return
    add, index = uses[0]
    bias, shape = _bias_constant(add.inputs[1 - index]), weights.shape
    if bias is None or shape is None or not shape.is_static() or bias.dtype != np.float32:
        return
    sizes = shape.numpy()
    try:
        channels = _flatten_per_channel(bias, sizes[0], len(sizes), 1, output)
    except _MismatchError:
        return
    conv.resize_inputs(3)
    conv.replace_input_with(2, add_initializer(graph, f"{conv.name}_bias", channels))
    replace_value(add.outputs[0], output)
    graph.remove(add, safe=True)


def _bias_constant(value: ir.Value | None) -> NDArray[Any] | None:
    """A constant, or the Reshape of one: ONNX Runtime writes both for biases."""
    array = read_constant(value)
    producer = value.producer() if value is not None else None
    if array is None and producer is not None and producer.op_type == "Reshape":
        source, shape = read_constant(producer.inputs[0]), read_constant(producer.inputs[1])
        if source is not None and shape is not None and (shape != 0).all():
            array = source.reshape(tuple(int(size) for size in shape))
    return array


class FloatMovementPass(ir.passes.InPlacePass):
    """Gives operators that move quantized data float data instead, and quantizes their outputs again.

    Data whose scale is computed at run time is not quantized again: it would come out as it went in, except
    for rounding.

    Attributes:
        moved: Names of the nodes that were changed.
    """

    def __init__(self) -> None:
        self.moved: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Works in graph order, because the second node of a chain reads what the first one quantizes."""
        self.moved = [
            node.name or ""
            for node in list(model.graph)
            if _moves_integers(node) and _move_in_float(model.graph, node)
        ]
        return ir.passes.PassResult(model, modified=bool(self.moved))


def _moves_integers(node: ir.Node) -> bool:
    """True if a node computes the same of values and, but for rounding, of integers that represent them."""
    operator = operator_of(node)
    return operator.selects or operator.values is Values.AVERAGED or _gives_no_data(node)


def moved_data(node: ir.Node) -> dict[int, ir.Value]:
    """The inputs whose data an operator moves, by index; empty for operators that do not move data."""
    if not _moves_integers(node):
        return {}
    indices = operator_of(node).data_among(len(node.inputs))
    return {index: value for index in indices if (value := node.inputs[index]) is not None}


def _gives_no_data(node: ir.Node) -> bool:
    """Whether the results of a node are places or sizes, which are the same for values and their integers."""
    operator = operator_of(node)
    return operator.reads_shape or operator.picks is Picks.PLACES


def extrapolates(node: ir.Node) -> bool:
    """Whether a Resize writes a number of its own where it has no data."""
    return node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"


def _move_in_float(graph: ir.Graph, node: ir.Node) -> bool:
    """Replaces a node by one on float data; False where that cannot be done."""
    data = moved_data(node)
    parameters = _parameters(node, data)
    if parameters is None:
        return False
    inputs = list(node.inputs)
    for index, value in data.items():
        source = _float_source(graph, node, index, value, parameters)
        if source is None:
            return False
        inputs[index] = source
    if _pads_with_raw_zero(node):
        inputs[2:3] = [_raw_zero(graph, node, parameters)]
    new = ir.Node(
        "",
        node.op_type,
        inputs,
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    results = operator_of(node).results
    outputs = () if _gives_no_data(node) else range(len(node.outputs)) if results is None else results
    again = with_type_of(next(iter(data.values())), parameters, graph, f"{node.name}_output")
    replace_by_float(node, new, [again if index in outputs else None for index in range(len(node.outputs))])
    return True


def _parameters(node: ir.Node, data: dict[int, ir.Value]) -> Parameters | None:
    """The scale and zero point that all of a node's data share; None where there are none, or several."""
    candidates = [p for value in data.values() if (p := _quantized_with(value)) is not None]
    if not candidates and all(map(_is_given, data.values())):
        candidates = [p for output in node.outputs for p in _dequantized_with(output)][:1]
    if not candidates or not all(agree(candidates[0], other) for other in candidates[1:]):
        return None
    scale = read_constant(candidates[0].scale)
    if (scale is None and _pads_with_raw_zero(node)) or extrapolates(node):
        return None
    return None if scale is not None and scale.size > 1 else candidates[0]


def _is_given(value: ir.Value) -> bool:
    """Whether a value is integers that no node makes: constants, or an input of the model."""
    return value.dtype in INTEGER_TYPES and (is_constant(value) or value.is_graph_input())


def _pads_with_raw_zero(node: ir.Node) -> bool:
    """Whether a Pad writes the integer 0, whatever value that represents."""
    mode = node.attributes.get_string("mode", "constant")
    return node.op_type == "Pad" and mode == "constant" and input_at(node, 2) is None


def _raw_zero(graph: ir.Graph, node: ir.Node, parameters: Parameters) -> ir.Value:
    """The value that the integer 0 represents, as a constant."""
    scale, point = read_constant(parameters.scale), read_constant(parameters.zero_point)
    assert scale is not None, "it was looked at before"
    zero = -scale.reshape(()) * np.float32(0 if point is None else point.reshape(()))
    return add_initializer(graph, f"{node.name}_padding", np.asarray(zero, np.float32))


def _quantized_with(value: ir.Value) -> Parameters | None:
    producer = value.producer()
    if producer is None or producer.op_type == "DequantizeLinear" or value is not producer.outputs[0]:
        return None
    return read_parameters(producer)


def _dequantized_with(value: ir.Value) -> Iterator[Parameters]:
    """The parameters with which nodes after a value dequantize it."""
    for reader, _ in value.uses():
        parameters = read_parameters(reader)
        if reader.op_type == "DequantizeLinear" and parameters is not None:
            yield parameters
        elif _moves_integers(reader):
            for output in reader.outputs:
                yield from _dequantized_with(output)


def _float_source(
    graph: ir.Graph, node: ir.Node, index: int, value: ir.Value, parameters: Parameters
) -> ir.Value | None:
    """A node's data in float; None where the graph does not say how it was quantized."""
    if value is parameters.zero_point:
        return add_initializer(graph, f"{node.name}_input{index}_zero", np.zeros((), np.float32))
    if is_constant(parameters.scale):
        if _quantized_with(value) is None and not _is_given(value):
            return None
        return insert_dequantize(node, value, parameters, f"{node.name}_input{index}")
    quantizer = value.producer()
    return quantizer.inputs[0] if quantizer is not None and _quantized_with(value) else None
